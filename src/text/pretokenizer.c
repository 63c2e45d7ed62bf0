#include "text/pretokenizer.h"

#include "base/arena.h"
#include "text/normalizer.h"
#include "text/unicode_class.h"

#include <stdlib.h>
#include <string.h>

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* ---- applying -------------------------------------------------------------------------------------------------- */
static ag_status pattern_pass(const ag_pattern *pattern, bool invert, ag_split behavior, ag_pieces *p, ag_err *err)
{
    ag_split_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        const ag_piece *piece = &p->pieces[i];
        if (piece->token >= 0) {
            ag_split_keep(p, i);
            continue;
        }
        AG_TRY(ag_pattern_find(pattern, ag_piece_text(p, piece), piece->end - piece->start, invert, p, err));
        ag_split_apply(p, i, behavior);
    }
    ag_split_end(p);
    return AG_OK;
}

/* Cuts by kinds of characters. Every character that has the flag is a match of its own. */
static void flag_pass(unsigned flag, ag_split behavior, ag_pieces *p)
{
    const uint16_t *kinds = ag_unicode_kinds();
    ag_split_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        const ag_piece *piece = &p->pieces[i];
        if (piece->token >= 0) {
            ag_split_keep(p, i);
            continue;
        }
        const unsigned char *text = ag_piece_text(p, piece);
        size_t n = piece->end - piece->start, done = 0, bytes;
        ag_spans_clear(p);
        for (size_t at = 0; at < n; at += bytes) {
            if (!(kinds[ag_utf8_peek(text, at, &bytes)] & flag)) continue;
            if (at > done) ag_spans_add(p, done, at, false);
            ag_spans_add(p, at, at + bytes, true);
            done = at + bytes;
        }
        if (n > done) ag_spans_add(p, done, n, false);
        ag_split_apply(p, i, behavior);
    }
    ag_split_end(p);
}

/* \w+|[^\w\s]+: runs of word characters, runs of others, white space left out. */
static void whitespace_pass(ag_pieces *p)
{
    const uint16_t *kinds = ag_unicode_kinds();
    ag_split_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        const ag_piece *piece = &p->pieces[i];
        if (piece->token >= 0) {
            ag_split_keep(p, i);
            continue;
        }
        size_t n = piece->end - piece->start, start = 0, bytes;
        int previous = -1;
        ag_spans_clear(p);
        for (size_t at = 0; at < n; at += bytes) {
            unsigned kind = kinds[ag_utf8_peek(ag_piece_text(p, piece), at, &bytes)];
            int class = kind & AG_CHAR_WORD_RUST ? 0 : kind & AG_CHAR_SPACE ? 2 : 1;
            if (class != previous && previous >= 0) ag_spans_add(p, start, at, previous == 2), start = at;
            previous = class;
        }
        if (n > start) ag_spans_add(p, start, n, previous == 2);
        ag_split_apply(p, i, AG_SPLIT_REMOVED);
    }
    ag_split_end(p);
}

static void length_pass(size_t length, ag_pieces *p)
{
    ag_split_begin(p);
    for (size_t i = 0; i < p->n_pieces; i++) {
        const ag_piece *piece = &p->pieces[i];
        if (piece->token >= 0) {
            ag_split_keep(p, i);
            continue;
        }
        size_t n = piece->end - piece->start, start = 0, chars = 0, bytes;
        ag_spans_clear(p);
        for (size_t at = 0; at < n; at += bytes) {
            if (chars++ == length) ag_spans_add(p, start, at, false), start = at, chars = 1;
            ag_utf8_peek(ag_piece_text(p, piece), at, &bytes);
        }
        if (n > start) ag_spans_add(p, start, n, false);
        ag_split_apply(p, i, AG_SPLIT_ISOLATED);
    }
    ag_split_end(p);
}

static ag_status metaspace_pass(const ag_pre_rule *rule, ag_pieces *p, ag_err *err)
{
    static char space_text[] = " ";
    static const ag_pattern space = {.text = space_text, .n = 1};
    AG_TRY(ag_replace(p, &space, rule->pattern.text, rule->pattern.n, err));
    if (rule->scheme != AG_PREPEND_NEVER)
        ag_prepend(p, rule->pattern.text, rule->pattern.n, false, rule->scheme == AG_PREPEND_FIRST);
    return rule->split ? pattern_pass(&rule->pattern, false, AG_SPLIT_MERGED_WITH_NEXT, p, err) : AG_OK;
}

