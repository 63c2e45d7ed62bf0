/* Completion-only rows: which tokens carry loss, and the evidence of it. */
#include "data/row_encoder.h"

#include "base/fs.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t bos, eos, pad;
    size_t n_chars, start;
} bounds;

/* A token that the tokenizer put there by itself: BOS in front, EOS behind; anything else is refused. */
static ag_status take_added(ag_row_encoder *encoder, const ag_row *row, const bounds *b, size_t i, ag_err *err)
{
    const ag_encoding *e = &encoder->encoding;
    int32_t id = e->ids[i];
    if (i == 0 && id == b->bos) {
        ag_row_encoder_add(encoder, id, false);
        return AG_OK;
    }
    if (i + 1 == e->n && id == b->eos) {
        bool doubled = encoder->n && encoder->ids[encoder->n - 1] == b->eos && encoder->target[encoder->n - 1];
        if (!doubled) ag_row_encoder_add(encoder, id, true);
        return AG_OK;
    }
    return ag_row_encoder_fail(encoder, row, err,
                               "the tokenizer adds the special token %d as token %zu; 'completion_only_loss' takes "
                               "only a BOS in front and an EOS at the end",
                               (int)id, i + 1);
}

static ag_status take_source(ag_row_encoder *encoder, const ag_row *row, const bounds *b, size_t i, size_t *last_left,
                             ag_err *err)
{
    const ag_encoding *e = &encoder->encoding;
    size_t left = e->start[i], right = e->end[i];
    int32_t id = e->ids[i];
    if (!(left < right && right <= b->n_chars) || left < *last_left)
        return ag_row_encoder_fail(encoder, row, err,
                                   "token %zu stands at code points %zu to %zu of %zu, behind one from %zu on: the "
                                   "tokenizer's offsets are not usable for 'completion_only_loss'",
                                   i + 1, left, right, b->n_chars, *last_left);
    *last_left = left;
    if (left < b->start && b->start < right)
        return ag_row_encoder_fail(encoder, row, err,
                                   "token %zu (code points %zu to %zu) crosses 'completion_start_char' %zu; move the "
                                   "boundary to where a token begins",
                                   i + 1, left, right, b->start);
    bool supervised = left >= b->start;
    if (supervised && id != b->eos && (id == b->bos || id == b->pad))
        return ag_row_encoder_fail(encoder, row, err,
                                   "the completion holds the special token %d (%s) at code point %zu; it would be "
                                   "trained as text",
                                   (int)id, id == b->bos ? "BOS" : "PAD", left);
    if (supervised && encoder->n == 0)
        return ag_row_encoder_fail(encoder, row, err,
                                   "the completion begins with the row's first token, which nothing predicts; put a "
                                   "prompt in front of it");
    ag_row_encoder_add(encoder, id, supervised);
    return AG_OK;
}

ag_status ag_completion_encode(ag_row_encoder *encoder, const ag_row *row, ag_err *err)
{
    const ag_tokenizer *t = encoder->options->tokenizer;
    bounds b = {.bos = ag_tokenizer_special_id(t, AG_SPECIAL_BOS),
                .eos = ag_tokenizer_special_id(t, AG_SPECIAL_EOS),
                .pad = ag_tokenizer_special_id(t, AG_SPECIAL_PAD),
                .n_chars = ag_utf8_count(row->text, row->n_text),
                .start = row->completion_start};
    if (b.eos < 0)
        return ag_fail(err, AG_E_DATA, "'completion_only_loss' needs a tokenizer with an EOS token, and this one has none");
    ag_encoding *e = &encoder->encoding;
    ag_encoding_clear(e);
    if (ag_tokenizer_encode(t, encoder->scratch, row->text, row->n_text, &(ag_encode_options){.add_special = true}, e, err))
        return ag_err_prefix(err, "%s: line %zu", encoder->path, row->number);
    size_t last_left = 0, n_content = 0;
    for (size_t i = 0; i < e->n; i++) {
        bool added = e->start[i] == 0 && e->end[i] == 0 && ag_tokenizer_is_special(t, e->ids[i]);
        size_t before = encoder->n;
        if (added)
            AG_TRY(take_added(encoder, row, &b, i, err));
        else
            AG_TRY(take_source(encoder, row, &b, i, &last_left, err));
        n_content += !added && encoder->n > before && encoder->target[before] && e->ids[i] != b.eos;
    }
    if (n_content == 0) return ag_row_encoder_fail(encoder, row, err, "the completion has no token but the EOS");
    if (encoder->ids[encoder->n - 1] != b.eos) ag_row_encoder_add(encoder, b.eos, true);
    if ((int64_t)encoder->n > encoder->options->max_seq_length)
        return ag_row_encoder_fail(encoder, row, err,
                                   "the row has %zu tokens, its EOS included, more than 'max_seq_length' %lld; "
                                   "'completion_only_loss' cuts nothing: raise the limit or shorten the row",
                                   encoder->n, (long long)encoder->options->max_seq_length);
    return AG_OK;
}

