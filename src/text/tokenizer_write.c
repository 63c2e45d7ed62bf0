/* A tokenizer on its way out: the files of a model folder, and the arrays of a GGUF file. */
#include "text/pre_names.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

/* ---- tokenizer.json -------------------------------------------------------------------------------------------- */
static ag_status write_value(ag_json_writer *w, const char *key, const char *json, const char *name, ag_err *err)
{
    json_error_t error;
    json_t *value = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!value) return ag_fail(err, AG_E_FORMAT, "%s: the rules under '%s' cannot be written: %s", name, key, error.text);
    ag_jw_value(w, key, value);
    json_decref(value);
    return AG_OK;
}

static int by_id(const void *a, const void *b)
{
    const ag_added_token *x = *(const ag_added_token *const *)a, *y = *(const ag_added_token *const *)b;
    return (x->id > y->id) - (x->id < y->id);
}

static const ag_added_token **added_by_id(const ag_tokenizer *t)
{
    const ag_added_token **list = malloc((t->added.n + 1) * sizeof *list);
    if (!list) ag_out_of_memory(t->added.n * sizeof *list);
    for (size_t i = 0; i < t->added.n; i++) list[i] = &t->added.tokens[i];
    qsort(list, t->added.n, sizeof *list, by_id);
    return list;
}

static void write_added(const ag_tokenizer *t, ag_json_writer *w)
{
    const ag_added_token **list = added_by_id(t);
    ag_jw_array(w, "added_tokens");
    for (size_t i = 0; i < t->added.n; i++) {
        ag_jw_object(w, NULL);
        ag_jw_int(w, "id", list[i]->id);
        ag_jw_string_n(w, "content", list[i]->text, list[i]->n);
        ag_jw_bool(w, "single_word", list[i]->single_word);
        ag_jw_bool(w, "lstrip", list[i]->lstrip);
        ag_jw_bool(w, "rstrip", list[i]->rstrip);
        ag_jw_bool(w, "normalized", list[i]->normalized);
        ag_jw_bool(w, "special", list[i]->special);
        ag_jw_end(w);
    }
    ag_jw_end(w);
    free(list);
}

/* Tokens of a GGUF file keep their ids only as part of the model's vocabulary: tokenizers gives others the next free id. */
static bool in_vocab(const ag_tokenizer *t, int32_t id) { return t->from_gguf || ag_token_vocab_has(&t->vocab, id); }

static void write_vocab(const ag_tokenizer *t, ag_json_writer *w)
{
    bool list = t->kind == AG_MODEL_UNIGRAM;
    if (list)
        ag_jw_array(w, "vocab");
    else
        ag_jw_object(w, "vocab");
    ag_str key = {0};
    for (int32_t id = 0; id < t->n_ids; id++) {
        ag_text text = ag_token_vocab_has(&t->vocab, id) ? (ag_text){t->vocab.blob + t->vocab.start[id], t->vocab.length[id]}
                                                         : ag_tokenizer_token_text(t, id);
        if (!text.text || !in_vocab(t, id)) continue;
        if (list) {
            ag_jw_array(w, NULL);
            ag_jw_string_n(w, NULL, text.text, text.n);
            ag_jw_double(w, NULL, t->unigram.scores[id]);
            ag_jw_end(w);
            continue;
        }
        ag_str_clear(&key);
        ag_str_add_n(&key, text.text, text.n);
        ag_jw_int(w, key.text, id);
    }
    ag_str_free(&key);
    ag_jw_end(w);
}

static void write_merges(const ag_tokenizer *t, ag_json_writer *w)
{
    const ag_token_vocab *v = &t->vocab;
    ag_jw_array(w, "merges");
    for (size_t i = 0; i < t->bpe.n_merges; i++) {
        uint32_t left = (uint32_t)(t->bpe.pairs[i] >> 32), right = (uint32_t)t->bpe.pairs[i];
        ag_jw_array(w, NULL);
        ag_jw_string_n(w, NULL, v->blob + v->start[left], v->length[left]);
        ag_jw_string_n(w, NULL, v->blob + v->start[right], v->length[right]);
        ag_jw_end(w);
    }
    ag_jw_end(w);
}

