#include "cli/prompting.h"

#include "base/fs.h"
#include "base/json.h"
#include "data/chat_prompt.h"

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

ag_status cli_encode(int32_t **ids, int64_t *n, const ag_model_text *text, const char *bytes, size_t n_bytes, bool add_special,
                     ag_arena *arena, ag_err *err)
{
    return ag_text_prompt_encode(ids, n, text, bytes, n_bytes, add_special, arena, err);
}

ag_status cli_encode_messages(int32_t **ids, int64_t *n, const ag_model_text *text, const json_t *messages, ag_arena *arena, ag_err *err)
{
    return ag_chat_prompt_encode(ids, n, text, &(ag_chat_render_args){.messages = messages, .add_generation_prompt = true}, arena, err);
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
