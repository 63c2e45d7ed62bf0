#define _GNU_SOURCE
/* Reading tokenizer.json and the files beside it. Vocabulary and merges, nearly all of the file, are read in place; what is
 * left is small and goes through the JSON library. */
#include "text/json_walk.h"
#include "text/tokenizer_parts.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *start, *end;
} part;

typedef struct {
    part vocab, merges;
    ag_str rest; /* the file with null in their place */
} parts;

/* ---- taking the file apart ------------------------------------------------------------------------------------- */
/* The values of two keys of the object that comes next; {NULL} where a key is missing. */
static ag_status find_keys(ag_json_walk *w, const char *const keys[2], part *const found[2])
{
    ag_str key = {0};
    ag_status status = ag_json_walk_byte(w, '{');
    bool first = true;
    while (!status && !ag_json_walk_take(w, '}')) {
        if (!first) status = ag_json_walk_byte(w, ',');
        first = false;
        if (!status) status = ag_json_walk_string(w, &key);
        if (!status) status = ag_json_walk_byte(w, ':');
        if (status) break;
        ag_json_walk_peek(w);
        const char *start = w->at;
        status = ag_json_walk_skip(w);
        for (int i = 0; i < 2 && !status; i++) {
            if (!keys[i] || key.n != strlen(keys[i]) || memcmp(key.text, keys[i], key.n) != 0) continue;
            if (found[i]->start) status = ag_fail(w->err, AG_E_FORMAT, "%s: the key '%s' stands twice", w->name, keys[i]);
            *found[i] = (part){start, w->at};
        }
    }
    ag_str_free(&key);
    return status;
}

static ag_status take_apart(parts *p, const char *text, size_t n, const char *name, ag_err *err)
{
    part model = {0}, unused = {0};
    ag_json_walk w = {text, text, text + n, name, err};
    AG_TRY(find_keys(&w, (const char *[]){"model", NULL}, (part *[]){&model, &unused}));
    if (!model.start || *model.start != '{')
        return ag_fail(err, AG_E_FORMAT, "%s: has no 'model'; a tokenizer.json of Hugging Face tokenizers was expected", name);
    w.at = model.start;
    w.end = model.end;
    AG_TRY(find_keys(&w, (const char *[]){"vocab", "merges"}, (part *[]){&p->vocab, &p->merges}));
    if (!p->vocab.start) return ag_fail(err, AG_E_FORMAT, "%s: the model has no 'vocab'", name);
    const part *first = &p->vocab, *second = &p->merges;
    if (second->start && second->start < first->start) first = &p->merges, second = &p->vocab;
    ag_str_add_n(&p->rest, text, (size_t)(first->start - text));
    ag_str_add(&p->rest, "null");
    if (second->start) {
        ag_str_add_n(&p->rest, first->end, (size_t)(second->start - first->end));
        ag_str_add(&p->rest, "null");
        first = second;
    }
    ag_str_add_n(&p->rest, first->end, (size_t)(text + n - first->end));
    return AG_OK;
}

/* ---- vocabularies ---------------------------------------------------------------------------------------------- */
static ag_status read_vocab_object(ag_tokenizer *t, ag_json_walk *w, ag_str *key)
{
    AG_TRY(ag_json_walk_byte(w, '{'));
    if (ag_json_walk_take(w, '}')) return AG_OK;
    do {
        int64_t id;
        AG_TRY(ag_json_walk_string(w, key));
        AG_TRY(ag_json_walk_byte(w, ':'));
        AG_TRY(ag_json_walk_int(w, &id));
        AG_TRY(ag_token_vocab_add(&t->vocab, key->text ? key->text : "", key->n, id, w->name, w->err));
    } while (ag_json_walk_take(w, ','));
    return ag_json_walk_byte(w, '}');
}

