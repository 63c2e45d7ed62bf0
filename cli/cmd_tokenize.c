/* agoge tokenize and detokenize: text to ids and back. */
#include "cli/commands.h"
#include "cli/prompting.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>

/* ---- tokenize --------------------------------------------------------------------------------------------------------- */
typedef struct {
    cli_model_options model;
    cli_format_options format;
    const char *text, *file;
    bool no_special;
} tokenize_options;

static const cli_option tokenize_table[] = {
    CLI_MODEL(tokenize_options, model),
    CLI_STRING("text", tokenize_options, text, "TEXT", "what to tokenize", 0),
    CLI_STRING("file", tokenize_options, file, "FILE", "a file to tokenize as one text, - for standard input", 0),
    CLI_FLAG("no-special", tokenize_options, no_special, "without the special tokens that the tokenizer adds"),
    CLI_FORMAT(tokenize_options, format),
    CLI_END,
};

static void print_encoding(const ag_tokenizer *t, const ag_encoding *e, bool is_json)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    ag_jw_object(&w, NULL);
    ag_jw_array(&w, "ids");
    for (size_t i = 0; i < e->n; i++) ag_jw_int(&w, NULL, e->ids[i]);
    ag_jw_end(&w);
    ag_jw_array(&w, "tokens");
    for (size_t i = 0; i < e->n; i++) {
        const ag_text token = ag_encoding_token(t, e, i);
        ag_jw_string_n(&w, NULL, token.text, token.n);
    }
    ag_jw_end(&w);
    ag_jw_array(&w, "offsets");
    for (size_t i = 0; i < e->n; i++) {
        ag_jw_array(&w, NULL);
        ag_jw_int(&w, NULL, e->start[i]);
        ag_jw_int(&w, NULL, e->end[i]);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_jw_end(&w);
    if (is_json)
        printf("%s\n", out.text);
    else
        for (size_t i = 0; i < e->n; i++) {
            const ag_text token = ag_encoding_token(t, e, i);
            printf("%7d  %.*s\n", e->ids[i], (int)token.n, token.text);
        }
    ag_str_free(&out);
}

static ag_status tokenize(const tokenize_options *o, const cli_session *s, ag_arena *arena, ag_err *err)
{
    if (!!o->text + !!o->file != 1) return ag_fail(err, AG_E_USAGE, "agoge tokenize needs exactly one of --text and --file");
    char *text = (char *)o->text;
    size_t n = text ? strlen(text) : 0;
    if (o->file) AG_TRY(cli_read_text(&text, &n, o->file, arena, err));
    ag_encoding e = {0};
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_status status = ag_tokenizer_encode(s->text->tokenizer, scratch, text, n, &(ag_encode_options){.add_special = !o->no_special}, &e, err);
    if (!status) print_encoding(s->text->tokenizer, &e, cli_format_is_json(&o->format));
    ag_tokenizer_scratch_free(&scratch);
    ag_encoding_free(&e);
    return status;
}

static int run_tokenize(int argc, char **argv)
{
    tokenize_options o = {.model = CLI_MODEL_DEFAULT, .format = CLI_FORMAT_DEFAULT};
    ag_err err;
    cli_session s;
    ag_arena arena = {0};
    CLI_PARSE(&cli_tokenize, &o, argc, argv);
    ag_status status = cli_session_open(&s, &o.model, &(cli_compute_options){0}, CLI_TEXT, &err);
    if (!status) status = tokenize(&o, &s, &arena, &err);
    cli_session_close(&s);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_tokenize = {.name = "tokenize", .summary = "token ids of a text", .options = tokenize_table, .run = run_tokenize};

/* ---- detokenize ------------------------------------------------------------------------------------------------------- */
typedef struct {
    cli_model_options model;
    cli_format_options format;
    const char *ids;
    bool skip_special;
} detokenize_options;

static const cli_option detokenize_table[] = {
    CLI_MODEL(detokenize_options, model),
    CLI_STRING("ids", detokenize_options, ids, "1,2,3", "token ids", CLI_REQUIRED),
    CLI_FLAG("skip-special", detokenize_options, skip_special, "leave special tokens out"),
    CLI_FORMAT(detokenize_options, format),
    CLI_END,
};

static int run_detokenize(int argc, char **argv)
{
    detokenize_options o = {.model = CLI_MODEL_DEFAULT, .format = CLI_FORMAT_DEFAULT};
    ag_err err;
    cli_session s;
    ag_arena arena = {0};
    ag_str text = {0};
    int32_t *ids;
    int64_t n = 0;
    CLI_PARSE(&cli_detokenize, &o, argc, argv);
    ag_status status = cli_session_open(&s, &o.model, &(cli_compute_options){0}, CLI_TEXT, &err);
    if (!status) status = cli_parse_ids(&ids, &n, o.ids, &arena, &err);
    if (!status) {
        ag_tokenizer_decode(s.text->tokenizer, ids, (size_t)n, o.skip_special, &text);
        cli_print_text(&text, &o.format);
    }
    ag_str_free(&text);
    cli_session_close(&s);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_detokenize = {
    .name = "detokenize", .summary = "text of token ids", .options = detokenize_table, .run = run_detokenize};
