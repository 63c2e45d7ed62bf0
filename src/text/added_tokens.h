/* Tokens that stand outside the model's vocabulary rules: found in the text before anything else is done to it (or after
 * normalization, where they ask for it), leftmost first, longest of those. */
#ifndef AG_ADDED_TOKENS_H
#define AG_ADDED_TOKENS_H

#include "text/pieces.h"
#include "text/tokenizer.h"

struct ag_trie_node {
    int32_t child, sibling; /* -1: none */
    int32_t value;          /* -1: no text ends here */
    unsigned char byte;
};

/* Finds any of a set of texts. */
typedef struct {
    struct ag_trie_node *nodes;
    size_t n, room;
    int32_t root[256];
    uint8_t first_two[65536 / 8]; /* which byte pairs can start a match: most places are passed over by this alone */
    size_t n_patterns;
} ag_added_trie;

void ag_added_trie_init(ag_added_trie *t);
/* A text that is there already keeps its first value. An empty text is ignored. */
void ag_added_trie_add(ag_added_trie *t, const char *text, size_t n, int32_t value);
/* The leftmost, then longest match in text[from, n); its value, or -1. */
int32_t ag_added_trie_next(const ag_added_trie *t, const unsigned char *text, size_t n, size_t from, size_t *start,
                           size_t *end);
void ag_added_trie_free(ag_added_trie *t);

/* Down the trie byte by byte: a node, or -1 where no text goes on. */
static inline int32_t ag_added_trie_step(const ag_added_trie *t, int32_t node, unsigned char byte)
{
    for (node = t->nodes[node].child; node >= 0 && t->nodes[node].byte != byte;) node = t->nodes[node].sibling;
    return node;
}

typedef struct {
    ag_added_token *tokens; /* texts are owned */
    size_t n, room;
    ag_added_trie raw, normalized; /* values are indices of tokens */
} ag_added_set;

void ag_added_set_free(ag_added_set *s);

/* What is found: spans with `match` set are the token `spans_token[k]`. The loop of a caller:
 *     ag_added_scan scan = {.set = …, .trie = …, .text = …, .n = …};
 *     while (ag_added_scan_next(&scan)) … scan.start, scan.end, scan.token (index, or -1 for text between) … */
typedef struct {
    const ag_added_set *set;
    const ag_added_trie *trie;
    const unsigned char *text;
    size_t n;
    const uint32_t *from, *to; /* alignment of text[0 …], or NULL where it is the original from `origin` on */
    size_t origin;
    const ag_encode_options *options; /* which special tokens are text; may be NULL */
    size_t start, end;
    int32_t token;
    size_t at, done;       /* where to search on; where the last part ended */
    int32_t waiting;       /* a token found behind the text that was just given */
    size_t waiting_start, waiting_end;
    bool has_waiting, finished;
} ag_added_scan;
bool ag_added_scan_next(ag_added_scan *scan);

#endif
