#define _GNU_SOURCE
/* Every text of a golden file through a tokenizer, compared with what tokenizers made of it:
 *
 *     conform_tokenizer (FOLDER | FILE.gguf) STRINGS.jsonl ENCODINGS.jsonl [DECODE.jsonl]
 *     conform_tokenizer (FOLDER | FILE.gguf) --write FOLDER       tokenizer.json and its small files, as an export writes them
 *     conform_tokenizer (FOLDER | FILE.gguf) --write FILE.gguf    a GGUF file of the vocabulary alone
 *
 * STRINGS has a text a line, ENCODINGS {"ids", "tokens", "offsets"} for each (or "ids" alone: then without special tokens),
 * DECODE {"ids", "text", "text_skip_special"}. Prints how many are equal, the first few that are not, and fails where any is
 * not. */
#include "base/arena.h"
#include "base/fs.h"
#include "base/json.h"
#include "format/gguf.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SHOWN = 5 };

static void die(const ag_err *err)
{
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static ag_tokenizer *from_gguf(const char *path, ag_arena *arena)
{
    ag_err err = {0};
    ag_gguf g;
    ag_tokenizer *t = NULL;
    const ag_gguf_text *tokens, *merges;
    const int64_t *types;
    const float *scores;
    size_t n_types, n_scores;
    ag_gguf_vocab v = {.name = path,
                       .bos_id = -1,
                       .eos_id = -1,
                       .pad_id = -1,
                       .unk_id = -1,
                       .add_bos = -1,
                       .add_eos = -1,
                       .add_space_prefix = -1};
    if (ag_gguf_open(&g, path, &err) || ag_gguf_get_text(&g, "tokenizer.ggml.model", &v.model, arena, &err) ||
        ag_gguf_get_text(&g, "tokenizer.ggml.pre", &v.pre, arena, &err) ||
        ag_gguf_get_texts(&g, "tokenizer.ggml.tokens", &tokens, &v.n_tokens, arena, &err) ||
        ag_gguf_get_texts(&g, "tokenizer.ggml.merges", &merges, &v.n_merges, arena, &err) ||
        ag_gguf_get_ints(&g, "tokenizer.ggml.token_type", &types, &n_types, arena, &err) ||
        ag_gguf_get_floats(&g, "tokenizer.ggml.scores", &scores, &n_scores, arena, &err) ||
        ag_gguf_get_int(&g, "tokenizer.ggml.bos_token_id", 0, INT32_MAX, &v.bos_id, &err) ||
        ag_gguf_get_int(&g, "tokenizer.ggml.eos_token_id", 0, INT32_MAX, &v.eos_id, &err) ||
        ag_gguf_get_int(&g, "tokenizer.ggml.padding_token_id", 0, INT32_MAX, &v.pad_id, &err) ||
        ag_gguf_get_int(&g, "tokenizer.ggml.unknown_token_id", 0, INT32_MAX, &v.unk_id, &err))
        die(&err);
    static const char *const flags[] = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
                                        "tokenizer.ggml.add_space_prefix"};
    int *const to[] = {&v.add_bos, &v.add_eos, &v.add_space_prefix};
    for (int i = 0; i < 3; i++) {
        bool flag = false;
        if (!ag_gguf_pair_of(&g, flags[i])) continue;
        if (ag_gguf_get_bool(&g, flags[i], &flag, &err)) die(&err);
        *to[i] = flag;
    }
    ag_text *texts = ag_arena_array(arena, v.n_tokens + v.n_merges, sizeof *texts);
    int32_t *kinds = ag_arena_array(arena, v.n_tokens, sizeof *kinds);
    for (size_t i = 0; i < v.n_tokens; i++) texts[i] = (ag_text){tokens[i].text, tokens[i].n};
    for (size_t i = 0; i < v.n_merges; i++) texts[v.n_tokens + i] = (ag_text){merges[i].text, merges[i].n};
    for (size_t i = 0; i < v.n_tokens && n_types == v.n_tokens; i++) kinds[i] = (int32_t)types[i];
    v.tokens = texts;
    v.merges = texts + v.n_tokens;
    v.types = n_types == v.n_tokens ? kinds : NULL;
    v.scores = n_scores == v.n_tokens ? scores : NULL;
    if (ag_tokenizer_from_gguf(&t, &v, &err)) die(&err);
    ag_gguf_close(&g);
    return t;
}

static ag_tokenizer *from_folder(const char *folder, ag_arena *arena)
{
    ag_err err = {0};
    ag_tokenizer *t = NULL;
    ag_map map, config = {0};
    char *path = ag_path_join(arena, folder, "tokenizer.json"),
         *config_path = ag_path_join(arena, folder, "tokenizer_config.json");
    if (ag_map_open(&map, path, &err)) die(&err);
    if (ag_path_is_file(config_path) && ag_map_open(&config, config_path, &err)) die(&err);
    ag_tokenizer_files files = {.name = path,
                                .tokenizer = (const char *)map.bytes,
                                .n_tokenizer = map.n,
                                .config = (const char *)config.bytes,
                                .n_config = config.n};
    if (ag_tokenizer_from_json(&t, &files, &err)) die(&err);
    ag_map_close(&map);
    ag_map_close(&config);
    return t;
}