ag_status ag_tokenizer_write_json(const ag_tokenizer *t, ag_str *tokenizer_json, ag_err *err)
{
    ag_json_writer w = {.out = tokenizer_json, .indent = -1};
    for (size_t id = 0; id < t->vocab.n; id++)
        if (ag_token_vocab_has(&t->vocab, (int64_t)id) && memchr(t->vocab.blob + t->vocab.start[id], 0, t->vocab.length[id]))
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "%s: token %zu holds a NUL character, which cannot be a key of tokenizer.json", t->name, id);
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "version", "1.0");
    ag_jw_null(&w, "truncation");
    ag_jw_null(&w, "padding");
    write_added(t, &w);
    AG_TRY(write_value(&w, "normalizer", t->normalizer_json, t->name, err));
    AG_TRY(write_value(&w, "pre_tokenizer", t->pretokenizer_json, t->name, err));
    AG_TRY(write_value(&w, "post_processor", t->post_json, t->name, err));
    AG_TRY(write_value(&w, "decoder", t->decoder_json, t->name, err));
    json_t *model = json_loads(t->model_json, 0, NULL);
    ag_jw_object(&w, "model");
    const char *key;
    json_t *value;
    json_object_foreach(model, key, value) if (strcmp(key, "vocab") != 0 && strcmp(key, "merges") != 0)
        ag_jw_value(&w, key, value);
    json_decref(model);
    write_vocab(t, &w);
    if (t->kind == AG_MODEL_BPE) write_merges(t, &w);
    ag_jw_end(&w);
    ag_jw_end(&w);
    return AG_OK;
}

/* ---- the small files ------------------------------------------------------------------------------------------- */
static void write_special(const ag_tokenizer *t, ag_json_writer *w)
{
    static const char *const keys[AG_N_SPECIAL] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    for (int i = 0; i < AG_N_SPECIAL; i++)
        if (t->special_text[i]) ag_jw_string(w, keys[i], t->special_text[i]);
}

void ag_tokenizer_write_config(const ag_tokenizer *t, const char *chat_template, int64_t model_max_length,
                               ag_str *tokenizer_config, ag_str *special_tokens_map)
{
    ag_json_writer w = {.out = tokenizer_config, .indent = 2};
    ag_jw_object(&w, NULL);
    ag_jw_bool(&w, "add_prefix_space", false);
    write_special(t, &w);
    if (chat_template) ag_jw_string(&w, "chat_template", chat_template);
    ag_jw_bool(&w, "clean_up_tokenization_spaces", false);
    if (model_max_length > 0) ag_jw_int(&w, "model_max_length", model_max_length);
    ag_jw_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    ag_jw_end(&w);
    ag_str_add_char(tokenizer_config, '\n');

    w = (ag_json_writer){.out = special_tokens_map, .indent = 2};
    ag_jw_object(&w, NULL);
    write_special(t, &w);
    ag_jw_end(&w);
    ag_str_add_char(special_tokens_map, '\n');
}

/* ---- GGUF ------------------------------------------------------------------------------------------------------ */
struct ag_gguf_vocab_owner {
    ag_text *tokens, *merges;
    int32_t *types;
    float *scores;
    ag_str blob; /* texts of merges, and of tokens that fill holes */
};

void ag_gguf_vocab_owner_free(ag_gguf_vocab_owner **keep)
{
    ag_gguf_vocab_owner *k = *keep;
    if (!k) return;
    free(k->tokens);
    free(k->merges);
    free(k->types);
    free(k->scores);
    ag_str_free(&k->blob);
    free(k);
    *keep = NULL;
}

static void *zeroed(size_t n, size_t size)
{
    void *room = calloc(n + 1, size);
    if (!room) ag_out_of_memory(n * size);
    return room;
}

