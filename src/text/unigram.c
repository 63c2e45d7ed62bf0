#include "text/unigram.h"

#include "text/unicode_class.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double UNKNOWN_PENALTY = 10.0; /* of an unknown character, below the worst token */

void ag_unigram_init(ag_unigram *u, const ag_token_vocab *vocab, double *scores, int32_t unk_id, bool byte_fallback)
{
    *u =
        (ag_unigram){.vocab = vocab, .scores = scores, .unk_id = unk_id, .byte_fallback = byte_fallback, .min_score = INFINITY};
    ag_added_trie_init(&u->trie);
    for (size_t id = 0; id < vocab->n; id++) {
        if (!ag_token_vocab_has(vocab, (int64_t)id)) continue;
        const char *text = vocab->blob + vocab->start[id];
        int32_t found =
            ag_token_vocab_find(vocab, text, vocab->length[id]); /* not this id where a later one has the same text */
        ag_added_trie_add(&u->trie, text, vocab->length[id], found);
        if (scores[id] < u->min_score) u->min_score = scores[id];
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char code[8];
        int n = snprintf(code, sizeof code, "<0x%02X>", byte);
        u->fallback_ids[byte] = ag_token_vocab_find(vocab, code, (size_t)n);
    }
}

void ag_unigram_deinit(ag_unigram *u)
{
    free(u->scores);
    ag_added_trie_free(&u->trie);
    *u = (ag_unigram){0};
}

/* The best way to each place of the text. */
typedef struct {
    double score;
    uint32_t start; /* UINT32_MAX: no way yet */
    int32_t id;
} best_way;

static void offer(best_way *to, double score, size_t start, int32_t id)
{
    if (to->start == UINT32_MAX || score > to->score) *to = (best_way){score, (uint32_t)start, id};
}

static ag_status find_ways(const ag_unigram *u, best_way *ways, const unsigned char *text, size_t n, ag_err *err)
{
    size_t bytes;
    for (size_t i = 0; i <= n; i++) ways[i] = (best_way){0, UINT32_MAX, -1};
    for (size_t at = 0; at < n; at += bytes) {
        bool single = false;
        double so_far = ways[at].score;
        ag_utf8_peek(text, at, &bytes);
        int32_t node = u->trie.root[text[at]];
        for (size_t end = at + 1; node >= 0; end++) {
            int32_t id = u->trie.nodes[node].value;
            if (id >= 0) {
                offer(&ways[end], u->scores[id] + so_far, at, id);
                single |= end - at == bytes;
            }
            if (end == n) break;
            node = ag_added_trie_step(&u->trie, node, text[end]);
        }
        if (single) continue;
        if (u->unk_id < 0)
            return ag_fail(err, AG_E_DATA, "a character of the text has no token, and this tokenizer has no unknown token");
        offer(&ways[at + bytes], u->min_score - UNKNOWN_PENALTY + so_far, at, u->unk_id);
    }
    return AG_OK;
}

static void add_piece(const ag_unigram *u, const unsigned char *text, size_t start, size_t end, ag_word_tokens *out)
{
    int32_t id = ag_token_vocab_find(u->vocab, (const char *)text + start, end - start);
    bool bytes = id < 0 && u->byte_fallback;
    for (size_t i = start; i < end && bytes; i++) bytes = u->fallback_ids[text[i]] >= 0;
    if (!bytes) {
        ag_word_tokens_push(out, (ag_word_token){id >= 0 ? id : u->unk_id, (uint32_t)start, (uint32_t)end, id < 0});
        return;
    }
    for (size_t i = start; i < end; i++)
        ag_word_tokens_push(out, (ag_word_token){u->fallback_ids[text[i]], (uint32_t)start, (uint32_t)end, false});
}

ag_status ag_unigram_piece(const ag_unigram *u, const unsigned char *text, size_t n, ag_word_tokens *out, ag_err *err)
{
    best_way *ways = malloc((n + 1) * sizeof *ways);
    if (!ways) ag_out_of_memory((n + 1) * sizeof *ways);
    ag_status status = find_ways(u, ways, text, n, err);
    if (status) {
        free(ways);
        return status;
    }
    /* Back along the best way; each place keeps where the way goes on, unknown characters in a row as one. */
    size_t end = n, n_ends = 0;
    while (end > 0) {
        size_t start = ways[end].start, part_end = end;
        while (ways[end].id == u->unk_id && u->unk_id >= 0 && start > 0 && ways[start].id == u->unk_id) {
            end = start;
            start = ways[start].start;
        }
        ways[n - n_ends++].score = (double)part_end; /* scores behind `end` are done with */
        end = start;
    }
    size_t start = 0;
    for (size_t k = n_ends; k-- > 0;) {
        end = (size_t)ways[n - k].score;
        add_piece(u, text, start, end, out);
        start = end;
    }
    free(ways);
    return AG_OK;
}
