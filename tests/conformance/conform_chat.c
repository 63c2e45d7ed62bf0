/* Renders many chat templates over many conversations and compares every text with what transformers made of it.
 *
 *     conform_chat CHAT.jsonl CONVERSATIONS.jsonl TEMPLATES_FOLDER      rows {"template", "conversation", "text" or
 * "error"+"kind", "generation"} conform_chat UNITS.jsonl                                          rows {"template": source,
 * "kwargs", "text" or "error"+"kind"}
 *
 * Special tokens and the date are those of the goldens: <s>, </s>, </s>, 2026-03-07. Prints each difference and the counts;
 * exit status 1 when there is one. */
#include "base/json.h"
#include "text/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int n_same, n_different, n_shown;

static char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *text = malloc((size_t)size + 1);
    *n = fread(text, 1, (size_t)size, f);
    text[*n] = 0;
    fclose(f);
    return text;
}

/* One JSON value a line. */
static json_t *read_lines(const char *path)
{
    size_t n;
    char *text = read_all(path, &n);
    if (!text) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(2);
    }
    json_t *rows = json_array();
    for (char *line = text, *end; line < text + n; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + n - line));
        if (!end) end = text + n;
        json_t *row;
        ag_err err;
        if (end == line) continue;
        if (ag_json_parse_exact(&row, line, (size_t)(end - line), path, &err)) {
            fprintf(stderr, "%s\n", err.text);
            exit(2);
        }
        json_array_append_new(rows, row);
    }
    free(text);
    return rows;
}

static size_t code_points(const char *text, size_t n) { return ag_utf8_count(text, n); }

static bool same_marks(const json_t *row, const ag_chat_marks *marks, const ag_str *text)
{
    const json_t *wanted = json_object_get(row, "generation");
    if (!wanted) return true;
    if (json_array_size(wanted) != marks->n) return false;
    for (size_t i = 0; i < marks->n; i++) {
        const json_t *pair = json_array_get(wanted, i);
        if ((size_t)json_integer_value(json_array_get(pair, 0)) != code_points(text->text, marks->range[i].start)) return false;
        if ((size_t)json_integer_value(json_array_get(pair, 1)) != code_points(text->text, marks->range[i].end)) return false;
    }
    return true;
}

static void compare(const char *title, const json_t *row, const char *source, size_t n, const ag_chat_render_args *args)
{
    ag_chat_template *t;
    ag_str text = {0};
    ag_chat_marks marks = {0};
    ag_err err = {0};
    ag_status status = ag_chat_template_compile(&t, source, n, "chat_template.jinja", &err);
    if (!status) status = ag_chat_template_render(t, args, &text, &marks, &err);
    const json_t *wanted = json_object_get(row, "text");
    const char *kind = json_string_value(json_object_get(row, "kind")),
               *error = json_string_value(json_object_get(row, "error"));
    bool same;
    if (wanted)
        same = !status && text.n == json_string_length(wanted) && !memcmp(text.text, json_string_value(wanted), text.n) &&
               same_marks(row, &marks, &text);
    else if (!strcmp(kind, "raise_exception"))
        same = status && !strncmp(err.text, error, strlen(error));
    else
        same = status && !strncmp(err.text, "chat_template.jinja: ", 21);
    n_same += same;
    n_different += !same;
    if (!same && n_shown++ < 40) {
        size_t at = 0;
        const char *w = wanted ? json_string_value(wanted) : NULL;
        while (w && !status && at < text.n && w[at] && text.text[at] == w[at]) at++;
        at = at > 30 ? at - 30 : 0;
        printf("%s\n  wanted: %s%.120s\n  found:  %s%.120s\n", title, w ? "" : kind,
               w && strlen(w) > at ? w + at
               : w                 ? ""
                                   : error,
               status ? "error " : "", status ? err.text : text.text + at);
    }
    /* the class of the error, where Python's is no syntax error */
    if (same && status && !wanted && strcmp(kind, "raise_exception") && !strstr(err.text, kind))
        printf("%s\n  (error of class %s, ours: %s)\n", title, kind, err.text);
    free(marks.range);
    ag_str_free(&text);
    ag_chat_template_free(&t);
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: conform_chat CHAT.jsonl CONVERSATIONS.jsonl TEMPLATES_FOLDER | conform_chat UNITS.jsonl\n");
        return 2;
    }
    static const ag_chat_special specials[] = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "</s>"}};
    json_t *rows = read_lines(argv[1]), *conversations = argc == 4 ? read_lines(argv[2]) : NULL,
           *hi = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *template = json_string_value(json_object_get(row, "template"));
        ag_chat_render_args args = {.messages = hi,
                                    .variables = json_object_get(row, "kwargs"),
                                    .specials = specials,
                                    .n_specials = 3,
                                    .date = "2026-03-07"};
        if (!conversations) {
            compare(template, row, template, json_string_length(json_object_get(row, "template")), &args);
            continue;
        }
        const char *name = json_string_value(json_object_get(row, "conversation"));
        const json_t *c = NULL;
        for (size_t k = 0; k < json_array_size(conversations); k++)
            if (!strcmp(name, json_string_value(json_object_get(json_array_get(conversations, k), "name"))))
                c = json_array_get(conversations, k);
        char path[4096], title[512];
        size_t n;
        snprintf(path, sizeof path, "%s/%s", argv[3], template);
        snprintf(title, sizeof title, "%s × %s", template, name);
        char *source = read_all(path, &n);
        if (!source || !c) {
            fprintf(stderr, "no %s or no conversation %s\n", path, name);
            return 2;
        }
        args.messages = json_object_get(c, "messages");
        args.tools = json_object_get(c, "tools");
        args.documents = json_object_get(c, "documents");
        args.variables = json_object_get(c, "kwargs");
        args.add_generation_prompt = json_is_true(json_object_get(c, "add_generation_prompt"));
        compare(title, row, source, n, &args);
        free(source);
    }
    printf("%d of %d as transformers\n", n_same, n_same + n_different);
    json_decref(rows);
    json_decref(conversations);
    json_decref(hi);
    return n_different > 0;
}
