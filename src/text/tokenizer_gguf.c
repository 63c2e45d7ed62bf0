#define _GNU_SOURCE
/* A tokenizer out of the arrays of a GGUF file. The rules that the file names are written in the words of tokenizer.json and
 * read by the same code. */
#include "text/pre_names.h"
#include "text/unicode_class.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

enum { LONGEST_SPLIT = 256 }; /* longer texts of a SentencePiece vocabulary are not taken to be made by merging */

static int type_of(const ag_gguf_vocab *v, size_t id) { return v->types ? v->types[id] : AG_TOKEN_NORMAL; }

/* Control tokens are special; user-defined ones are found in any text; unused ones only fill the embedding. */
static ag_status read_tokens(ag_tokenizer *t, const ag_gguf_vocab *v, ag_err *err)
{
    for (size_t id = 0; id < v->n_tokens; id++) {
        const ag_text *token = &v->tokens[id];
        int type = type_of(v, id);
        if (!ag_utf8_valid(token->text, token->n))
            return ag_fail(err, AG_E_FORMAT, "%s: token %zu of the vocabulary is not UTF-8; the file is damaged", t->name, id);
        if (type == AG_TOKEN_UNUSED || (token->n == 0 && type != AG_TOKEN_NORMAL)) continue;
        if (type != AG_TOKEN_CONTROL && type != AG_TOKEN_USER_DEFINED && type != AG_TOKEN_UNKNOWN) {
            AG_TRY(ag_token_vocab_add(&t->vocab, token->text, token->n, (int64_t)id, t->name, err));
            continue;
        }
        bool special = type != AG_TOKEN_USER_DEFINED;
        ag_added_token added = {.text = token->text, .n = token->n, .id = (int32_t)id, .special = special};
        AG_TRY(ag_tokenizer_add_token_as(t, added, err));
    }
    return AG_OK;
}

static ag_status read_merges(ag_tokenizer *t, const ag_gguf_vocab *v, ag_err *err)
{
    for (size_t i = 0; i < v->n_merges; i++) {
        const ag_text *m = &v->merges[i];
        /* A token may begin with a space only in vocabularies that are not byte-level; the first space behind the first byte.
         */
        const char *space = m->n > 1 ? memchr(m->text + 1, ' ', m->n - 1) : NULL;
        if (!space || i >= UINT32_MAX)
            return ag_fail(err, AG_E_FORMAT, "%s: merge %zu, \"%.*s\", must be two texts with a space between them", t->name, i,
                           (int)(m->n < 60 ? m->n : 60), m->text);
        size_t n_left = (size_t)(space - m->text);
        AG_TRY(ag_bpe_add_merge(&t->bpe, m->text, n_left, space + 1, m->n - n_left - 1, (uint32_t)i, t->name, err));
    }
    return AG_OK;
}

/* ---- SentencePiece: two neighbours merge where the vocabulary has what they make, the best score first --------- */
typedef struct {
    float score;
    int32_t id;
} scored;

