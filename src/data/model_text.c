#include "data/model_text.h"

#include "base/fs.h"
#include "base/json.h"
#include "format/gguf.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENIZER_BYTES = 256 << 20, MAX_CONFIG_BYTES = 4 << 20 };

/* ---- from a folder ------------------------------------------------------------------------------------------------- */
/* A file that may be missing: then *bytes is NULL. */
static ag_status read_optional(char **bytes, size_t *n, const char *dir, const char *name, ag_arena *arena, ag_err *err)
{
    const char *path = ag_path_join(arena, dir, name);
    *bytes = NULL;
    *n = 0;
    return ag_path_is_file(path) ? ag_file_read(bytes, n, path, MAX_CONFIG_BYTES, arena, err) : AG_OK;
}

/* chat_template of tokenizer_config.json: a text, or a list of {"name", "template"} of which "default" counts. */
static ag_status template_of_config(ag_model_text *text, const char *config, size_t n, const char *name, ag_err *err)
{
    json_t *root;
    AG_TRY(ag_json_parse(&root, config, n, name, err));
    const json_t *value = json_object_get(root, "chat_template");
    const char *source = json_string_value(value);
    for (size_t i = 0; json_is_array(value) && i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        const char *of = json_string_value(json_object_get(item, "name"));
        if (of && strcmp(of, "default") == 0) source = json_string_value(json_object_get(item, "template"));
    }
    if (source) text->chat_source = ag_arena_strdup(&text->arena, source);
    ag_json_free(&root);
    return AG_OK;
}

static ag_status open_folder(ag_model_text *text, const char *dir, ag_err *err)
{
    const char *path = ag_path_join(&text->arena, dir, "tokenizer.json");
    if (!ag_path_is_file(path))
        return ag_fail(err, AG_E_NOT_FOUND, "%s: there is no tokenizer.json; agoge needs it, download it with the model (a "
                       "SentencePiece tokenizer.model alone is not read)", dir);
    char *config, *special, *jinja;
    size_t n_config, n_special, n_jinja;
    AG_TRY(read_optional(&config, &n_config, dir, "tokenizer_config.json", &text->arena, err));
    AG_TRY(read_optional(&special, &n_special, dir, "special_tokens_map.json", &text->arena, err));
    AG_TRY(read_optional(&jinja, &n_jinja, dir, "chat_template.jinja", &text->arena, err));
    ag_map map;
    AG_TRY(ag_map_open(&map, path, err));
    ag_status status = map.n > MAX_TOKENIZER_BYTES
        ? ag_fail(err, AG_E_FORMAT, "%s: has %zu bytes; no tokenizer.json has more than %d", path, map.n, MAX_TOKENIZER_BYTES)
        : ag_tokenizer_from_json(&text->tokenizer, &(ag_tokenizer_files){
              .name = path, .tokenizer = (const char *)map.bytes, .n_tokenizer = map.n, .config = config, .n_config = n_config,
              .special_tokens = special, .n_special_tokens = n_special}, err);
    ag_map_close(&map);
    AG_TRY(status);
    if (config) AG_TRY(template_of_config(text, config, n_config, ag_path_join(&text->arena, dir, "tokenizer_config.json"), err));
    if (jinja) text->chat_source = jinja;
    return AG_OK;
}

/* ---- from a GGUF file ------------------------------------------------------------------------------------------------ */
static ag_status read_texts(const ag_text **out, size_t *n, const ag_gguf *g, const char *key, ag_arena *arena, ag_err *err)
{
    const ag_gguf_text *items;
    AG_TRY(ag_gguf_get_texts(g, key, &items, n, arena, err));
    ag_text *texts = ag_arena_array(arena, *n, sizeof *texts);
    for (size_t i = 0; i < *n; i++) texts[i] = (ag_text){items[i].text, items[i].n};
    *out = texts;
    return AG_OK;
}

static ag_status read_flag(int *out, const ag_gguf *g, const char *key, ag_err *err)
{
    bool value = false;
    *out = -1;
    if (!ag_gguf_pair_of(g, key)) return AG_OK;
    AG_TRY(ag_gguf_get_bool(g, key, &value, err));
    *out = value;
    return AG_OK;
}