static int32_t gguf_type(const ag_tokenizer *t, int32_t id, ag_text text)
{
    if (id == t->special_id[AG_SPECIAL_UNK] && t->bpe.unk_id == id) return AG_TOKEN_UNKNOWN;
    if (t->added_of_id[id] >= 0) return t->added.tokens[t->added_of_id[id]].special ? AG_TOKEN_CONTROL : AG_TOKEN_USER_DEFINED;
    return t->bpe.byte_fallback && ag_byte_token(text) >= 0 ? AG_TOKEN_BYTE : AG_TOKEN_NORMAL;
}

/* Texts that are made here go to the blob first, as lengths; their places are known when it no longer moves. */
static void fill_tokens(const ag_tokenizer *t, ag_gguf_vocab_owner *k, size_t n)
{
    for (size_t id = 0; id < n; id++) {
        ag_text text = ag_tokenizer_token_text(t, (int32_t)id);
        k->types[id] = text.text ? gguf_type(t, (int32_t)id, text) : AG_TOKEN_UNUSED;
        size_t before = k->blob.n;
        if (!text.text) ag_str_printf(&k->blob, "[PAD%zu]", id);
        k->tokens[id] = text.text ? text : (ag_text){NULL, k->blob.n - before};
        if (k->scores) k->scores[id] = text.text ? -(float)id : -1e4f;
    }
    for (size_t i = 0; k->merges && i < t->bpe.n_merges; i++) {
        const ag_token_vocab *v = &t->vocab;
        uint32_t left = (uint32_t)(t->bpe.pairs[i] >> 32), right = (uint32_t)t->bpe.pairs[i];
        ag_str_add_n(&k->blob, v->blob + v->start[left], v->length[left]);
        ag_str_add_char(&k->blob, ' ');
        ag_str_add_n(&k->blob, v->blob + v->start[right], v->length[right]);
        k->merges[i].n = v->length[left] + (size_t)v->length[right] + 1;
    }
    const char *at = k->blob.text;
    for (size_t id = 0; id < n; id++)
        if (k->types[id] == AG_TOKEN_UNUSED) k->tokens[id].text = at, at += k->tokens[id].n;
    for (size_t i = 0; k->merges && i < t->bpe.n_merges; i++) k->merges[i].text = at, at += k->merges[i].n;
}

static bool is_space_mark(const ag_pattern *p) { return !p->is_regex && p->n == 3 && memcmp(p->text, "\xe2\x96\x81", 3) == 0; }

/* Rules that GGUF's "llama" model stands for: a mark for every space, one in front or not, no cuts. */
static bool is_sentence_piece(const ag_tokenizer *t, bool *prefix)
{
    const ag_normalizer *z = &t->normalizer;
    const ag_pretokenizer *pre = &t->pretokenizer;
    *prefix = false;
    if (!t->bpe.byte_fallback || t->bpe.ignore_merges || t->bpe.prefix || t->bpe.suffix) return false;
    if (pre->n == 1 && z->n == 0 && pre->rules[0].kind == AG_PRE_METASPACE && !pre->rules[0].split &&
        is_space_mark(&pre->rules[0].pattern))
        return *prefix = pre->rules[0].scheme != AG_PREPEND_NEVER, true;
    if (pre->n != 0 || z->n == 0 || z->n > 2) return false;
    const ag_norm_rule *replace = &z->rules[z->n - 1];
    *prefix = z->n == 2;
    if (*prefix && (z->rules[0].kind != AG_NORM_PREPEND || strcmp(z->rules[0].text, "\xe2\x96\x81") != 0)) return false;
    return replace->kind == AG_NORM_REPLACE && !replace->pattern.is_regex && strcmp(replace->pattern.text, " ") == 0 &&
           strcmp(replace->text, "\xe2\x96\x81") == 0;
}

