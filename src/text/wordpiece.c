#include "text/wordpiece.h"

#include "text/unicode_class.h"

#include <string.h>

void ag_wordpiece_deinit(ag_wordpiece *w)
{
    free(w->prefix);
    *w = (ag_wordpiece){0};
}

static ag_status unknown(const ag_wordpiece *w, size_t n, ag_word_tokens *out, ag_err *err)
{
    if (w->unk_id < 0)
        return ag_fail(err, AG_E_DATA, "a word of the text has no token, and this tokenizer has no unknown token");
    ag_word_tokens_push(out, (ag_word_token){w->unk_id, 0, (uint32_t)n, false});
    return AG_OK;
}

/* The longest token that starts at `start`; its end, or 0. */
static size_t longest(const ag_wordpiece *w, ag_str *spelled, const unsigned char *word, size_t n, size_t start, int32_t *id)
{
    size_t bytes, n_prefix = start > 0 ? strlen(w->prefix) : 0;
    ag_str_clear(spelled);
    ag_str_add_n(spelled, w->prefix, n_prefix);
    ag_str_add_n(spelled, (const char *)word + start, n - start);
    for (size_t end = n; end > start; end -= bytes) {
        *id = ag_token_vocab_find(w->vocab, spelled->text, n_prefix + end - start);
        if (*id >= 0) return end;
        ag_utf8_before(word, end, &bytes);
    }
    return 0;
}

ag_status ag_wordpiece_word(const ag_wordpiece *w, const unsigned char *word, size_t n, ag_word_tokens *out, ag_err *err)
{
    size_t first = out->n;
    int32_t id = -1;
    if (w->whole_words) {
        id = ag_token_vocab_find(w->vocab, (const char *)word, n);
        if (id < 0) return unknown(w, n, out, err);
        ag_word_tokens_push(out, (ag_word_token){id, 0, (uint32_t)n, false});
        return AG_OK;
    }
    if (ag_utf8_count((const char *)word, n) > w->max_chars) return unknown(w, n, out, err);
    ag_str spelled = {0};
    size_t start = 0;
    while (start < n) {
        size_t end = longest(w, &spelled, word, n, start, &id);
        if (end == 0) break;
        ag_word_tokens_push(out, (ag_word_token){id, (uint32_t)start, (uint32_t)end, false});
        start = end;
    }
    ag_str_free(&spelled);
    if (start == n) return AG_OK;
    out->n = first;
    return unknown(w, n, out, err);
}