static int best_first(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static ag_status merges_of_token(ag_tokenizer *t, int32_t id, uint32_t rank, ag_err *err)
{
    const char *text = t->vocab.blob + t->vocab.start[id];
    size_t n = t->vocab.length[id], bytes;
    if (n > LONGEST_SPLIT) return AG_OK;
    ag_utf8_peek((const unsigned char *)text, 0, &bytes);
    for (size_t at = bytes; at < n; at += bytes) {
        if (ag_token_vocab_find(&t->vocab, text, at) >= 0 && ag_token_vocab_find(&t->vocab, text + at, n - at) >= 0)
            AG_TRY(ag_bpe_add_merge(&t->bpe, text, at, text + at, n - at, rank, t->name, err));
        ag_utf8_peek((const unsigned char *)text, at, &bytes);
    }
    return AG_OK;
}

static ag_status merges_from_scores(ag_tokenizer *t, const ag_gguf_vocab *v, ag_err *err)
{
    scored *list = malloc((v->n_tokens + 1) * sizeof *list);
    if (!list) ag_out_of_memory(v->n_tokens * sizeof *list);
    size_t n = 0;
    ag_status status = AG_OK;
    for (size_t id = 0; id < v->n_tokens && !status; id++) {
        if (!ag_token_vocab_has(&t->vocab, (int64_t)id) || type_of(v, id) == AG_TOKEN_BYTE || t->vocab.length[id] == 0)
            continue;
        if (v->scores[id] != v->scores[id])
            status = ag_fail(err, AG_E_FORMAT, "%s: the score of token %zu is not a number", t->name, id);
        list[n++] = (scored){v->scores[id], (int32_t)id};
    }
    qsort(list, n, sizeof *list, best_first);
    uint32_t rank = 0;
    for (size_t i = 0; i < n && !status; i++) {
        if (i > 0 && list[i].score != list[i - 1].score) rank++;
        status = merges_of_token(t, list[i].id, rank, err);
    }
    free(list);
    return status;
}

/* ---- rules ----------------------------------------------------------------------------------------------------- */
static void add_quoted(ag_str *out, ag_text text)
{
    ag_json_writer w = {.out = out, .indent = -1};
    ag_jw_string_n(&w, NULL, text.text, text.n);
}

static void add_template_item(ag_str *items, ag_str *special, ag_text token, int64_t id)
{
    if (items->n) ag_str_add_char(items, ',');
    ag_str_add(items, "{\"SpecialToken\":{\"id\":");
    add_quoted(items, token);
    ag_str_add(items, ",\"type_id\":0}}");
    ag_str quoted = {0};
    add_quoted(&quoted, token);
    if (!special->n || !strstr(special->text, quoted.text)) {
        if (special->n) ag_str_add_char(special, ',');
        ag_str_printf(special, "%s:{\"id\":%s,\"ids\":[%lld],\"tokens\":[%s]}", quoted.text, quoted.text, (long long)id,
                      quoted.text);
    }
    ag_str_free(&quoted);
}

/* A TemplateProcessing for BOS and EOS, or null. */
static void add_post_processor(const ag_tokenizer *t, bool bos, bool eos, ag_str *out)
{
    if (!bos && !eos) {
        ag_str_add(out, "null");
        return;
    }
    ag_str items = {0}, special = {0};
    int32_t bos_id = t->special_id[AG_SPECIAL_BOS], eos_id = t->special_id[AG_SPECIAL_EOS];
    if (bos) add_template_item(&items, &special, ag_tokenizer_token_text(t, bos_id), bos_id);
    ag_str_printf(&items, "%s{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}", items.n ? "," : "");
    if (eos) add_template_item(&items, &special, ag_tokenizer_token_text(t, eos_id), eos_id);
    ag_str_printf(out,
                  "{\"type\":\"TemplateProcessing\",\"single\":[%s],\"pair\":[%s,{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],"
                  "\"special_tokens\":{%s}}",
                  items.text, items.text, special.text);
    ag_str_free(&items);
    ag_str_free(&special);
}

static ag_status apply_rules(ag_tokenizer *t, const char *normalizer, const char *pretokenizer, const char *decoder, bool bos,
                             bool eos, ag_err *err)
{
    ag_str text = {0};
    json_t *root = NULL;
    ag_str_printf(&text, "{\"normalizer\":%s,\"pre_tokenizer\":%s,\"decoder\":%s,\"post_processor\":", normalizer, pretokenizer,
                  decoder);
    add_post_processor(t, bos, eos, &text);
    ag_str_add_char(&text, '}');
    ag_status status = ag_json_parse(&root, text.text, text.n, t->name, err);
    if (!status) status = ag_tokenizer_set_rules(t, root, err);
    ag_json_free(&root);
    ag_str_free(&text);
    return status;
}

static ag_status set_special(ag_tokenizer *t, const ag_gguf_vocab *v, ag_err *err)
{
    static const char *const names[AG_N_SPECIAL] = {"bos", "eos", "padding", "unknown"};
    const int64_t ids[AG_N_SPECIAL] = {v->bos_id, v->eos_id, v->pad_id, v->unk_id};
    for (int i = 0; i < AG_N_SPECIAL; i++) {
        if (ids[i] < 0) continue;
        if ((uint64_t)ids[i] >= v->n_tokens)
            return ag_fail(err, AG_E_FORMAT, "%s: tokenizer.ggml.%s_token_id is %lld, but the vocabulary has %zu tokens",
                           t->name, names[i], (long long)ids[i], v->n_tokens);
        t->special_id[i] = (int32_t)ids[i];
        t->special_text[i] = strndup(v->tokens[ids[i]].text, v->tokens[ids[i]].n);
        if (!t->special_text[i]) ag_out_of_memory(v->tokens[ids[i]].n);
    }
    return AG_OK;
}

static ag_status byte_level(ag_tokenizer *t, const ag_gguf_vocab *v, ag_err *err)
{
    static const char decoder[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}";
    const ag_pre_name *pre = v->pre ? ag_pre_name_find(v->pre) : NULL;
    if (!pre) {
        ag_str names = {0};
        ag_pre_names_list(&names);
        ag_status status = ag_fail(err, AG_E_UNSUPPORTED,
                                   "%s: tokenizer.ggml.pre is %s%s%s; known are %s. Convert the model again with a "
                                   "current converter, or use its tokenizer.json",
                                   t->name, v->pre ? "'" : "", v->pre ? v->pre : "missing", v->pre ? "'" : "", names.text);
        ag_str_free(&names);
        return status;
    }
    ag_bpe_init(&t->bpe, &t->vocab);
    t->bpe.ignore_merges = pre->ignore_merges;
    AG_TRY(read_merges(t, v, err));
    bool bos = (v->add_bos < 0 ? pre->add_bos : v->add_bos) && t->special_id[AG_SPECIAL_BOS] >= 0;
    bool eos = v->add_eos == 1 && t->special_id[AG_SPECIAL_EOS] >= 0;
    return apply_rules(t, pre->normalizer, pre->pretokenizer, decoder, bos, eos, err);
}

#define MARK "\\u2581"
static ag_status sentence_piece(ag_tokenizer *t, const ag_gguf_vocab *v, ag_err *err)
{
#define TO_MARK "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}"
#define FROM_MARK                                                                                                              \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK                                                                    \
    "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}"
    bool prefix = v->add_space_prefix != 0;
    if (!v->scores)
        return ag_fail(err, AG_E_FORMAT, "%s: tokenizer.ggml.scores is missing, which the model 'llama' needs", t->name);
    ag_bpe_init(&t->bpe, &t->vocab);
    t->bpe.byte_fallback = t->bpe.fuse_unk = true;
    t->bpe.unk_id = t->special_id[AG_SPECIAL_UNK];
    AG_TRY(merges_from_scores(t, v, err));
    bool bos = v->add_bos != 0 && t->special_id[AG_SPECIAL_BOS] >= 0,
         eos = v->add_eos == 1 && t->special_id[AG_SPECIAL_EOS] >= 0;
    return apply_rules(t,
                       prefix ? "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" MARK
                                "\"}," TO_MARK "]}"
                              : TO_MARK,
                       "null",
                       prefix ? "{\"type\":\"Sequence\",\"decoders\":[" FROM_MARK
                                ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"
                              : "{\"type\":\"Sequence\",\"decoders\":[" FROM_MARK "]}",
                       bos, eos, err);
}

static void describe_model(ag_tokenizer *t)
{
    ag_str text = {0};
    ag_json_writer w = {.out = &text, .indent = -1};
    const char *unk = t->bpe.unk_id >= 0 ? t->special_text[AG_SPECIAL_UNK] : NULL;
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "type", "BPE");
    ag_jw_null(&w, "dropout");
    ag_jw_string(&w, "unk_token", unk);
    ag_jw_null(&w, "continuing_subword_prefix");
    ag_jw_null(&w, "end_of_word_suffix");
    ag_jw_bool(&w, "fuse_unk", t->bpe.fuse_unk);
    ag_jw_bool(&w, "byte_fallback", t->bpe.byte_fallback);
    ag_jw_bool(&w, "ignore_merges", t->bpe.ignore_merges);
    ag_jw_end(&w);
    t->model_json = text.text;
}

