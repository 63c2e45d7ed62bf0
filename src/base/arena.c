#define _GNU_SOURCE
#include "base/arena.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct ag_arena_block {
    ag_arena_block *next;
    size_t used, size; /* of data */
    _Alignas(64) unsigned char data[];
};

enum { FIRST_BLOCK_BYTES = 4096, LARGEST_BLOCK_BYTES = 1 << 20 };

_Noreturn void ag_out_of_memory(size_t bytes)
{
    fprintf(stderr, "agoge: this machine has no memory left (%zu bytes were needed)\n", bytes);
    abort();
}

static ag_arena_block *block_create(size_t size)
{
    ag_arena_block *block = aligned_alloc(64, (sizeof *block + size + 63) & ~(size_t)63);
    if (!block) ag_out_of_memory(size);
    *block = (ag_arena_block){.size = size};
    return block;
}

void *ag_arena_alloc(ag_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) ag_out_of_memory(bytes);
    size_t align = bytes >= 64 ? 64 : 16;
    ag_arena_block *block = arena->blocks;
    size_t at = block ? (block->used + align - 1) & ~(align - 1) : 0;
    if (!block || at > block->size || bytes > block->size - at) {
        size_t size = block ? block->size * 2 : FIRST_BLOCK_BYTES;
        if (size > LARGEST_BLOCK_BYTES) size = LARGEST_BLOCK_BYTES;
        if (size < bytes) size = bytes;
        block = block_create(size);
        block->next = arena->blocks;
        arena->blocks = block;
        at = 0;
    }
    block->used = at + bytes;
    arena->total_bytes += bytes;
    return memset(block->data + at, 0, bytes);
}

void *ag_arena_array(ag_arena *arena, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) ag_out_of_memory(SIZE_MAX);
    return ag_arena_alloc(arena, bytes);
}

char *ag_arena_strndup(ag_arena *arena, const char *text, size_t n_bytes)
{
    char *copy = ag_arena_alloc(arena, n_bytes + 1);
    memcpy(copy, text, n_bytes);
    return copy;
}

char *ag_arena_strdup(ag_arena *arena, const char *text) { return ag_arena_strndup(arena, text, strlen(text)); }

char *ag_arena_printf(ag_arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    AG_ASSERT(n >= 0);
    char *text = ag_arena_alloc(arena, (size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    return text;
}

void ag_arena_free(ag_arena *arena)
{
    for (ag_arena_block *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    *arena = (ag_arena){0};
}

ag_status ag_pages_alloc(void **out, size_t bytes, const char *what, ag_err *err)
{
    *out = NULL;
    if (bytes == 0) return AG_OK;
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return ag_fail(err, AG_E_MEMORY, "no memory for %s: %zu bytes were asked for (%s); close other programs, "
                       "or lower batch_size or max_seq_length", what, bytes, strerror(errno));
    *out = pages;
    return AG_OK;
}

void ag_pages_free(void *pages, size_t bytes)
{
    if (pages) munmap(pages, bytes);
}

void *ag_layout_place(ag_layout *layout, size_t bytes)
{
    size_t at = layout->bytes;
    size_t padded = (bytes + 63) & ~(size_t)63;
    AG_ASSERT(padded >= bytes && at + padded >= at);
    layout->bytes = at + padded;
    return layout->base ? layout->base + at : NULL;
}