/* "llama" merges by the score of what is made, and the score is the id here: true where later merges make later ids. */
static bool merges_follow_ids(const ag_tokenizer *t)
{
    int32_t last = -1;
    ag_str whole = {0};
    bool follow = true;
    for (size_t i = 0; i < t->bpe.n_merges && follow; i++) {
        const ag_token_vocab *v = &t->vocab;
        uint32_t left = (uint32_t)(t->bpe.pairs[i] >> 32), right = (uint32_t)t->bpe.pairs[i];
        ag_str_clear(&whole);
        ag_str_add_n(&whole, v->blob + v->start[left], v->length[left]);
        ag_str_add_n(&whole, v->blob + v->start[right], v->length[right]);
        int32_t id = ag_token_vocab_find(v, whole.text, whole.n);
        follow = id >= last;
        last = id;
    }
    ag_str_free(&whole);
    return follow;
}

static ag_status name_rules(const ag_tokenizer *t, ag_gguf_vocab *out, ag_err *err)
{
    bool prefix;
    if (t->kind != AG_MODEL_BPE)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: only BPE tokenizers can be written to GGUF", t->name);
    if (is_sentence_piece(t, &prefix)) {
        if (!merges_follow_ids(t))
            return ag_fail(err, AG_E_UNSUPPORTED,
                           "%s: the merges do not follow the ids, so that GGUF's scores cannot stand for them", t->name);
        out->model = "llama";
        out->pre = "default";
        out->add_space_prefix = prefix;
        return AG_OK;
    }
    out->model = "gpt2";
    out->pre = ag_pre_name_for(t);
    if (out->pre) return AG_OK;
    ag_str names = {0};
    ag_pre_names_list(&names);
    ag_status status =
        ag_fail(err, AG_E_UNSUPPORTED, "%s: no GGUF pre-tokenizer name stands for these split rules: %.300s; known are %s",
                t->name, t->pretokenizer_json, names.text);
    ag_str_free(&names);
    return status;
}

ag_status ag_tokenizer_to_gguf(const ag_tokenizer *t, int64_t n_vocab, ag_gguf_vocab *out, ag_gguf_vocab_owner **keep,
                               ag_err *err)
{
    *keep = NULL;
    *out = (ag_gguf_vocab){.name = t->name, .add_space_prefix = -1};
    AG_TRY(name_rules(t, out, err));
    if (n_vocab > AG_VOCAB_MAX_IDS || (n_vocab > 0 && n_vocab < t->n_ids))
        return ag_fail(err, AG_E_SHAPE,
                       "%s: the tokenizer has %d ids, the embedding %lld rows; an embedding must have a row for each", t->name,
                       (int)t->n_ids, (long long)n_vocab);
    size_t n = n_vocab > 0 ? (size_t)n_vocab : (size_t)t->n_ids;
    ag_gguf_vocab_owner *k = zeroed(1, sizeof *k);
    bool scored = strcmp(out->model, "llama") == 0;
    k->tokens = zeroed(n, sizeof *k->tokens);
    k->types = zeroed(n, sizeof *k->types);
    if (scored)
        k->scores = zeroed(n, sizeof *k->scores);
    else
        k->merges = zeroed(t->bpe.n_merges, sizeof *k->merges);
    fill_tokens(t, k, n);
    int32_t affix[1], other[1];
    size_t n_before, n_after;
    ag_tokenizer_affixes(t, affix, &n_before, other, &n_after, 1);
    out->n_tokens = n;
    out->tokens = k->tokens;
    out->types = k->types;
    out->scores = k->scores;
    out->merges = k->merges;
    out->n_merges = scored ? 0 : t->bpe.n_merges;
    out->bos_id = n_before ? affix[0] : t->special_id[AG_SPECIAL_BOS];
    out->eos_id = n_after ? other[0] : t->special_id[AG_SPECIAL_EOS];
    out->pad_id = t->special_id[AG_SPECIAL_PAD];
    out->unk_id = t->special_id[AG_SPECIAL_UNK];
    out->add_bos = n_before > 0;
    out->add_eos = n_after > 0;
    *keep = k;
    return AG_OK;
}