ag_status ag_pretokenizer_apply(const ag_pretokenizer *z, ag_pieces *p, ag_err *err)
{
    for (size_t i = 0; i < z->n; i++) {
        const ag_pre_rule *rule = &z->rules[i];
        switch (rule->kind) {
        case AG_PRE_BYTE_LEVEL:
            if (rule->add_prefix_space) ag_prepend(p, " ", 1, false, false);
            if (rule->use_regex) AG_TRY(pattern_pass(&rule->pattern, false, AG_SPLIT_ISOLATED, p, err));
            ag_byte_level_map(p);
            break;
        case AG_PRE_SPLIT: AG_TRY(pattern_pass(&rule->pattern, rule->invert, rule->behavior, p, err)); break;
        case AG_PRE_DIGITS: flag_pass(AG_CHAR_NUMERIC, rule->individual ? AG_SPLIT_ISOLATED : AG_SPLIT_CONTIGUOUS, p); break;
        case AG_PRE_PUNCTUATION: flag_pass(AG_CHAR_PUNCTUATION, rule->behavior, p); break;
        case AG_PRE_WHITESPACE: whitespace_pass(p); break;
        case AG_PRE_WHITESPACE_SPLIT: flag_pass(AG_CHAR_SPACE, AG_SPLIT_REMOVED, p); break;
        case AG_PRE_BERT:
            flag_pass(AG_CHAR_SPACE, AG_SPLIT_REMOVED, p);
            flag_pass(AG_CHAR_PUNCTUATION, AG_SPLIT_ISOLATED, p);
            break;
        case AG_PRE_METASPACE: AG_TRY(metaspace_pass(rule, p, err)); break;
        case AG_PRE_DELIMITER: AG_TRY(pattern_pass(&rule->pattern, false, AG_SPLIT_REMOVED, p, err)); break;
        case AG_PRE_FIXED_LENGTH: length_pass(rule->length, p); break;
        }
    }
    return AG_OK;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */
ag_status ag_metaspace_read(ag_prepend_scheme *scheme, bool *split, const char **replacement, const json_t *rule,
                            const char *name, ag_err *err)
{
    bool add_prefix_space = true;
    const char *word = NULL;
    *split = true;
    *replacement = "\xe2\x96\x81"; /* U+2581 */
    AG_TRY(ag_json_get_bool(rule, "add_prefix_space", &add_prefix_space, name, err));
    AG_TRY(ag_json_get_bool(rule, "split", split, name, err));
    AG_TRY(ag_json_get_string(rule, "replacement", replacement, name, err));
    AG_TRY(ag_json_get_string(rule, "prepend_scheme", &word, name, err));
    *scheme = add_prefix_space ? AG_PREPEND_ALWAYS : AG_PREPEND_NEVER;
    if (!word) return AG_OK;
    if (strcmp(word, "always") == 0)
        *scheme = AG_PREPEND_ALWAYS;
    else if (strcmp(word, "first") == 0)
        *scheme = AG_PREPEND_FIRST;
    else if (strcmp(word, "never") == 0)
        *scheme = AG_PREPEND_NEVER;
    else
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: Metaspace's prepend_scheme must be always, first or never, found '%s'", name,
                       word);
    return AG_OK;
}

static ag_status read_behavior(ag_split *out, const json_t *rule, const char *name, ag_err *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *word = "Isolated";
    AG_TRY(ag_json_get_string(rule, "behavior", &word, name, err));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(word, names[i]) == 0) return *out = (ag_split)i, AG_OK;
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "%s: the split behavior '%s' is not known; known are Removed, Isolated, MergedWithPrevious, "
                   "MergedWithNext, Contiguous",
                   name, word);
}

static ag_status read_metaspace(ag_pre_rule *r, const json_t *value, const char *name, ag_err *err)
{
    const char *replacement;
    r->kind = AG_PRE_METASPACE;
    AG_TRY(ag_metaspace_read(&r->scheme, &r->split, &replacement, value, name, err));
    return ag_pattern_init(&r->pattern, replacement, strlen(replacement), false, false, name, err);
}

