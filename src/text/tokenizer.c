/* Ids to text, and what a tokenizer tells about itself. */
#include "text/tokenizer_parts.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

/* ---- questions ------------------------------------------------------------------------------------------------- */
int32_t ag_tokenizer_vocab_size(const ag_tokenizer *t) { return t->n_ids; }

ag_text ag_tokenizer_token_text(const ag_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n_ids) return (ag_text){NULL, 0};
    int32_t added = t->added_of_id[id];
    if (added >= 0) return (ag_text){t->added.tokens[added].text, t->added.tokens[added].n};
    if (!ag_token_vocab_has(&t->vocab, id)) return (ag_text){NULL, 0};
    return (ag_text){t->vocab.blob + t->vocab.start[id], t->vocab.length[id]};
}

ag_text ag_tokenizer_token_bytes(const ag_tokenizer *t, int32_t id)
{
    if (ag_tokenizer_token_text(t, id).text == NULL) return (ag_text){NULL, 0};
    return (ag_text){t->bytes_blob + t->bytes_start[id], t->bytes_length[id]};
}

int32_t ag_tokenizer_token_id(const ag_tokenizer *t, const char *token, size_t n)
{
    int32_t added = ag_token_vocab_find(&t->added_texts, token, n);
    return added >= 0 ? t->added.tokens[added].id : ag_token_vocab_find(&t->vocab, token, n);
}

bool ag_tokenizer_is_special(const ag_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && t->added_of_id[id] >= 0 && t->added.tokens[t->added_of_id[id]].special;
}

int32_t ag_tokenizer_special_id(const ag_tokenizer *t, ag_special which) { return t->special_id[which]; }

const char *ag_tokenizer_special_text(const ag_tokenizer *t, ag_special which) { return t->special_text[which]; }

void ag_tokenizer_affixes(const ag_tokenizer *t, int32_t *before, size_t *n_before, int32_t *after, size_t *n_after,
                          size_t n_max)
{
    *n_before = *n_after = 0;
    for (size_t s = t->post.n; s-- > 0;)
        for (size_t k = 0; k < t->post.steps[s].n_before && *n_before < n_max; k++)
            before[(*n_before)++] = t->post.steps[s].before[k];
    for (size_t s = 0; s < t->post.n; s++)
        for (size_t k = 0; k < t->post.steps[s].n_after && *n_after < n_max; k++)
            after[(*n_after)++] = t->post.steps[s].after[k];
}

const ag_added_token *ag_tokenizer_added_tokens(const ag_tokenizer *t, size_t *n)
{
    *n = t->added.n;
    return t->added.tokens;
}

/* ---- ids to text ----------------------------------------------------------------------------------------------- */
void ag_tokenizer_decode(const ag_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, ag_str *out)
{
    ag_texts texts = {0};
    ag_str bytes = {0};
    for (size_t i = 0; i < n; i++) {
        ag_text text = t->byte_level_decoder ? ag_tokenizer_token_bytes(t, ids[i]) : ag_tokenizer_token_text(t, ids[i]);
        if (!text.text || (skip_special && ag_tokenizer_is_special(t, ids[i]))) continue;
        if (t->byte_level_decoder)
            ag_str_add_n(&bytes, text.text, text.n);
        else
            ag_texts_push(&texts, text.text, text.n);
    }
    if (t->byte_level_decoder)
        ag_add_lossy(out, bytes.text, bytes.n);
    else
        ag_decoder_apply(&t->decoder, &texts, out);
    ag_texts_free(&texts);
    ag_str_free(&bytes);
}

/* How much of the text cannot change any more: unfinished characters at the end show as U+FFFD. */
static size_t settled(const ag_str *text)
{
    size_t n = text->n;
    while (n >= 3 && memcmp(text->text + n - 3, "\xef\xbf\xbd", 3) == 0) n -= 3;
    return n;
}

static void decode_window(ag_decode_stream *s, size_t from)
{
    ag_str_clear(&s->text);
    ag_tokenizer_decode(s->tokenizer, s->ids + from, s->n - from, false, &s->text);
}

/* A run of byte tokens turns into U+FFFD as a whole where one byte too many makes it malformed: it waits for its end. */
static bool waits(const ag_decode_stream *s, int32_t id)
{
    return s->tokenizer->byte_fallback_decoder && ag_byte_token(ag_tokenizer_token_text(s->tokenizer, id)) >= 0;
}

/* Drops ids that are out in full. At least one that shows as text stays, for the decoder may look at the first of a text and
 * at the token before; what it gives alone is counted as out. */
static void shorten_window(ag_decode_stream *s)
{
    for (size_t from = s->n; from-- > 0;) {
        decode_window(s, from);
        if (s->text.n == 0) continue;
        if (settled(&s->text) != s->text.n) return;
        memmove(s->ids, s->ids + from, (s->n - from) * sizeof *s->ids);
        s->n -= from;
        s->n_out = s->text.n;
        return;
    }
    s->n_out = 0; /* nothing of it shows */
}

void ag_decode_stream_add(ag_decode_stream *s, int32_t id, ag_str *out)
{
    if (s->skip_special && ag_tokenizer_is_special(s->tokenizer, id)) return;
    if (s->n == s->room) {
        s->room = s->room ? s->room * 2 : 32;
        s->ids = realloc(s->ids, s->room * sizeof *s->ids);
        if (!s->ids) ag_out_of_memory(s->room * sizeof *s->ids);
    }
    s->ids[s->n++] = id;
    if (waits(s, id)) return;
    decode_window(s, 0);
    size_t n = settled(&s->text);
    if (n > s->n_out) {
        ag_str_add_n(out, s->text.text + s->n_out, n - s->n_out);
        s->n_out = n;
    }
    if (n == s->text.n && s->n > 1) shorten_window(s);
}

void ag_decode_stream_end(ag_decode_stream *s, ag_str *out)
{
    if (s->n) decode_window(s, 0);
    if (s->n && s->text.n > s->n_out) ag_str_add_n(out, s->text.text + s->n_out, s->text.n - s->n_out);
    free(s->ids);
    ag_str_free(&s->text);
    s->ids = NULL;
    s->n = s->room = s->n_out = 0;
}