/* The next line as a JSON value; NULL at the end. */
static json_t *next_line(FILE *file, const char *path)
{
    static char *line;
    static size_t room;
    ssize_t n = getline(&line, &room, file);
    if (n <= 0) return NULL;
    json_error_t error;
    json_t *value = json_loadb(line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!value) {
        fprintf(stderr, "%s: %s\n", path, error.text);
        exit(1);
    }
    return value;
}

static FILE *opened(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    return file;
}

static int64_t int_at(const json_t *list, size_t i) { return json_integer_value(json_array_get(list, i)); }

static bool same_encoding(const ag_tokenizer *t, const ag_encoding *e, const json_t *wanted, const char **what)
{
    const json_t *ids = json_object_get(wanted, "ids"), *tokens = json_object_get(wanted, "tokens"),
                 *offsets = json_object_get(wanted, "offsets");
    *what = "ids";
    if (json_array_size(ids) != e->n) return false;
    for (size_t i = 0; i < e->n; i++)
        if (int_at(ids, i) != e->ids[i]) return false;
    if (!offsets) return true;
    *what = "offsets";
    for (size_t i = 0; i < e->n; i++)
        if (int_at(json_array_get(offsets, i), 0) != e->start[i] || int_at(json_array_get(offsets, i), 1) != e->end[i])
            return false;
    *what = "tokens";
    for (size_t i = 0; i < e->n; i++) {
        const json_t *token = json_array_get(tokens, i);
        ag_text shown = ag_encoding_token(t, e, i);
        if (json_string_length(token) != shown.n || memcmp(json_string_value(token), shown.text, shown.n) != 0) return false;
    }
    return true;
}

static void show(const char *what, const json_t *text, const ag_tokenizer *t, const ag_encoding *e, const json_t *wanted)
{
    char *dump = json_dumps(text, JSON_ENCODE_ANY), *want = json_dumps(wanted, JSON_COMPACT);
    printf("  %s differ: %.300s\n    wanted %.600s\n    found ", what, dump, want);
    for (size_t i = 0; e && i < e->n && i < 60; i++)
        printf("%d:%.*s(%u,%u) ", (int)e->ids[i], (int)ag_encoding_token(t, e, i).n, ag_encoding_token(t, e, i).text,
               e->start[i], e->end[i]);
    printf("\n");
    free(dump);
    free(want);
}

static int check_encodings(const ag_tokenizer *t, const char *strings_path, const char *encodings_path)
{
    FILE *strings = opened(strings_path), *encodings = opened(encodings_path);
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_encoding e = {0};
    ag_err err = {0};
    json_t *text, *wanted;
    int n = 0, equal = 0;
    while ((text = next_line(strings, strings_path)) && (wanted = next_line(encodings, encodings_path))) {
        const char *what = "nothing";
        ag_encoding_clear(&e);
        ag_encode_options options = {.add_special = json_object_get(wanted, "offsets") != NULL};
        if (ag_tokenizer_encode(t, scratch, json_string_value(text), json_string_length(text), &options, &e, &err)) die(&err);
        n++;
        if (same_encoding(t, &e, wanted, &what))
            equal++;
        else if (n - equal <= MAX_SHOWN)
            show(what, text, t, &e, wanted);
        json_decref(text);
        json_decref(wanted);
    }
    printf("encodings: %d of %d equal\n", equal, n);
    ag_encoding_free(&e);
    ag_tokenizer_scratch_free(&scratch);
    fclose(strings);
    fclose(encodings);
    return n > 0 && equal == n ? 0 : 1;
}

static bool same_text(const ag_str *found, const json_t *wanted)
{
    return found->n == json_string_length(wanted) &&
           (found->n == 0 || memcmp(found->text, json_string_value(wanted), found->n) == 0);
}

static int check_decodings(const ag_tokenizer *t, const char *path)
{
    FILE *file = opened(path);
    json_t *row;
    int n = 0, equal = 0;
    while ((row = next_line(file, path))) {
        const json_t *list = json_object_get(row, "ids");
        size_t n_ids = json_array_size(list);
        int32_t *ids = malloc((n_ids + 1) * sizeof *ids);
        if (!ids) exit(1);
        for (size_t i = 0; i < n_ids; i++) ids[i] = (int32_t)int_at(list, i);
        for (int skip = 0; skip < 2; skip++) {
            const json_t *wanted = json_object_get(row, skip ? "text_skip_special" : "text");
            ag_str whole = {0}, streamed = {0};
            ag_tokenizer_decode(t, ids, n_ids, skip, &whole);
            ag_decode_stream stream = {.tokenizer = t, .skip_special = skip};
            for (size_t i = 0; i < n_ids; i++) ag_decode_stream_add(&stream, ids[i], &streamed);
            ag_decode_stream_end(&stream, &streamed);
            bool same = same_text(&whole, wanted), same_stream = same_text(&streamed, wanted);
            n++;
            if (same && same_stream) {
                equal++;
            } else if (n - equal <= MAX_SHOWN) {
                show(same ? "streams" : "texts", wanted, t, NULL, list);
                printf("    found %.*s\n", (int)(same ? streamed.n : whole.n), same ? streamed.text : whole.text);
            }
            ag_str_free(&whole);
            ag_str_free(&streamed);
        }
        free(ids);
        json_decref(row);
    }
    printf("decodings: %d of %d equal\n", equal, n);
    fclose(file);
    return n > 0 && equal == n ? 0 : 1;
}