static ag_status read_all(ag_tokenizer *t, const ag_gguf_vocab *v, ag_err *err)
{
    const char *model = v->model ? v->model : "";
    bool gpt2 = strcmp(model, "gpt2") == 0;
    if (!gpt2 && strcmp(model, "llama") != 0)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: tokenizer.ggml.model is '%s'; known are 'gpt2' (byte-level BPE) and 'llama' "
                       "(SentencePiece BPE)",
                       t->name, model);
    if (v->n_tokens == 0 || v->n_tokens > AG_VOCAB_MAX_IDS)
        return ag_fail(err, AG_E_FORMAT, "%s: a vocabulary of %zu tokens makes no sense", t->name, v->n_tokens);
    t->kind = AG_MODEL_BPE;
    t->from_gguf = true;
    AG_TRY(read_tokens(t, v, err));
    ag_tokenizer_index_ids(t);
    AG_TRY(set_special(t, v, err));
    AG_TRY(gpt2 ? byte_level(t, v, err) : sentence_piece(t, v, err));
    describe_model(t);
    return ag_tokenizer_finish(t, err);
}

ag_status ag_tokenizer_from_gguf(ag_tokenizer **out, const ag_gguf_vocab *vocab, ag_err *err)
{
    ag_tokenizer *t = ag_tokenizer_new(vocab->name);
    ag_status status = read_all(t, vocab, err);
    if (status) ag_tokenizer_free(&t);
    *out = t;
    return status;
}