static ag_status read_delimiter(ag_pre_rule *r, const json_t *value, const char *name, ag_err *err)
{
    const char *delimiter = " ";
    r->kind = AG_PRE_DELIMITER;
    AG_TRY(ag_json_get_string(value, "delimiter", &delimiter, name, err));
    return ag_pattern_init(&r->pattern, delimiter, strlen(delimiter), false, false, name, err);
}

static ag_status read_rule(ag_pre_rule *r, const json_t *value, const char *name, ag_err *err)
{
    static const struct {
        const char *type;
        ag_pre_kind kind;
    } plain[] = {
        {"Whitespace", AG_PRE_WHITESPACE}, {"WhitespaceSplit", AG_PRE_WHITESPACE_SPLIT}, {"BertPreTokenizer", AG_PRE_BERT}};
    const char *type = ag_rule_type(value);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(type, plain[i].type) == 0) return r->kind = plain[i].kind, AG_OK;
    if (strcmp(type, "ByteLevel") == 0) {
        r->kind = AG_PRE_BYTE_LEVEL;
        r->add_prefix_space = r->use_regex = true;
        AG_TRY(ag_json_get_bool(value, "add_prefix_space", &r->add_prefix_space, name, err));
        AG_TRY(ag_json_get_bool(value, "use_regex", &r->use_regex, name, err));
        return ag_pattern_init(&r->pattern, GPT2_PATTERN, strlen(GPT2_PATTERN), true, false, name, err);
    }
    if (strcmp(type, "Split") == 0) {
        r->kind = AG_PRE_SPLIT;
        AG_TRY(ag_json_get_bool(value, "invert", &r->invert, name, err));
        AG_TRY(read_behavior(&r->behavior, value, name, err));
        return ag_rule_pattern(&r->pattern, value, "pattern", name, err);
    }
    if (strcmp(type, "Digits") == 0) {
        r->kind = AG_PRE_DIGITS;
        return ag_json_get_bool(value, "individual_digits", &r->individual, name, err);
    }
    if (strcmp(type, "Punctuation") == 0) {
        r->kind = AG_PRE_PUNCTUATION;
        return read_behavior(&r->behavior, value, name, err);
    }
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(r, value, name, err);
    if (strcmp(type, "CharDelimiterSplit") == 0) return read_delimiter(r, value, name, err);
    if (strcmp(type, "FixedLength") == 0) {
        int64_t length = 5;
        r->kind = AG_PRE_FIXED_LENGTH;
        AG_TRY(ag_json_get_int(value, "length", 1, INT32_MAX, &length, name, err));
        return r->length = (size_t)length, AG_OK;
    }
    return ag_fail(err, AG_E_UNSUPPORTED,
                   "%s: the pre-tokenizer '%s' is not known; known are ByteLevel, Split, Digits, Punctuation, "
                   "Whitespace, WhitespaceSplit, BertPreTokenizer, Metaspace, CharDelimiterSplit, FixedLength and Sequence",
                   name, type);
}

static size_t count_rules(const json_t *value)
{
    if (!json_is_object(value)) return 0;
    if (strcmp(ag_rule_type(value), "Sequence") != 0) return 1;
    const json_t *list = json_object_get(value, "pretokenizers");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) n += count_rules(json_array_get(list, i));
    return n;
}

static ag_status read_rules(ag_pretokenizer *z, const json_t *value, const char *name, ag_err *err)
{
    size_t n;
    AG_TRY(ag_rule_list(&n, value, "pretokenizers", name, err));
    if (strcmp(ag_rule_type(value), "Sequence") != 0) return n ? read_rule(&z->rules[z->n++], value, name, err) : AG_OK;
    for (size_t i = 0; i < n; i++) AG_TRY(read_rules(z, ag_rule_at(value, "pretokenizers", i), name, err));
    return AG_OK;
}

ag_status ag_pretokenizer_init(ag_pretokenizer *z, const json_t *value, const char *name, ag_err *err)
{
    *z = (ag_pretokenizer){0};
    z->rules = calloc(count_rules(value) + 1, sizeof *z->rules);
    if (!z->rules) ag_out_of_memory(sizeof *z->rules);
    ag_status status = read_rules(z, value, name, err);
    if (status) ag_pretokenizer_deinit(z);
    return status;
}

void ag_pretokenizer_deinit(ag_pretokenizer *z)
{
    for (size_t i = 0; i < z->n; i++) ag_pattern_deinit(&z->rules[i].pattern);
    free(z->rules);
    *z = (ag_pretokenizer){0};
}
