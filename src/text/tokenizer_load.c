/* Putting a tokenizer together: what tokenizer.json and GGUF have in common. */
#include "text/tokenizer_parts.h"
#include "text/unicode_class.h"

#include "base/arena.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void *copied(const void *bytes, size_t n)
{
    char *copy = malloc(n + 1);
    if (!copy) ag_out_of_memory(n + 1);
    if (n) memcpy(copy, bytes, n);
    copy[n] = 0;
    return copy;
}

ag_tokenizer *ag_tokenizer_new(const char *name)
{
    static _Atomic uint64_t last_serial;
    ag_tokenizer *t = calloc(1, sizeof *t);
    if (!t) ag_out_of_memory(sizeof *t);
    t->serial = atomic_fetch_add(&last_serial, 1) + 1;
    t->name = copied(name, strlen(name));
    t->highest_added = -1;
    ag_added_trie_init(&t->added.raw);
    ag_added_trie_init(&t->added.normalized);
    for (int i = 0; i < AG_N_SPECIAL; i++) t->special_id[i] = -1;
    return t;
}

void ag_tokenizer_free(ag_tokenizer **tokenizer)
{
    ag_tokenizer *t = *tokenizer;
    if (!t) return;
    ag_token_vocab_free(&t->vocab);
    ag_token_vocab_free(&t->added_texts);
    ag_bpe_deinit(&t->bpe);
    ag_unigram_deinit(&t->unigram);
    ag_wordpiece_deinit(&t->wordpiece);
    ag_added_set_free(&t->added);
    ag_normalizer_deinit(&t->normalizer);
    ag_pretokenizer_deinit(&t->pretokenizer);
    ag_post_processor_deinit(&t->post);
    ag_decoder_deinit(&t->decoder);
    for (int i = 0; i < AG_N_SPECIAL; i++) free(t->special_text[i]);
    void *owned[] = {t->name,         t->unk_token,  t->added_of_id, t->normalizer_json, t->pretokenizer_json, t->post_json,
                     t->decoder_json, t->model_json, t->bytes_blob,  t->bytes_start,     t->bytes_length};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    free(t);
    *tokenizer = NULL;
}

/* ---- rules ----------------------------------------------------------------------------------------------------- */
static char *dumped(const json_t *value)
{
    return value && !json_is_null(value) ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : copied("null", 4);
}

static ag_status read_added(ag_tokenizer *t, const json_t *list, ag_err *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *content = json_object_get(item, "content");
        int64_t id = -1;
        ag_added_token token = {.normalized = true};
        if (!json_is_string(content))
            return ag_fail(err, AG_E_FORMAT, "%s: added token %zu must have a text as its 'content'", t->name, i);
        token.text = json_string_value(content);
        token.n = json_string_length(content);
        AG_TRY(ag_json_get_int(item, "id", 0, INT32_MAX, &id, t->name, err));
        AG_TRY(ag_json_get_bool(item, "special", &token.special, t->name, err));
        token.normalized = !token.special;
        AG_TRY(ag_json_get_bool(item, "normalized", &token.normalized, t->name, err));
        AG_TRY(ag_json_get_bool(item, "lstrip", &token.lstrip, t->name, err));
        AG_TRY(ag_json_get_bool(item, "rstrip", &token.rstrip, t->name, err));
        AG_TRY(ag_json_get_bool(item, "single_word", &token.single_word, t->name, err));
        token.id = (int32_t)id;
        if (token.n) AG_TRY(ag_tokenizer_add_token(t, token, err));
    }
    return AG_OK;
}