/* Unigram: [[text, score], …], ids by position. */
static ag_status read_vocab_list(ag_tokenizer *t, ag_json_walk *w, ag_str *key, double **scores)
{
    size_t room = 0, n = 0;
    AG_TRY(ag_json_walk_byte(w, '['));
    if (ag_json_walk_take(w, ']')) return AG_OK;
    do {
        double score;
        AG_TRY(ag_json_walk_byte(w, '['));
        AG_TRY(ag_json_walk_string(w, key));
        AG_TRY(ag_json_walk_byte(w, ','));
        AG_TRY(ag_json_walk_double(w, &score));
        AG_TRY(ag_json_walk_byte(w, ']'));
        if (key->n > AG_UNIGRAM_MAX_BYTES)
            return ag_fail(w->err, AG_E_UNSUPPORTED, "%s: token %zu has %zu bytes; %d are the most", w->name, n, key->n,
                           AG_UNIGRAM_MAX_BYTES);
        AG_TRY(ag_token_vocab_add_again(&t->vocab, key->text ? key->text : "", key->n, (int64_t)n, w->name, w->err));
        if (n == room) {
            room = room ? room * 2 : 1024;
            *scores = realloc(*scores, room * sizeof **scores);
            if (!*scores) ag_out_of_memory(room * sizeof **scores);
        }
        (*scores)[n++] = score;
    } while (ag_json_walk_take(w, ','));
    return ag_json_walk_byte(w, ']');
}

/* ["a", "b"] or, in older files, "a b". */
static ag_status read_merge(ag_tokenizer *t, ag_json_walk *w, ag_str *left, ag_str *right, uint32_t rank)
{
    if (ag_json_walk_take(w, '[')) {
        AG_TRY(ag_json_walk_string(w, left));
        AG_TRY(ag_json_walk_byte(w, ','));
        AG_TRY(ag_json_walk_string(w, right));
        AG_TRY(ag_json_walk_byte(w, ']'));
        return ag_bpe_add_merge(&t->bpe, left->text ? left->text : "", left->n, right->text ? right->text : "", right->n, rank,
                                w->name, w->err);
    }
    AG_TRY(ag_json_walk_string(w, left));
    const char *space = left->n ? memchr(left->text, ' ', left->n) : NULL;
    size_t at = space ? (size_t)(space - left->text) : 0;
    if (!space || memchr(space + 1, ' ', left->n - at - 1))
        return ag_fail(w->err, AG_E_FORMAT, "%s: merge %u, \"%.60s\", must be two texts with one space between them", w->name,
                       rank, left->text ? left->text : "");
    return ag_bpe_add_merge(&t->bpe, left->text, at, space + 1, left->n - at - 1, rank, w->name, w->err);
}

static ag_status read_merges(ag_tokenizer *t, ag_json_walk *w)
{
    ag_str left = {0}, right = {0};
    ag_status status = ag_json_walk_byte(w, '[');
    uint32_t rank = 0;
    if (!status && !ag_json_walk_take(w, ']')) {
        do status = read_merge(t, w, &left, &right, rank++);
        while (!status && ag_json_walk_take(w, ','));
        if (!status) status = ag_json_walk_byte(w, ']');
    }
    ag_str_free(&left);
    ag_str_free(&right);
    return status;
}

/* ---- models ---------------------------------------------------------------------------------------------------- */
static char *copy_text(const char *text)
{
    char *copy = strdup(text);
    if (!copy) ag_out_of_memory(strlen(text) + 1);
    return copy;
}

