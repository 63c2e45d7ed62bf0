#include "text/added_tokens.h"

#include "base/arena.h"
#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>

void ag_added_trie_init(ag_added_trie *t)
{
    *t = (ag_added_trie){0};
    memset(t->root, 0xff, sizeof t->root);
}

static int32_t new_node(ag_added_trie *t, unsigned char byte, int32_t sibling)
{
    if (t->n == t->room) {
        t->room = t->room ? t->room * 2 : 256;
        t->nodes = realloc(t->nodes, t->room * sizeof *t->nodes);
        if (!t->nodes) ag_out_of_memory(t->room * sizeof *t->nodes);
    }
    t->nodes[t->n] = (struct ag_trie_node){-1, sibling, -1, byte};
    return (int32_t)t->n++;
}

void ag_added_trie_add(ag_added_trie *t, const char *text, size_t n, int32_t value)
{
    if (n == 0 || t->n + n > INT32_MAX) return;
    const unsigned char *p = (const unsigned char *)text;
    if (t->root[p[0]] < 0) t->root[p[0]] = new_node(t, p[0], -1);
    int32_t node = t->root[p[0]];
    for (size_t i = 1; i < n; i++) {
        int32_t next = t->nodes[node].child;
        while (next >= 0 && t->nodes[next].byte != p[i]) next = t->nodes[next].sibling;
        if (next < 0) {
            next = new_node(t, p[i], t->nodes[node].child);
            t->nodes[node].child = next;
        }
        node = next;
    }
    if (t->nodes[node].value >= 0) return;
    t->nodes[node].value = value;
    t->n_patterns++;
    for (unsigned second = 0; second < 256; second++) {
        unsigned pair = p[0] * 256u + second;
        if (n == 1 || p[1] == second) t->first_two[pair / 8] |= (uint8_t)(1u << pair % 8);
    }
}

static int32_t longest_at(const ag_added_trie *t, const unsigned char *text, size_t n, size_t at, size_t *end)
{
    int32_t found = -1;
    for (int32_t node = t->root[text[at]]; node >= 0;) {
        at++;
        if (t->nodes[node].value >= 0) found = t->nodes[node].value, *end = at;
        if (at == n) break;
        node = ag_added_trie_step(t, node, text[at]);
    }
    return found;
}

int32_t ag_added_trie_next(const ag_added_trie *t, const unsigned char *text, size_t n, size_t from, size_t *start, size_t *end)
{
    if (t->n_patterns == 0) return -1;
    for (size_t at = from; at < n; at++) {
        unsigned pair = text[at] * 256u + (at + 1 < n ? text[at + 1] : 0);
        if (at + 1 < n && !(t->first_two[pair / 8] >> pair % 8 & 1)) continue;
        int32_t value = longest_at(t, text, n, at, end);
        if (value >= 0) return *start = at, value;
    }
    return -1;
}

void ag_added_trie_free(ag_added_trie *t)
{
    free(t->nodes);
    ag_added_trie_init(t);
}

void ag_added_set_free(ag_added_set *s)
{
    for (size_t i = 0; i < s->n; i++) free((char *)s->tokens[i].text);
    free(s->tokens);
    ag_added_trie_free(&s->raw);
    ag_added_trie_free(&s->normalized);
    s->tokens = NULL;
    s->n = s->room = 0;
}

/* ---- finding them in a text ------------------------------------------------------------------------------------ */
static bool is_word(const ag_added_scan *s, size_t at, bool before)
{
    size_t bytes;
    uint32_t c = before ? ag_utf8_before(s->text, at, &bytes) : ag_utf8_peek(s->text, at, &bytes);
    return ag_unicode_kinds()[c] & AG_CHAR_WORD_RUST;
}

static size_t spaces_before(const ag_added_scan *s, size_t at)
{
    size_t bytes;
    while (at > 0 && ag_unicode_kinds()[ag_utf8_before(s->text, at, &bytes)] & AG_CHAR_SPACE) at -= bytes;
    return at;
}

static size_t spaces_after(const ag_added_scan *s, size_t at)
{
    size_t bytes;
    while (at < s->n && ag_unicode_kinds()[ag_utf8_peek(s->text, at, &bytes)] & AG_CHAR_SPACE) at += bytes;
    return at;
}

/* Whether text[start, end) touches a range in which special tokens are text; *inside where it lies in one as a whole. */
static bool touches_plain(const ag_added_scan *s, size_t start, size_t end, bool *inside)
{
    const ag_encode_options *o = s->options;
    size_t from = s->from ? s->from[start] : s->origin + start, to = s->to ? s->to[end - 1] : s->origin + end;
    size_t low = 0, high = o->n_plain_ranges; /* the first range that ends behind `from` */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (o->plain_ranges[middle].end > from)
            high = middle;
        else
            low = middle + 1;
    }
    if (low == o->n_plain_ranges || o->plain_ranges[low].start >= to || o->plain_ranges[low].start == o->plain_ranges[low].end)
        return false;
    *inside = o->plain_ranges[low].start <= from && o->plain_ranges[low].end >= to;
    return true;
}

/* A special token that is to be text. *resume is where the search goes on. */
static bool is_plain(const ag_added_scan *s, const ag_added_token *token, size_t start, size_t end, size_t *resume)
{
    if (!s->options || !token->special) return false;
    *resume = end;
    if (s->options->plain) return true;
    bool inside = false;
    if (!s->options->n_plain_ranges || !touches_plain(s, start, end, &inside)) return false;
    size_t bytes;
    if (!inside) { /* half of it is not the user's: a token of the template may start there */
        ag_utf8_peek(s->text, start, &bytes);
        *resume = start + bytes;
    }
    return true;
}

bool ag_added_scan_next(ag_added_scan *s)
{
    if (s->has_waiting) {
        s->has_waiting = false;
        s->start = s->waiting_start, s->end = s->waiting_end, s->token = s->waiting;
        s->done = s->end;
        return true;
    }
    size_t start, end;
    int32_t found;
    while (!s->finished && (found = ag_added_trie_next(s->trie, s->text, s->n, s->at, &start, &end)) >= 0) {
        const ag_added_token *token = &s->set->tokens[found];
        s->at = end;
        if (is_plain(s, token, start, end, &s->at)) continue;
        if (token->single_word && ((start > 0 && is_word(s, start, true)) || (end < s->n && is_word(s, end, false)))) continue;
        if (token->lstrip) {
            size_t left = spaces_before(s, start);
            start = left > s->done ? left : s->done;
        }
        if (token->rstrip) end = spaces_after(s, end);
        if (s->done < start) {
            s->has_waiting = true;
            s->waiting = found, s->waiting_start = start, s->waiting_end = end;
            s->start = s->done, s->end = start, s->token = -1;
            return true;
        }
        s->start = start, s->end = end, s->token = found;
        s->done = end;
        return true;
    }
    if (s->finished || s->done >= s->n) return false;
    s->finished = true;
    s->start = s->done, s->end = s->n, s->token = -1;
    return true;
}