static ag_status read_types(ag_gguf_vocab *vocab, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    const int64_t *types;
    size_t n;
    AG_TRY(ag_gguf_get_ints(g, "tokenizer.ggml.token_type", &types, &n, arena, err));
    if (n == 0) return AG_OK;
    if (n != vocab->n_tokens)
        return ag_fail(err, AG_E_FORMAT, "%s: has %zu token types for %zu tokens; the file is damaged", g->path, n, vocab->n_tokens);
    int32_t *narrow = ag_arena_array(arena, n, sizeof *narrow);
    for (size_t i = 0; i < n; i++) narrow[i] = types[i] >= 0 && types[i] <= 6 ? (int32_t)types[i] : 0;
    vocab->types = narrow;
    return AG_OK;
}

static ag_status read_vocab(ag_gguf_vocab *vocab, const ag_gguf *g, ag_arena *arena, ag_err *err)
{
    *vocab = (ag_gguf_vocab){.name = g->path, .bos_id = -1, .eos_id = -1, .pad_id = -1, .unk_id = -1};
    AG_TRY(ag_gguf_get_text(g, "tokenizer.ggml.model", &vocab->model, arena, err));
    if (!vocab->model) return ag_fail(err, AG_E_FORMAT, "%s: has no tokenizer (tokenizer.ggml.model is missing)", g->path);
    AG_TRY(ag_gguf_get_text(g, "tokenizer.ggml.pre", &vocab->pre, arena, err));
    AG_TRY(read_texts(&vocab->tokens, &vocab->n_tokens, g, "tokenizer.ggml.tokens", arena, err));
    AG_TRY(read_texts(&vocab->merges, &vocab->n_merges, g, "tokenizer.ggml.merges", arena, err));
    AG_TRY(read_types(vocab, g, arena, err));
    size_t n_scores;
    AG_TRY(ag_gguf_get_floats(g, "tokenizer.ggml.scores", &vocab->scores, &n_scores, arena, err));
    if (n_scores != 0 && n_scores != vocab->n_tokens)
        return ag_fail(err, AG_E_FORMAT, "%s: has %zu token scores for %zu tokens; the file is damaged", g->path, n_scores, vocab->n_tokens);
    const struct {
        const char *key;
        int64_t *id;
    } ids[] = {{"tokenizer.ggml.bos_token_id", &vocab->bos_id}, {"tokenizer.ggml.eos_token_id", &vocab->eos_id},
               {"tokenizer.ggml.padding_token_id", &vocab->pad_id}, {"tokenizer.ggml.unknown_token_id", &vocab->unk_id}};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        AG_TRY(ag_gguf_get_int(g, ids[i].key, 0, (int64_t)vocab->n_tokens - 1, ids[i].id, err));
    AG_TRY(read_flag(&vocab->add_bos, g, "tokenizer.ggml.add_bos_token", err));
    AG_TRY(read_flag(&vocab->add_eos, g, "tokenizer.ggml.add_eos_token", err));
    return read_flag(&vocab->add_space_prefix, g, "tokenizer.ggml.add_space_prefix", err);
}

static ag_status open_gguf(ag_model_text *text, const char *path, ag_err *err)
{
    ag_gguf g;
    ag_arena arena = {0};
    ag_gguf_vocab vocab;
    AG_TRY(ag_gguf_open(&g, path, err));
    ag_status status = read_vocab(&vocab, &g, &arena, err);
    if (!status) status = ag_tokenizer_from_gguf(&text->tokenizer, &vocab, err);
    if (!status) status = ag_gguf_get_text(&g, "tokenizer.chat_template", &text->chat_source, &text->arena, err);
    ag_arena_free(&arena);
    ag_gguf_close(&g);
    return status;
}

/* ---- both ------------------------------------------------------------------------------------------------------------ */
static void find_specials(ag_model_text *text)
{
    static const char *const names[AG_N_SPECIAL] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    for (int i = 0; i < AG_N_SPECIAL; i++) {
        const char *token = ag_tokenizer_special_text(text->tokenizer, (ag_special)i);
        if (token) text->specials[text->n_specials++] = (ag_chat_special){names[i], token};
    }
}

ag_status ag_model_text_open(ag_model_text **out, const char *path, ag_err *err)
{
    ag_model_text *text = calloc(1, sizeof *text);
    if (!text) ag_out_of_memory(sizeof *text);
    ag_status status = ag_path_is_dir(path) ? open_folder(text, path, err) : open_gguf(text, path, err);
    if (status) {
        ag_model_text_close(&text);
        return status;
    }
    find_specials(text);
    if (text->chat_source &&
        ag_chat_template_compile(&text->chat, text->chat_source, strlen(text->chat_source), path, &text->chat_error))
        text->chat = NULL;
    *out = text;
    return AG_OK;
}