ag_status ag_tokenizer_set_rules(ag_tokenizer *t, const json_t *root, ag_err *err)
{
    const json_t *normalizer = json_object_get(root, "normalizer"), *pre = json_object_get(root, "pre_tokenizer");
    const json_t *post = json_object_get(root, "post_processor"), *decoder = json_object_get(root, "decoder");
    t->normalizer_json = dumped(normalizer);
    t->pretokenizer_json = dumped(pre);
    t->post_json = dumped(post);
    t->decoder_json = dumped(decoder);
    if (!t->normalizer_json || !t->pretokenizer_json || !t->post_json || !t->decoder_json) ag_out_of_memory(0);
    AG_TRY(ag_normalizer_init(&t->normalizer, normalizer, t->name, err));
    AG_TRY(ag_pretokenizer_init(&t->pretokenizer, pre, t->name, err));
    AG_TRY(ag_post_processor_init(&t->post, post, t->name, err));
    AG_TRY(ag_decoder_init(&t->decoder, decoder, t->name, err));
    return read_added(t, json_object_get(root, "added_tokens"), err);
}

/* ---- added tokens ---------------------------------------------------------------------------------------------- */
/* A token that the model has keeps the model's id; others count up from the size of the model's vocabulary. Where that is not
 * the id in the file, tokenizers would go on with another id than the model was trained with: better to say so. */
ag_status ag_tokenizer_add_token(ag_tokenizer *t, ag_added_token token, ag_err *err)
{
    int32_t id = ag_token_vocab_find(&t->vocab, token.text, token.n),
            same = ag_token_vocab_find(&t->added_texts, token.text, token.n);
    if (same >= 0) {
        token.id = t->added.tokens[same].id;
        token.text = t->added.tokens[same].text;
        token.special |= t->added.tokens[same].special;
        t->added.tokens[same] = token;
        return AG_OK;
    }
    if (id < 0) {
        int32_t highest = t->highest_added, size = (int32_t)t->vocab.n_tokens;
        id = highest >= size || (size == 0 && highest >= 0) ? highest + 1 : size;
        if (token.id >= 0 && token.id != id)
            return ag_fail(err, AG_E_FORMAT,
                           "%s: the added token \"%.*s\" has the id %d, but the tokens before it end at %d; "
                           "a vocabulary with a hole there is not supported",
                           t->name, (int)(token.n < 60 ? token.n : 60), token.text, (int)token.id, (int)id - 1);
        if (ag_token_vocab_has(&t->vocab, id))
            return ag_fail(err, AG_E_FORMAT,
                           "%s: the added token \"%.*s\" has the id %d, which \"%.*s\" of the vocabulary has as well", t->name,
                           (int)(token.n < 60 ? token.n : 60), token.text, (int)id,
                           (int)(t->vocab.length[id] < 60 ? t->vocab.length[id] : 60), t->vocab.blob + t->vocab.start[id]);
    }
    token.id = id;
    return ag_tokenizer_add_token_as(t, token, err);
}

ag_status ag_tokenizer_add_token_as(ag_tokenizer *t, ag_added_token token, ag_err *err)
{
    if (token.n > AG_ADDED_MAX_BYTES)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: the added token \"%.60s…\" has %zu bytes; %d are the most", t->name,
                       token.text, token.n, AG_ADDED_MAX_BYTES);
    AG_TRY(ag_token_vocab_add(&t->added_texts, token.text, token.n, (int64_t)t->added.n, t->name, err));
    token.text = copied(token.text, token.n);
    if (t->added.n == t->added.room) {
        t->added.room = t->added.room ? t->added.room * 2 : 64;
        t->added.tokens = realloc(t->added.tokens, t->added.room * sizeof *t->added.tokens);
        if (!t->added.tokens) ag_out_of_memory(t->added.room * sizeof *t->added.tokens);
    }
    t->added.tokens[t->added.n++] = token;
    if (token.id > t->highest_added) t->highest_added = token.id;
    return AG_OK;
}

/* Tokens that ask for it are found in the normalized text, in their own normalized form. Special ones come first: of two with
 * the same text the first is found. */
