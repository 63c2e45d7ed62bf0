/* Memory by lifetime. An arena hands out zeroed pieces and gives them all back at once; there are four in a process:
 * process, model, run and step. What lives in an arena is never freed alone.
 *
 *     ag_arena a = {0};
 *     char *name = ag_arena_strdup(&a, "blk.0.attn_q.weight");
 *     ...
 *     ag_arena_free(&a);
 *
 * Small pieces (names, tables, JSON-sized things) cannot fail: a machine that has no room for them cannot go on, and
 * ag_out_of_memory() says so. Whatever a file's numbers can make large is asked for with ag_pages_alloc, which returns a
 * status, after those numbers were held against the file's own size. */
#ifndef AG_ARENA_H
#define AG_ARENA_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ag_arena_block ag_arena_block;
typedef struct {
    ag_arena_block *blocks; /* newest first; {0} is an empty arena */
    size_t total_bytes;     /* handed out so far */
} ag_arena;

/* Zeroed, aligned to 64 bytes when bytes >= 64, else to 16. Never NULL; 0 bytes gives a valid pointer. */
void *ag_arena_alloc(ag_arena *arena, size_t bytes);
/* Room for n items of `size` bytes; a product over SIZE_MAX ends the program like a machine without memory. */
void *ag_arena_array(ag_arena *arena, size_t n, size_t size);
char *ag_arena_strdup(ag_arena *arena, const char *text);
char *ag_arena_strndup(ag_arena *arena, const char *text, size_t n_bytes);
char *ag_arena_printf(ag_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ag_arena_free(ag_arena *arena); /* everything at once; the arena is then empty and may be used again */

/* Large zeroed memory straight from the system, 64-byte (page) aligned. Free with ag_pages_free and the same size. */
AG_MUST_USE ag_status ag_pages_alloc(void **out, size_t bytes, const char *what, ag_err *err);
void ag_pages_free(void *pages, size_t bytes);

/* A layout places named pieces in one block: run the same placing code twice, first with base NULL to learn the size,
 * then on the block. This is how a plan can be printed before anything is allocated.
 *
 *     ag_layout l = {0};             place_all(&l, &state);   // l.bytes is what it takes
 *     ag_pages_alloc(&block, l.bytes, "activations", err);
 *     l = (ag_layout){.base = block}; place_all(&l, &state);   // state's pointers are now real */
typedef struct {
    unsigned char *base;
    size_t bytes;
} ag_layout;
/* The next piece, 64-byte aligned; NULL while base is NULL. */
void *ag_layout_place(ag_layout *layout, size_t bytes);

_Noreturn void ag_out_of_memory(size_t bytes);

#endif