static ag_status read_bpe(ag_tokenizer *t, const json_t *model, const parts *p, ag_err *err)
{
    ag_bpe *b = &t->bpe;
    const char *unk = NULL, *prefix = NULL, *suffix = NULL;
    double dropout = 0;
    ag_bpe_init(b, &t->vocab);
    AG_TRY(ag_json_get_string(model, "unk_token", &unk, t->name, err));
    AG_TRY(ag_json_get_string(model, "continuing_subword_prefix", &prefix, t->name, err));
    AG_TRY(ag_json_get_string(model, "end_of_word_suffix", &suffix, t->name, err));
    AG_TRY(ag_json_get_bool(model, "fuse_unk", &b->fuse_unk, t->name, err));
    AG_TRY(ag_json_get_bool(model, "byte_fallback", &b->byte_fallback, t->name, err));
    AG_TRY(ag_json_get_bool(model, "ignore_merges", &b->ignore_merges, t->name, err));
    AG_TRY(ag_json_get_double(model, "dropout", &dropout, t->name, err));
    if (dropout != 0)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: BPE dropout (%g) makes every tokenization a random one; set 'dropout' to null", t->name, dropout);
    if (prefix && *prefix) b->prefix = copy_text(prefix);
    if (suffix && *suffix) b->suffix = copy_text(suffix);
    if (unk) {
        t->unk_token = copy_text(unk);
        b->unk_id = ag_token_vocab_find(&t->vocab, unk, strlen(unk));
        if (b->unk_id < 0 && !b->all_bytes)
            return ag_fail(err, AG_E_FORMAT, "%s: the unknown token '%s' is not in the vocabulary", t->name, unk);
    }
    if (!p->merges.start) return ag_fail(err, AG_E_FORMAT, "%s: the BPE model has no 'merges'", t->name);
    ag_json_walk w = {p->merges.start, p->merges.start, p->merges.end, t->name, err};
    return read_merges(t, &w);
}

static ag_status read_wordpiece(ag_tokenizer *t, const json_t *model, bool whole_words, ag_err *err)
{
    ag_wordpiece *p = &t->wordpiece;
    const char *unk = whole_words ? "<unk>" : "[UNK]", *prefix = "##";
    int64_t most = 100;
    AG_TRY(ag_json_get_string(model, "unk_token", &unk, t->name, err));
    AG_TRY(ag_json_get_string(model, "continuing_subword_prefix", &prefix, t->name, err));
    AG_TRY(ag_json_get_int(model, "max_input_chars_per_word", 0, AG_WORDPIECE_MAX_CHARS, &most, t->name, err));
    *p = (ag_wordpiece){.vocab = &t->vocab, .prefix = copy_text(prefix), .max_chars = (size_t)most, .whole_words = whole_words};
    t->unk_token = copy_text(unk);
    p->unk_id = ag_token_vocab_find(&t->vocab, unk, strlen(unk));
    return AG_OK;
}

static ag_status read_unigram(ag_tokenizer *t, const json_t *model, double *scores, ag_err *err)
{
    int64_t unk_id = -1;
    bool byte_fallback = false;
    ag_status status = ag_json_get_int(model, "unk_id", 0, INT32_MAX, &unk_id, t->name, err);
    if (!status) status = ag_json_get_bool(model, "byte_fallback", &byte_fallback, t->name, err);
    if (!status && unk_id >= 0 && !ag_token_vocab_has(&t->vocab, unk_id))
        status = ag_fail(err, AG_E_FORMAT, "%s: unk_id %lld is not in the vocabulary of %zu tokens", t->name, (long long)unk_id,
                         t->vocab.n);
    if (status) {
        free(scores);
        return status;
    }
    ag_unigram_init(&t->unigram, &t->vocab, scores, (int32_t)unk_id, byte_fallback);
    if (unk_id >= 0) {
        ag_text unk = {t->vocab.blob + t->vocab.start[unk_id], t->vocab.length[unk_id]};
        t->unk_token = strndup(unk.text, unk.n);
        if (!t->unk_token) ag_out_of_memory(unk.n);
    }
    return AG_OK;
}