static ag_status build_tries(ag_tokenizer *t, ag_err *err)
{
    ag_pieces p = {0};
    ag_status status = AG_OK;
    for (int special = 1; special >= 0 && !status; special--) {
        for (size_t i = 0; i < t->added.n && !status; i++) {
            const ag_added_token *token = &t->added.tokens[i];
            if (token->special != special) continue;
            if (!token->normalized) {
                ag_added_trie_add(&t->added.raw, token->text, token->n, (int32_t)i);
                continue;
            }
            ag_pieces_begin(&p);
            ag_pieces_add_original(&p, (const unsigned char *)token->text, token->n, 0, -1);
            status = ag_normalizer_apply(&t->normalizer, &p, err);
            if (!status) ag_added_trie_add(&t->added.normalized, (const char *)p.now.text, p.now.n, (int32_t)i);
        }
    }
    ag_pieces_free(&p);
    return status;
}

/* ---- tables by id ---------------------------------------------------------------------------------------------- */
void ag_tokenizer_index_ids(ag_tokenizer *t)
{
    free(t->added_of_id);
    t->n_ids = (int32_t)t->vocab.n;
    for (size_t i = 0; i < t->added.n; i++)
        if (t->added.tokens[i].id >= t->n_ids) t->n_ids = t->added.tokens[i].id + 1;
    t->added_of_id = malloc(((size_t)t->n_ids + 1) * sizeof *t->added_of_id);
    if (!t->added_of_id) ag_out_of_memory((size_t)t->n_ids * sizeof *t->added_of_id);
    memset(t->added_of_id, 0xff, ((size_t)t->n_ids + 1) * sizeof *t->added_of_id);
    /* A Unigram vocabulary may have the text of an added token under further ids: they are that token as well. */
    for (size_t id = 0; id < t->vocab.n && t->kind == AG_MODEL_UNIGRAM; id++)
        if (ag_token_vocab_has(&t->vocab, (int64_t)id))
            t->added_of_id[id] = ag_token_vocab_find(&t->added_texts, t->vocab.blob + t->vocab.start[id], t->vocab.length[id]);
    for (size_t i = t->added.n; i-- > 0;) t->added_of_id[t->added.tokens[i].id] = (int32_t)i;
}

/* The mark that stands for a space in the vocabulary, where the decoder turns one into a space. */
static const ag_decode_rule *space_mark(const ag_tokenizer *t)
{
    for (size_t i = 0; i < t->decoder.n; i++) {
        const ag_decode_rule *r = &t->decoder.rules[i];
        if (r->kind == AG_DECODE_METASPACE) return r;
        if (r->kind == AG_DECODE_REPLACE && !r->pattern.is_regex && r->n_text == 1 && r->text[0] == ' ') return r;
    }
    return NULL;
}

static bool has_decoder(const ag_tokenizer *t, ag_decode_kind kind)
{
    for (size_t i = 0; i < t->decoder.n; i++)
        if (t->decoder.rules[i].kind == kind) return true;
    return false;
}

static void add_token_bytes(const ag_tokenizer *t, int32_t id, bool byte_level, bool bytes, const ag_decode_rule *mark,
                            ag_str *out)
{
    ag_text text = ag_tokenizer_token_text(t, id);
    int byte = bytes ? ag_byte_token(text) : -1;
    if (byte_level) {
        ag_byte_level_unmap(out, text.text, text.n);
    } else if (byte >= 0) {
        ag_str_add_char(out, (char)byte);
    } else if (mark && t->added_of_id[id] < 0) {
        size_t n = mark->pattern.n;
        for (size_t at = 0; at < text.n;) {
            bool hit = n > 0 && at + n <= text.n && memcmp(text.text + at, mark->pattern.text, n) == 0;
            ag_str_add_char(out, hit ? ' ' : text.text[at]);
            at += hit ? n : 1;
        }
    } else if (text.n) {
        ag_str_add_n(out, text.text, text.n);
    }
}