/* ---- evidence ------------------------------------------------------------------------------------------------------ */

static int by_key(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* A value with its keys sorted at every level, as json.dumps(sort_keys=True, ensure_ascii=False) writes it. */
static void write_sorted(ag_json_writer *w, const char *key, const json_t *value)
{
    if (json_is_array(value)) {
        ag_jw_array(w, key);
        for (size_t i = 0; i < json_array_size(value); i++) write_sorted(w, NULL, json_array_get(value, i));
        ag_jw_end(w);
    } else if (json_is_object(value)) {
        ag_arena scratch = {0};
        size_t n = 0;
        const char **keys = ag_arena_array(&scratch, json_object_size(value), sizeof *keys), *k;
        json_t *ignored;
        json_object_foreach((json_t *)value, k, ignored) keys[n++] = k;
        qsort(keys, n, sizeof *keys, by_key);
        ag_jw_object(w, key);
        for (size_t i = 0; i < n; i++) write_sorted(w, keys[i], json_object_get(value, keys[i]));
        ag_jw_end(w);
        ag_arena_free(&scratch);
    } else {
        ag_jw_value(w, key, value);
    }
}

/* A made column: what stands in the row under its name, if anything, is replaced. */
static void write_column(ag_json_writer *w, const char *key, const ag_examples *x, int64_t r)
{
    ag_jw_array(w, key);
    for (int64_t t = x->offset[r]; t < x->offset[r + 1]; t++) {
        bool target = ag_examples_is_target(x, t);
        if (strcmp(key, "completion_mask") == 0)
            ag_jw_int(w, NULL, target);
        else
            ag_jw_int(w, NULL, strcmp(key, "input_ids") == 0 || target ? x->ids[t] : -100);
    }
    ag_jw_end(w);
}

void ag_completion_write(const ag_row *row, const ag_examples *x, int64_t r, ag_str *out)
{
    static const char *const made[] = {"completion_mask", "input_ids", "labels"};
    ag_arena scratch = {0};
    size_t n = 0;
    const char **keys = ag_arena_array(&scratch, json_object_size(row->root) + 3, sizeof *keys), *k;
    json_t *ignored;
    json_object_foreach(row->root, k, ignored) if (strcmp(k, made[0]) != 0 && strcmp(k, made[1]) != 0) keys[n++] =
        k; /* labels were refused */
    for (int i = 0; i < 3; i++) keys[n++] = made[i];
    qsort(keys, n, sizeof *keys, by_key);
    ag_json_writer w = {.out = out};
    ag_jw_object(&w, NULL);
    for (size_t i = 0; i < n; i++) {
        bool is_made = keys[i] == made[0] || keys[i] == made[1] || keys[i] == made[2];
        if (is_made)
            write_column(&w, keys[i], x, r);
        else
            write_sorted(&w, keys[i], json_object_get(row->root, keys[i]));
    }
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
    ag_arena_free(&scratch);
}

ag_status ag_examples_write_evidence(const ag_examples *x, int64_t max_seq_length, const char *path, ag_err *err)
{
    ag_str text = {0};
    ag_json_writer w = {.out = &text, .indent = 2};
    ag_jw_object(&w, NULL);
    ag_jw_bool(&w, "completion_only_loss", true);
    ag_jw_string(&w, "boundary_unit", "unicode_code_point");
    ag_jw_bool(&w, "truncation", false);
    ag_jw_int(&w, "max_seq_length", max_seq_length);
    ag_jw_int(&w, "rows", x->n);
    ag_jw_int(&w, "max_tokens", x->longest);
    ag_jw_int(&w, "shifted_supervised_tokens", x->n_targets);
    ag_jw_string(&w, "prepared_sha256", x->prepared.hex);
    ag_jw_end(&w);
    ag_str_add_char(&text, '\n');
    ag_status status = ag_file_publish(path, text.text, text.n, err);
    ag_str_free(&text);
    return status;
}