static void need(ag_status status, const ag_err *err)
{
    if (status) die(err);
}

static int write_gguf(const ag_tokenizer *t, const char *path)
{
    ag_err err = {0};
    ag_gguf_vocab v;
    ag_gguf_vocab_owner *keep = NULL;
    ag_gguf_writer w = {0};
    need(ag_tokenizer_to_gguf(t, 0, &v, &keep, &err), &err);
    ag_gguf_put_text(&w, "general.architecture", "llama");
    ag_gguf_put_text(&w, "tokenizer.ggml.model", v.model);
    ag_gguf_put_text(&w, "tokenizer.ggml.pre", v.pre);
    ag_gguf_put_texts(&w, "tokenizer.ggml.tokens", (const ag_gguf_text *)v.tokens, v.n_tokens);
    ag_gguf_put_i32s(&w, "tokenizer.ggml.token_type", v.types, v.n_tokens);
    if (v.scores) ag_gguf_put_f32s(&w, "tokenizer.ggml.scores", v.scores, v.n_tokens);
    if (v.n_merges) ag_gguf_put_texts(&w, "tokenizer.ggml.merges", (const ag_gguf_text *)v.merges, v.n_merges);
    if (v.bos_id >= 0) ag_gguf_put_u32(&w, "tokenizer.ggml.bos_token_id", (uint32_t)v.bos_id);
    if (v.eos_id >= 0) ag_gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", (uint32_t)v.eos_id);
    if (v.pad_id >= 0) ag_gguf_put_u32(&w, "tokenizer.ggml.padding_token_id", (uint32_t)v.pad_id);
    if (v.unk_id >= 0) ag_gguf_put_u32(&w, "tokenizer.ggml.unknown_token_id", (uint32_t)v.unk_id);
    ag_gguf_put_bool(&w, "tokenizer.ggml.add_bos_token", v.add_bos > 0);
    ag_gguf_put_bool(&w, "tokenizer.ggml.add_eos_token", v.add_eos > 0);
    if (v.add_space_prefix >= 0) ag_gguf_put_bool(&w, "tokenizer.ggml.add_space_prefix", v.add_space_prefix > 0);
    need(ag_gguf_writer_begin(&w, path, &err), &err);
    need(ag_gguf_writer_commit(&w, &err), &err);
    ag_gguf_vocab_owner_free(&keep);
    return 0;
}

static int write_out(const ag_tokenizer *t, const char *path, ag_arena *arena)
{
    if (ag_str_ends(path, ".gguf")) return write_gguf(t, path);
    ag_err err = {0};
    ag_str json = {0}, config = {0}, map = {0};
    need(ag_tokenizer_write_json(t, &json, &err), &err);
    ag_tokenizer_write_config(t, NULL, 1 << 20, &config, &map);
    need(ag_make_dirs(path, &err), &err);
    need(ag_file_publish(ag_path_join(arena, path, "tokenizer.json"), json.text, json.n, &err), &err);
    need(ag_file_publish(ag_path_join(arena, path, "tokenizer_config.json"), config.text, config.n, &err), &err);
    need(ag_file_publish(ag_path_join(arena, path, "special_tokens_map.json"), map.text, map.n, &err), &err);
    ag_str_free(&json);
    ag_str_free(&config);
    ag_str_free(&map);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(
            stderr,
            "usage: conform_tokenizer (FOLDER | FILE.gguf) (STRINGS.jsonl ENCODINGS.jsonl [DECODE.jsonl] | --write PATH)\n");
        return 2;
    }
    ag_arena arena = {0};
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    ag_tokenizer *t = ag_path_is_dir(argv[1]) ? from_folder(argv[1], &arena) : from_gguf(argv[1], &arena);
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%s: %d ids, made in %.1f ms\n", argv[1], (int)ag_tokenizer_vocab_size(t),
           (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6);
    bool writes = strcmp(argv[2], "--write") == 0;
    int bad = writes ? write_out(t, argv[3], &arena) : check_encodings(t, argv[2], argv[3]);
    if (argc > 4 && !writes) bad |= check_decodings(t, argv[4]);
    ag_tokenizer_free(&t);
    ag_arena_free(&arena);
    return bad;
}