static ag_status read_model(ag_tokenizer *t, const json_t *model, const parts *p, ag_err *err)
{
    ag_json_walk w = {p->vocab.start, p->vocab.start, p->vocab.end, t->name, err};
    bool list = *p->vocab.start == '[';
    const char *type = p->merges.start ? "BPE" : list ? "Unigram" : "WordPiece"; /* old files do not say */
    AG_TRY(ag_json_get_string(model, "type", &type, t->name, err));
    bool bpe = strcmp(type, "BPE") == 0, unigram = strcmp(type, "Unigram") == 0, level = strcmp(type, "WordLevel") == 0;
    if (!bpe && !unigram && !level && strcmp(type, "WordPiece") != 0)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: the model '%s' is not known; known are BPE, Unigram, WordPiece and WordLevel", t->name, type);
    t->kind = bpe ? AG_MODEL_BPE : unigram ? AG_MODEL_UNIGRAM : level ? AG_MODEL_WORDLEVEL : AG_MODEL_WORDPIECE;
    double *scores = NULL;
    ag_str key = {0};
    ag_status status = unigram ? read_vocab_list(t, &w, &key, &scores) : read_vocab_object(t, &w, &key);
    ag_str_free(&key);
    if (status) {
        free(scores);
        return status;
    }
    t->model_json = json_dumps(model, JSON_COMPACT);
    if (!t->model_json) ag_out_of_memory(0);
    if (unigram) return read_unigram(t, model, scores, err);
    return bpe ? read_bpe(t, model, p, err) : read_wordpiece(t, model, level, err);
}

/* ---- special tokens -------------------------------------------------------------------------------------------- */
/* A text, or an object with the text as its content. */
static const char *token_text(const json_t *value)
{
    const char *text = json_string_value(value);
    return text ? text : json_string_value(json_object_get(value, "content"));
}

static ag_status read_special(ag_tokenizer *t, const char *bytes, size_t n, const char *what, ag_err *err)
{
    static const char *const keys[AG_N_SPECIAL] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    json_t *root = NULL;
    ag_str name = {0};
    if (!bytes) return AG_OK;
    ag_str_printf(&name, "%s of %s", what, t->name);
    ag_status status = ag_json_parse(&root, bytes, n, name.text, err);
    ag_str_free(&name);
    if (status) return status;
    for (int i = 0; i < AG_N_SPECIAL; i++) {
        const char *text = token_text(json_object_get(root, keys[i]));
        if (!text || t->special_text[i]) continue;
        t->special_text[i] = copy_text(text);
        t->special_id[i] = ag_tokenizer_token_id(t, text, strlen(text));
    }
    ag_json_free(&root);
    return AG_OK;
}

static ag_status read_all(ag_tokenizer *t, const ag_tokenizer_files *files, parts *p, json_t **root, ag_err *err)
{
    AG_TRY(take_apart(p, files->tokenizer, files->n_tokenizer, t->name, err));
    AG_TRY(ag_json_parse(root, p->rest.text, p->rest.n, t->name, err));
    AG_TRY(read_model(t, json_object_get(*root, "model"), p, err));
    AG_TRY(ag_tokenizer_set_rules(t, *root, err));
    AG_TRY(ag_tokenizer_finish(t, err));
    AG_TRY(read_special(t, files->config, files->n_config, "tokenizer_config.json", err));
    AG_TRY(read_special(t, files->special_tokens, files->n_special_tokens, "special_tokens_map.json", err));
    if (!t->special_text[AG_SPECIAL_UNK] && t->unk_token) {
        t->special_text[AG_SPECIAL_UNK] = copy_text(t->unk_token);
        t->special_id[AG_SPECIAL_UNK] = ag_tokenizer_token_id(t, t->unk_token, strlen(t->unk_token));
    }
    return AG_OK;
}

ag_status ag_tokenizer_from_json(ag_tokenizer **out, const ag_tokenizer_files *files, ag_err *err)
{
    *out = NULL;
    ag_tokenizer *t = ag_tokenizer_new(files->name);
    parts p = {0};
    json_t *root = NULL;
    ag_status status = read_all(t, files, &p, &root, err);
    ag_json_free(&root);
    ag_str_free(&p.rest);
    if (status) ag_tokenizer_free(&t);
    *out = t;
    return status;
}