static ag_status build_bytes(ag_tokenizer *t, ag_err *err)
{
    bool byte_level = has_decoder(t, AG_DECODE_BYTE_LEVEL), bytes = has_decoder(t, AG_DECODE_BYTE_FALLBACK);
    const ag_decode_rule *mark = space_mark(t);
    size_t n = (size_t)t->n_ids + 1;
    ag_str blob = {0};
    t->bytes_start = malloc(n * sizeof *t->bytes_start);
    t->bytes_length = malloc(n * sizeof *t->bytes_length);
    if (!t->bytes_start || !t->bytes_length) ag_out_of_memory(n * sizeof *t->bytes_start);
    for (int32_t id = 0; id < t->n_ids; id++) {
        t->bytes_start[id] = (uint32_t)blob.n;
        add_token_bytes(t, id, byte_level, bytes, mark, &blob);
        t->bytes_length[id] = (uint32_t)(blob.n - t->bytes_start[id]);
        if (blob.n > UINT32_MAX / 2) {
            ag_str_free(&blob);
            return ag_fail(err, AG_E_FORMAT, "%s: the texts of the vocabulary take more than 2 GiB", t->name);
        }
    }
    t->byte_fallback_decoder = bytes;
    t->bytes_blob = blob.text ? blob.text : copied("", 0);
    t->byte_level_decoder = t->decoder.n == 1 && t->decoder.rules[0].kind == AG_DECODE_BYTE_LEVEL;
    return AG_OK;
}

/* ---- the fast path --------------------------------------------------------------------------------------------- */
static bool push_scanner(ag_tokenizer *t, ag_split_scanner *scan, bool contiguous)
{
    if (t->n_scanners == AG_FAST_SCANNERS) return false;
    t->scanners[t->n_scanners].scan = scan;
    t->scanners[t->n_scanners++].contiguous = contiguous;
    return true;
}

static bool can_be_fast(ag_tokenizer *t)
{
    const ag_pretokenizer *pre = &t->pretokenizer;
    bool odd_bytes = !t->bpe.all_bytes && (t->bpe.unk_id >= 0 || t->bpe.byte_fallback);
    if (t->kind != AG_MODEL_BPE || odd_bytes || t->bpe.prefix || t->bpe.suffix || pre->n == 0) return false;
    t->fast_nfc = t->normalizer.n == 1 && t->normalizer.rules[0].kind == AG_NORM_NFC;
    if (t->normalizer.n > 0 && !t->fast_nfc) return false;
    for (size_t i = 0; i + 1 < pre->n; i++) {
        const ag_pre_rule *r = &pre->rules[i];
        bool split = r->kind == AG_PRE_SPLIT && r->pattern.scanner && r->behavior == AG_SPLIT_ISOLATED && !r->invert;
        if (!split && r->kind != AG_PRE_DIGITS) return false;
        if (!push_scanner(t, split ? r->pattern.scanner : NULL, r->kind == AG_PRE_DIGITS && !r->individual)) return false;
    }
    const ag_pre_rule *last = &pre->rules[pre->n - 1];
    if (last->kind != AG_PRE_BYTE_LEVEL || last->add_prefix_space) return false;
    return !last->use_regex || (last->pattern.scanner && push_scanner(t, last->pattern.scanner, false));
}

ag_status ag_tokenizer_finish(ag_tokenizer *t, ag_err *err)
{
    AG_TRY(build_tries(t, err));
    ag_tokenizer_index_ids(t);
    AG_TRY(build_bytes(t, err));
    for (size_t s = 0; s < t->post.n; s++) {
        const ag_post_step *step = &t->post.steps[s];
        for (size_t k = 0; k < step->n_before + step->n_after; k++) {
            int32_t id = k < step->n_before ? step->before[k] : step->after[k - step->n_before];
            if (ag_tokenizer_token_text(t, id).text == NULL)
                return ag_fail(err, AG_E_FORMAT, "%s: the post-processor adds the token id %d, which no token has", t->name,
                               (int)id);
        }
    }
    t->fast = can_be_fast(t);
    return AG_OK;
}