void ag_model_text_close(ag_model_text **text)
{
    if (!text || !*text) return;
    ag_tokenizer_free(&(*text)->tokenizer);
    ag_chat_template_free(&(*text)->chat);
    ag_arena_free(&(*text)->arena);
    free(*text);
    *text = NULL;
}

static ag_status need_template(const ag_model_text *text, ag_err *err)
{
    if (text->chat) return AG_OK;
    if (!text->chat_source)
        return ag_fail(err, AG_E_UNSUPPORTED, "this model has no chat template; give rows of text, or a model that has one");
    if (err) *err = text->chat_error;
    return text->chat_error.code;
}

ag_status ag_model_text_render(const ag_model_text *text, const ag_chat_render_args *args, ag_str *out, ag_chat_marks *marks, ag_err *err)
{
    AG_TRY(need_template(text, err));
    ag_chat_render_args with = *args;
    with.specials = text->specials;
    with.n_specials = text->n_specials;
    return ag_chat_template_render(text->chat, &with, out, marks, err);
}

static ag_status render_for_rows(void *user, const json_t *messages, const json_t *tools, bool add_generation_prompt, ag_str *out,
                                 ag_range_list *marks, ag_err *err)
{
    ag_chat_marks found = {0};
    ag_status status = ag_model_text_render(user, &(ag_chat_render_args){
        .messages = messages, .tools = tools, .add_generation_prompt = add_generation_prompt}, out, marks ? &found : NULL, err);
    for (size_t i = 0; !status && i < found.n; i++) ag_range_list_add(marks, found.range[i].start, found.range[i].end);
    free(found.range);
    return status;
}

ag_status ag_model_text_chat(ag_chat *out, const ag_model_text *text, ag_err *err)
{
    AG_TRY(need_template(text, err));
    *out = (ag_chat){.render = render_for_rows, .user = (void *)text, .marks_assistant = ag_chat_template_has_generation(text->chat)};
    return AG_OK;
}

/* ---- saving ----------------------------------------------------------------------------------------------------------- */
static ag_status copy_files(const char *from, const char *to, ag_err *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                        "chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model"};
    ag_arena arena = {0};
    ag_status status = AG_OK;
    for (size_t i = 0; !status && i < sizeof names / sizeof *names; i++) {
        const char *source = ag_path_join(&arena, from, names[i]);
        if (!ag_path_is_file(source)) continue;
        ag_map map;
        status = ag_map_open(&map, source, err);
        if (status) break;
        status = ag_file_publish(ag_path_join(&arena, to, names[i]), map.bytes, map.n, err);
        ag_map_close(&map);
    }
    ag_arena_free(&arena);
    return status;
}

static ag_status write_files(const ag_model_text *text, const char *dir, ag_err *err)
{
    ag_str tokenizer = {0}, config = {0}, special = {0};
    ag_arena arena = {0};
    ag_status status = ag_tokenizer_write_json(text->tokenizer, &tokenizer, err);
    if (!status) {
        ag_tokenizer_write_config(text->tokenizer, text->chat_source, 0, &config, &special);
        status = ag_file_publish(ag_path_join(&arena, dir, "tokenizer.json"), tokenizer.text, tokenizer.n, err);
    }
    if (!status) status = ag_file_publish(ag_path_join(&arena, dir, "tokenizer_config.json"), config.text, config.n, err);
    if (!status) status = ag_file_publish(ag_path_join(&arena, dir, "special_tokens_map.json"), special.text, special.n, err);
    if (!status && text->chat_source)
        status = ag_file_publish(ag_path_join(&arena, dir, "chat_template.jinja"), text->chat_source, strlen(text->chat_source), err);
    ag_str_free(&tokenizer);
    ag_str_free(&config);
    ag_str_free(&special);
    ag_arena_free(&arena);
    return status;
}

ag_status ag_model_text_save(const ag_model_text *text, const char *path, const char *dir, ag_err *err)
{
    return ag_path_is_dir(path) ? copy_files(path, dir, err) : write_files(text, dir, err);
}
