#define _GNU_SOURCE
#include "text/token_decoder.h"

#include "base/arena.h"
#include "text/normalizer.h"
#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>

void ag_texts_push(ag_texts *t, const char *text, size_t n)
{
    if (t->n == t->room) {
        t->room = t->room ? t->room * 2 : 64;
        t->ends = realloc(t->ends, t->room * sizeof *t->ends);
        if (!t->ends) ag_out_of_memory(t->room * sizeof *t->ends);
    }
    ag_str_add_n(&t->text, text, n);
    t->ends[t->n++] = t->text.n;
}

void ag_texts_free(ag_texts *t)
{
    ag_str_free(&t->text);
    free(t->ends);
    *t = (ag_texts){0};
}

static ag_text text_at(const ag_texts *t, size_t i)
{
    size_t start = i ? t->ends[i - 1] : 0;
    return (ag_text){t->text.text + start, t->ends[i] - start};
}

void ag_add_lossy(ag_str *out, const char *bytes, size_t n)
{
    if (n == 0) return;
    if (ag_utf8_valid(bytes, n)) {
        ag_str_add_n(out, bytes, n);
        return;
    }
    for (size_t at = 0; at < n;) ag_str_add_code_point(out, ag_utf8_next(bytes, n, &at));
}

void ag_byte_level_unmap(ag_str *out, const char *text, size_t n)
{
    size_t before = out->n, bytes;
    for (size_t at = 0; at < n; at += bytes) {
        int byte = ag_byte_level_byte(ag_utf8_peek((const unsigned char *)text, at, &bytes));
        if (byte < 0) {
            out->n = before;
            ag_str_add_n(out, text, n);
            return;
        }
        ag_str_add_char(out, (char)byte);
    }
}

/* ---- steps: from one list to the next -------------------------------------------------------------------------- */
/* Appends text with every occurrence of `from` replaced. */
static void add_replaced(ag_str *out, ag_text text, const char *from, size_t n_from, const char *to, size_t n_to)
{
    size_t done = 0;
    for (size_t at = 0; n_from > 0 && at + n_from <= text.n;) {
        if (memcmp(text.text + at, from, n_from) != 0) {
            at++;
            continue;
        }
        if (at > done) ag_str_add_n(out, text.text + done, at - done);
        if (n_to) ag_str_add_n(out, to, n_to);
        at = done = at + n_from;
    }
    if (text.n > done) ag_str_add_n(out, text.text + done, text.n - done);
}

