#define _GNU_SOURCE
#include "cli/prompting.h"

#include "base/fs.h"
#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JSON_BYTES = 64 << 20, MAX_TEXT_BYTES = 1 << 30 };

ag_status cli_parse_ids(int32_t **ids, int64_t *n, const char *text, ag_arena *arena, ag_err *err)
{
    int64_t room = 1;
    for (const char *c = text; *c; c++) room += *c == ',';
    *ids = ag_arena_array(arena, (size_t)room, sizeof **ids);
    *n = 0;
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        const long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id > INT32_MAX || (*end && *end != ','))
            return ag_fail(err, AG_E_USAGE, "--ids is '%s'; give token ids like 1,2,3", text);
        (*ids)[(*n)++] = (int32_t)id;
        if (!*end) return AG_OK;
        at = end + 1;
    }
}

static ag_status encode(int32_t **ids, int64_t *n, const ag_model_text *text, const char *bytes, size_t n_bytes,
                        const ag_encode_options *options, ag_arena *arena, ag_err *err)
{
    ag_encoding e = {0};
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_status status = ag_tokenizer_encode(text->tokenizer, scratch, bytes, n_bytes, options, &e, err);
    if (!status) {
        *n = (int64_t)e.n;
        *ids = ag_arena_array(arena, e.n, sizeof **ids);
        if (e.n) memcpy(*ids, e.ids, e.n * sizeof **ids);
    }
    ag_tokenizer_scratch_free(&scratch);
    ag_encoding_free(&e);
    return status;
}

ag_status cli_encode(int32_t **ids, int64_t *n, const ag_model_text *text, const char *bytes, size_t n_bytes, bool add_special,
                     ag_arena *arena, ag_err *err)
{
    return encode(ids, n, text, bytes, n_bytes, &(ag_encode_options){.add_special = add_special, .ids_only = true}, arena, err);
}

/* Where the messages' contents stand in the rendered text: each is looked for behind the one before. A template that changes a
 * content (trims it, say) is followed as far as its longest unchanged form, the trimmed one. */
static size_t find_contents(ag_text_range *ranges, const json_t *messages, const ag_str *rendered)
{
    size_t n = 0, from = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const char *content = json_string_value(json_object_get(json_array_get(messages, i), "content"));
        if (!content || !*content) continue;
        size_t n_content = strlen(content);
        while (n_content > 0 && strchr(" \t\r\n", content[n_content - 1])) n_content--;
        while (n_content > 0 && strchr(" \t\r\n", *content)) content++, n_content--;
        const char *at = n_content ? memmem(rendered->text + from, rendered->n - from, content, n_content) : NULL;
        if (!at) continue;
        ranges[n] = (ag_text_range){(size_t)(at - rendered->text), (size_t)(at - rendered->text) + n_content};
        from = ranges[n++].end;
    }
    return n;
}

ag_status cli_encode_messages(int32_t **ids, int64_t *n, const ag_model_text *text, const json_t *messages, ag_arena *arena, ag_err *err)
{
    ag_str rendered = {0};
    ag_status status = ag_model_text_render(text, &(ag_chat_render_args){.messages = messages, .add_generation_prompt = true}, &rendered,
                                            NULL, err);
    if (!status) {
        ag_text_range *ranges = ag_arena_array(arena, json_array_size(messages) + 1, sizeof *ranges);
        const size_t n_ranges = find_contents(ranges, messages, &rendered);
        status = encode(ids, n, text, rendered.text, rendered.n,
                        &(ag_encode_options){.ids_only = true, .plain_ranges = ranges, .n_plain_ranges = n_ranges}, arena, err);
    }
    ag_str_free(&rendered);
    return status;
}

ag_status cli_load_list(json_t **list, const char *path, const char *what, ag_err *err)
{
    ag_arena arena = {0};
    char *text;
    size_t n;
    ag_status status = ag_file_read(&text, &n, path, MAX_JSON_BYTES, &arena, err);
    if (!status) status = ag_json_parse_exact(list, text, n, path, err);
    ag_arena_free(&arena);
    if (status) return status;
    if (json_is_array(*list)) return AG_OK;
    ag_json_free(list);
    return ag_fail(err, AG_E_FORMAT, "%s: must be a JSON list of %s", path, what);
}

ag_status cli_read_text(char **text, size_t *n, const char *path, ag_arena *arena, ag_err *err)
{
    if (strcmp(path, "-") != 0) return ag_file_read(text, n, path, MAX_TEXT_BYTES, arena, err);
    ag_str input = {0};
    char piece[65536];
    for (size_t got; (got = fread(piece, 1, sizeof piece, stdin)) > 0 && input.n < MAX_TEXT_BYTES;) ag_str_add_n(&input, piece, got);
    if (ferror(stdin)) {
        ag_str_free(&input);
        return ag_fail(err, AG_E_IO, "standard input could not be read");
    }
    *n = input.n;
    *text = ag_arena_strndup(arena, input.text ? input.text : "", input.n);
    ag_str_free(&input);
    return AG_OK;
}

void cli_print_text(const ag_str *text, const cli_format_options *format)
{
    const char *bytes = text->text ? text->text : "";
    if (!cli_format_is_json(format)) {
        fwrite(bytes, 1, text->n, stdout);
        if (text->n == 0 || bytes[text->n - 1] != '\n') printf("\n");
        return;
    }
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    ag_jw_object(&w, NULL);
    ag_jw_string_n(&w, "text", bytes, text->n);
    ag_jw_end(&w);
    printf("%s\n", out.text);
    ag_str_free(&out);
}
