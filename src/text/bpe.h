/* Byte-pair encoding: the symbols of a word are merged, the pair of the lowest rank first (the leftmost of equals), until no
 * pair is left that the merges know. */
#ifndef AG_BPE_H
#define AG_BPE_H

#include "text/token_vocab.h"

typedef struct {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: empty */
    uint32_t rank;
    int32_t id;    /* what the two become */
} ag_merge;

typedef struct {
    const ag_token_vocab *vocab; /* borrowed */
    ag_merge *slots;             /* open addressing; a power of two */
    size_t n_slots, n_merges;
    int shift;
    uint64_t *pairs;             /* in the order they were added, for writing them out */
    size_t room_pairs;
    int32_t byte_ids[256];       /* the token of a byte in the byte-level alphabet; -1: none */
    bool all_bytes;              /* every byte has one */
    int32_t fallback_ids[256];   /* <0x00> … ; -1: none */
    int32_t unk_id;              /* -1: characters without a token are dropped */
    bool fuse_unk, byte_fallback, ignore_merges;
    char *prefix, *suffix;       /* continuing_subword_prefix, end_of_word_suffix; NULL: none */
} ag_bpe;

/* Starts an empty model over a complete vocabulary. */
void ag_bpe_init(ag_bpe *b, const ag_token_vocab *vocab);
/* The pair of two texts. AG_E_FORMAT where one of them, or what they make, is not in the vocabulary (a dangling merge). A pair
 * added again takes the later rank. */
AG_MUST_USE ag_status ag_bpe_add_merge(ag_bpe *b, const char *left, size_t n_left, const char *right, size_t n_right, uint32_t rank,
                                       const char *name, ag_err *err);
void ag_bpe_deinit(ag_bpe *b);

/* Where a word's tokens are made; one per thread. */
typedef struct {
    int32_t *ids;
    uint32_t *lengths; /* bytes of the word that each token covers */
    uint32_t *ranks;   /* of the pair that starts here */
    int32_t *merged;   /* and what it becomes */
    uint32_t *next, *previous;
    size_t n, room;
    struct ag_bpe_entry *heap;
    size_t n_heap, room_heap;
} ag_bpe_work;
void ag_bpe_work_free(ag_bpe_work *w);

/* The tokens of a word: w->ids, w->lengths [0, w->n). Of characters, in a byte-level tokenizer those of its alphabet. */
void ag_bpe_word(const ag_bpe *b, ag_bpe_work *w, const unsigned char *word, size_t n);
/* The same for the raw bytes of a word, each of which has a token in byte_ids. */
void ag_bpe_word_bytes(const ag_bpe *b, ag_bpe_work *w, const unsigned char *word, size_t n);

#endif