/* English punctuation drawn to the word before it, one rule after the other as the original does. */
static void clean_up(ag_str *text)
{
    static const char *const rules[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                           {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                           {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        ag_str next = {0};
        add_replaced(&next, (ag_text){text->text, text->n}, rules[i][0], strlen(rules[i][0]), rules[i][1], strlen(rules[i][1]));
        ag_str_free(text);
        *text = next;
    }
}

static void word_piece(const ag_decode_rule *r, ag_text token, size_t i, ag_str *out)
{
    bool continues = token.n >= r->pattern.n && memcmp(token.text, r->pattern.text, r->pattern.n) == 0;
    if (i > 0 && continues)
        token.text += r->pattern.n, token.n -= r->pattern.n;
    else if (i > 0)
        ag_str_add_char(out, ' ');
    ag_str_add_n(out, token.text, token.n);
    if (r->cleanup) clean_up(out);
}

static void ctc(const ag_decode_rule *r, ag_text token, ag_str *out)
{
    add_replaced(out, token, r->pattern.text, r->pattern.n, "", 0);
    if (!r->cleanup) return;
    clean_up(out);
    ag_str spaced = {0};
    add_replaced(&spaced, (ag_text){out->text, out->n}, r->text, r->n_text, " ", 1);
    ag_str_free(out);
    *out = spaced;
}

static void strip(const ag_decode_rule *r, ag_text token, ag_str *out)
{
    size_t n = r->n_text;
    for (size_t k = 0; k < r->start && token.n >= n && memcmp(token.text, r->text, n) == 0; k++) token.text += n, token.n -= n;
    for (size_t k = 0; k < r->stop && token.n >= n && memcmp(token.text + token.n - n, r->text, n) == 0; k++) token.n -= n;
    ag_str_add_n(out, token.text, token.n);
}

static void replace(const ag_decode_rule *r, ag_text token, ag_pieces *work, ag_str *out)
{
    if (!r->pattern.is_regex) {
        add_replaced(out, token, r->pattern.text, r->pattern.n, r->text, r->n_text);
        return;
    }
    if (ag_pattern_find(&r->pattern, (const unsigned char *)token.text, token.n, false, work, NULL)) {
        ag_str_add_n(out, token.text, token.n); /* a pattern that gives up on a token leaves it as it is */
        return;
    }
    for (size_t k = 0; k < work->n_spans; k++) {
        const ag_span *s = &work->spans[k];
        if (s->match)
            ag_str_add_n(out, r->text, r->n_text);
        else
            ag_str_add_n(out, token.text + s->start, s->end - s->start);
    }
}

static void metaspace(const ag_decode_rule *r, ag_text token, size_t i, ag_str *out)
{
    bool drop = i == 0 && r->drop_first;
    add_replaced(out, token, r->pattern.text, r->pattern.n, " ", drop ? 0 : 1);
}

int ag_byte_token(ag_text t)
{
    if (t.n != 6 || memcmp(t.text, "<0x", 3) != 0 || t.text[5] != '>') return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = t.text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static void flush_bytes(ag_str *bytes, ag_texts *out)
{
    if (bytes->n == 0) return;
    if (ag_utf8_valid(bytes->text, bytes->n))
        ag_texts_push(out, bytes->text, bytes->n);
    else
        for (size_t i = 0; i < bytes->n; i++) ag_texts_push(out, "\xef\xbf\xbd", 3);
    ag_str_clear(bytes);
}

static void byte_fallback(const ag_texts *in, ag_texts *out)
{
    ag_str bytes = {0};
    for (size_t i = 0; i < in->n; i++) {
        int byte = ag_byte_token(text_at(in, i));
        if (byte >= 0) {
            ag_str_add_char(&bytes, (char)byte);
            continue;
        }
        flush_bytes(&bytes, out);
        ag_texts_push(out, text_at(in, i).text, text_at(in, i).n);
    }
    flush_bytes(&bytes, out);
    ag_str_free(&bytes);
}

static void byte_level(const ag_texts *in, ag_texts *out)
{
    ag_str bytes = {0}, text = {0};
    for (size_t i = 0; i < in->n; i++) ag_byte_level_unmap(&bytes, text_at(in, i).text, text_at(in, i).n);
    ag_add_lossy(&text, bytes.text, bytes.n);
    ag_texts_push(out, text.text, text.n);
    ag_str_free(&bytes);
    ag_str_free(&text);
}

static bool same_as_before(const ag_texts *in, size_t i)
{
    if (i == 0) return false;
    ag_text a = text_at(in, i - 1), b = text_at(in, i);
    return a.n == b.n && memcmp(a.text, b.text, a.n) == 0;
}

static void step(const ag_decode_rule *r, const ag_texts *in, ag_texts *out, ag_pieces *work)
{
    ag_str token = {0};
    if (r->kind == AG_DECODE_BYTE_LEVEL) {
        byte_level(in, out);
    } else if (r->kind == AG_DECODE_BYTE_FALLBACK) {
        byte_fallback(in, out);
    } else if (r->kind == AG_DECODE_FUSE) {
        ag_texts_push(out, in->text.text, in->text.n);
    } else {
        for (size_t i = 0; i < in->n; i++) {
            ag_text text = text_at(in, i);
            ag_str_clear(&token);
            if (r->kind == AG_DECODE_CTC && same_as_before(in, i)) continue;
            switch (r->kind) {
            case AG_DECODE_BPE: add_replaced(&token, text, r->pattern.text, r->pattern.n, " ", i + 1 < in->n); break;
            case AG_DECODE_WORDPIECE: word_piece(r, text, i, &token); break;
            case AG_DECODE_METASPACE: metaspace(r, text, i, &token); break;
            case AG_DECODE_CTC: ctc(r, text, &token); break;
            case AG_DECODE_REPLACE: replace(r, text, work, &token); break;
            default: strip(r, text, &token); break;
            }
            if (r->kind != AG_DECODE_CTC || token.n > 0) ag_texts_push(out, token.text, token.n);
        }
    }
    ag_str_free(&token);
}

void ag_decoder_apply(const ag_decoder *z, ag_texts *tokens, ag_str *out)
{
    ag_texts next = {0};
    ag_pieces work = {0};
    for (size_t i = 0; i < z->n; i++) {
        ag_str_clear(&next.text);
        next.n = 0;
        step(&z->rules[i], tokens, &next, &work);
        ag_texts swap = *tokens;
        *tokens = next;
        next = swap;
    }
    for (size_t i = 0; i < tokens->n; i++) {
        if (z->none && i > 0) ag_str_add_char(out, ' ');
        ag_str_add_n(out, text_at(tokens, i).text, text_at(tokens, i).n);
    }
    ag_texts_free(&next);
    ag_pieces_free(&work);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */
static ag_status read_word(ag_decode_rule *r, const json_t *value, const char *key, const char *usual, const char *name,
                           ag_err *err)
{
    const char *word = usual;
    AG_TRY(ag_json_get_string(value, key, &word, name, err));
    return ag_pattern_init(&r->pattern, word, strlen(word), false, false, name, err);
}

static ag_status read_text(ag_decode_rule *r, const json_t *value, const char *key, const char *usual, const char *name,
                           ag_err *err)
{
    if (json_object_get(value, key)) return ag_rule_text(&r->text, &r->n_text, value, key, name, err);
    r->text = strdup(usual);
    if (!r->text) ag_out_of_memory(strlen(usual));
    r->n_text = strlen(usual);
    return AG_OK;
}

static ag_status read_metaspace(ag_decode_rule *r, const json_t *value, const char *name, ag_err *err)
{
    ag_prepend_scheme scheme;
    bool split;
    const char *replacement;
    AG_TRY(ag_metaspace_read(&scheme, &split, &replacement, value, name, err));
    r->drop_first = scheme != AG_PREPEND_NEVER;
    return ag_pattern_init(&r->pattern, replacement, strlen(replacement), false, false, name, err);
}

static ag_status read_strip(ag_decode_rule *r, const json_t *value, const char *name, ag_err *err)
{
    int64_t start = 0, stop = 0;
    AG_TRY(ag_json_get_int(value, "start", 0, INT32_MAX, &start, name, err));
    AG_TRY(ag_json_get_int(value, "stop", 0, INT32_MAX, &stop, name, err));
    r->start = (size_t)start, r->stop = (size_t)stop;
    AG_TRY(ag_rule_text(&r->text, &r->n_text, value, "content", name, err));
    return r->n_text > 0 ? AG_OK : ag_fail(err, AG_E_FORMAT, "%s: 'content' of the decoder Strip must be one character", name);
}

static ag_status read_rule(ag_decode_rule *r, const json_t *value, const char *name, ag_err *err)
{
    static const struct {
        const char *type;
        ag_decode_kind kind;
    } known[] = {{"ByteLevel", AG_DECODE_BYTE_LEVEL},
                 {"BPEDecoder", AG_DECODE_BPE},
                 {"WordPiece", AG_DECODE_WORDPIECE},
                 {"Metaspace", AG_DECODE_METASPACE},
                 {"CTC", AG_DECODE_CTC},
                 {"Replace", AG_DECODE_REPLACE},
                 {"Fuse", AG_DECODE_FUSE},
                 {"Strip", AG_DECODE_STRIP},
                 {"ByteFallback", AG_DECODE_BYTE_FALLBACK}};
    const char *type = ag_rule_type(value);
    size_t i = 0, n = sizeof known / sizeof *known;
    while (i < n && strcmp(type, known[i].type) != 0) i++;
    if (i == n)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: the decoder '%s' is not known; known are ByteLevel, BPEDecoder, WordPiece, Metaspace, "
                       "CTC, Replace, Fuse, Strip, ByteFallback and Sequence",
                       name, type);
    r->kind = known[i].kind;
    switch (r->kind) {
    case AG_DECODE_BPE: return read_word(r, value, "suffix", "</w>", name, err);
    case AG_DECODE_METASPACE: return read_metaspace(r, value, name, err);
    case AG_DECODE_STRIP: return read_strip(r, value, name, err);
    case AG_DECODE_WORDPIECE:
        r->cleanup = true;
        AG_TRY(ag_json_get_bool(value, "cleanup", &r->cleanup, name, err));
        return read_word(r, value, "prefix", "##", name, err);
    case AG_DECODE_CTC:
        r->cleanup = true;
        AG_TRY(ag_json_get_bool(value, "cleanup", &r->cleanup, name, err));
        AG_TRY(read_text(r, value, "word_delimiter_token", "|", name, err));
        return read_word(r, value, "pad_token", "<pad>", name, err);
    case AG_DECODE_REPLACE:
        AG_TRY(ag_rule_text(&r->text, &r->n_text, value, "content", name, err));
        return ag_rule_pattern(&r->pattern, value, "pattern", name, err);
    default: return AG_OK;
    }
}

static size_t count_rules(const json_t *value)
{
    if (!json_is_object(value)) return 0;
    if (strcmp(ag_rule_type(value), "Sequence") != 0) return 1;
    const json_t *list = json_object_get(value, "decoders");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) n += count_rules(json_array_get(list, i));
    return n;
}

static ag_status read_rules(ag_decoder *z, const json_t *value, const char *name, ag_err *err)
{
    size_t n;
    AG_TRY(ag_rule_list(&n, value, "decoders", name, err));
    if (strcmp(ag_rule_type(value), "Sequence") != 0) return n ? read_rule(&z->rules[z->n++], value, name, err) : AG_OK;
    for (size_t i = 0; i < n; i++) AG_TRY(read_rules(z, ag_rule_at(value, "decoders", i), name, err));
    return AG_OK;
}

ag_status ag_decoder_init(ag_decoder *z, const json_t *value, const char *name, ag_err *err)
{
    *z = (ag_decoder){.none = !value || json_is_null(value)};
    z->rules = calloc(count_rules(value) + 1, sizeof *z->rules);
    if (!z->rules) ag_out_of_memory(sizeof *z->rules);
    ag_status status = read_rules(z, value, name, err);
    if (status) ag_decoder_deinit(z);
    return status;
}

void ag_decoder_deinit(ag_decoder *z)
{
    for (size_t i = 0; i < z->n; i++) {
        ag_pattern_deinit(&z->rules[i].pattern);
        free(z->rules[i].text);
    }
    free(z->rules);
    *z = (ag_decoder){0};
}
