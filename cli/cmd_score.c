/* agoge score: how likely a model finds given tokens, or the mean loss over a dataset. */
#include "cli/commands.h"
#include "cli/prompting.h"
#include "cli/terminal.h"

#include "base/fs.h"
#include "base/json.h"
#include "data/batch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    cli_model_options model;
    cli_compute_options compute;
    cli_format_options format;
    const char *ids_file, *file, *text_field;
    int64_t max_seq_length;
    bool assistant_only_loss, completion_only_loss;
} options;

static const cli_option table[] = {
    CLI_MODEL_WEIGHTS(options, model),
    CLI_STRING("ids-file", options, ids_file, "FILE", "a JSON list of ids a line: the log-probability of every id after the first", 0),
    CLI_STRING("file", options, file, "FILE", "rows as train-qlora reads them: loss over supervised tokens", 0),
    CLI_INT("max-seq-length", options, max_seq_length, "N", "cut longer rows of --file (default: the model's context)", 2, 1 << 24),
    CLI_STRING("dataset-text-field", options, text_field, "NAME", "column of plain text rows (default: text)", 0),
    CLI_FLAG("assistant-only-loss", options, assistant_only_loss, "of --file, count the assistant's turns only"),
    CLI_FLAG("completion-only-loss", options, completion_only_loss, "of --file, count what is behind completion_start_char only"),
    CLI_COMPUTE(options, compute),
    CLI_FORMAT(options, format),
    CLI_END,
};

/* ---- --ids-file ---------------------------------------------------------------------------------------------------------- */
typedef struct {
    int32_t *ids, *positions, *targets, *best;
    float *nll;
    int64_t room;
} row_memory;

static void make_room(row_memory *m, int64_t n)
{
    if (n <= m->room) return;
    m->room = n;
    m->ids = realloc(m->ids, (size_t)n * sizeof *m->ids);
    m->positions = realloc(m->positions, (size_t)n * sizeof *m->positions);
    m->targets = realloc(m->targets, (size_t)n * sizeof *m->targets);
    m->best = realloc(m->best, (size_t)n * sizeof *m->best);
    m->nll = realloc(m->nll, (size_t)n * sizeof *m->nll);
    if (!m->ids || !m->positions || !m->targets || !m->best || !m->nll) ag_out_of_memory((size_t)n * 20);
}

static void free_row(row_memory *m)
{
    free(m->ids);
    free(m->positions);
    free(m->targets);
    free(m->best);
    free(m->nll);
}

static ag_status read_row(row_memory *m, int64_t *n, const json_t *row, int64_t V, const char *path, size_t line, ag_err *err)
{
    if (!json_is_array(row) || json_array_size(row) < 1)
        return ag_fail(err, AG_E_DATA, "%s: line %zu: must be a JSON list of at least one id", path, line);
    *n = (int64_t)json_array_size(row);
    make_room(m, *n);
    for (int64_t t = 0; t < *n; t++) {
        const json_t *id = json_array_get(row, (size_t)t);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= V)
            return ag_fail(err, AG_E_DATA, "%s: line %zu: id %lld of the list must be a whole number from 0 to %lld", path, line,
                           (long long)t + 1, (long long)V - 1);
        m->ids[t] = (int32_t)json_integer_value(id);
        m->positions[t] = (int32_t)t;
        m->targets[t] = -1;
        if (t > 0) m->targets[t - 1] = m->ids[t];
    }
    return AG_OK;
}

static void print_row(const row_memory *m, int64_t n)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    double sum = 0;
    ag_jw_object(&w, NULL);
    ag_jw_array(&w, "logprobs");
    for (int64_t i = 0; i + 1 < n; i++) {
        ag_jw_double(&w, NULL, -(double)m->nll[i]);
        sum -= (double)m->nll[i];
    }
    ag_jw_end(&w);
    ag_jw_array(&w, "greedy");
    for (int64_t i = 0; i + 1 < n; i++) ag_jw_bool(&w, NULL, m->best[i] == m->targets[i]);
    ag_jw_end(&w);
    ag_jw_double(&w, "sum", sum);
    ag_jw_end(&w);
    printf("%s\n", out.text);
    ag_str_free(&out);
}

static ag_status score_line(const cli_session *s, ag_decoder **dec, int64_t *dec_rows, row_memory *m, int64_t n, ag_err *err)
{
    if (n > *dec_rows) { /* a decoder for the longest row so far */
        ag_decoder_free(dec);
        AG_TRY(cli_session_decoder(dec, s, n, n, n, err));
        *dec_rows = n;
    }
    const ag_attention_span span = {0, n, 0, n};
    const ag_decoder_batch batch = {.T = n, .ids = m->ids, .positions = m->positions, .targets = m->targets, .spans = &span, .n_spans = 1};
    AG_TRY(ag_decoder_score(*dec, &batch, m->nll, m->best, err));
    print_row(m, n);
    return AG_OK;
}

static ag_status score_ids(const options *o, const cli_session *s, ag_arena *arena, ag_err *err)
{
    char *text;
    size_t n_text, line = 0;
    AG_TRY(cli_read_text(&text, &n_text, o->ids_file, arena, err));
    row_memory m = {0};
    ag_decoder *dec = NULL;
    int64_t dec_rows = 0;
    ag_status status = AG_OK;
    for (char *at = text, *end = text + n_text; !status && at < end;) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        const size_t n_line = (size_t)((newline ? newline : end) - at);
        line++;
        if (strspn(at, " \t\r") < n_line) {
            json_t *row;
            int64_t n = 0;
            status = ag_json_parse(&row, at, n_line, o->ids_file, err);
            if (status) {
                status = ag_err_prefix(err, "line %zu", line);
                break;
            }
            status = read_row(&m, &n, row, s->model->d.V, o->ids_file, line, err);
            ag_json_free(&row);
            if (!status) status = score_line(s, &dec, &dec_rows, &m, n, err);
        }
        at += n_line + 1;
    }
    if (!status && dec_rows == 0) status = ag_fail(err, AG_E_DATA, "%s: has no line with ids", o->ids_file);
    free_row(&m);
    ag_decoder_free(&dec);
    return status;
}

/* ---- --file --------------------------------------------------------------------------------------------------------------- */
static void print_loss(const char *key, int64_t n_rows, int64_t line, int64_t n_targets, double sum, bool is_json)
{
    const double loss = sum / (double)n_targets;
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    ag_jw_object(&w, NULL);
    ag_jw_int(&w, key, line ? line : n_rows);
    ag_jw_int(&w, "supervised_tokens", n_targets);
    ag_jw_double(&w, "loss", loss);
    ag_jw_double(&w, "perplexity", exp(loss));
    ag_jw_end(&w);
    if (is_json)
        printf("%s\n", out.text);
    else
        printf("%s %lld: loss %.4f, perplexity %.3f over %lld supervised tokens\n", key, (long long)(line ? line : n_rows), loss, exp(loss),
               (long long)n_targets);
    ag_str_free(&out);
}

static ag_status score_examples(const options *o, const cli_session *s, const ag_examples *x, ag_err *err)
{
    const bool is_json = cli_format_is_json(&o->format), by_row = strcmp(o->format.name, "jsonl") == 0;
    ag_batch batch;
    ag_decoder *dec = NULL;
    AG_TRY(ag_batch_init(&batch, x, NULL, 1, err));
    float *nll = malloc((size_t)(batch.max_M + 1) * sizeof *nll);
    if (!nll) ag_out_of_memory((size_t)batch.max_M * sizeof *nll);
    ag_status status = cli_session_decoder(&dec, s, batch.max_T, batch.max_M, batch.max_longest, err);
    cli_progress progress;
    cli_progress_begin(&progress, "rows", x->n, 0);
    double sum = 0;
    for (int64_t r = 0; !status && r < x->n; r++) {
        ag_batch_fill(&batch, (ag_row_span){&r, 1});
        const ag_decoder_batch b = {.T = batch.T, .ids = batch.ids, .positions = batch.positions, .targets = batch.targets,
                                    .spans = batch.span, .n_spans = batch.n_spans};
        status = ag_decoder_score(dec, &b, nll, NULL, err);
        double row_sum = 0;
        for (int64_t i = 0; !status && i < batch.M; i++) row_sum += (double)nll[i];
        sum += row_sum;
        if (!status && by_row) print_loss("line", 0, x->line[r], batch.M, row_sum, true);
        if (!status) cli_progress_update(&progress, r + 1, "");
    }
    cli_progress_end(&progress);
    if (!status) print_loss("rows", x->n, 0, x->n_targets, sum, is_json);
    free(nll);
    ag_decoder_free(&dec);
    ag_batch_deinit(&batch);
    return status;
}

static ag_status score_rows(const options *o, const cli_session *s, ag_err *err)
{
    ag_rows *rows;
    ag_examples *x = NULL;
    ag_chat chat = {0};
    if (s->text->chat) AG_TRY(ag_model_text_chat(&chat, s->text, err));
    AG_TRY(ag_rows_open(&rows, o->file, err));
    ag_status status = ag_examples_make(&x, rows, &(ag_examples_options){
        .tokenizer = s->text->tokenizer, .chat = chat.render ? &chat : NULL, .text_field = o->text_field,
        .max_seq_length = o->max_seq_length ? o->max_seq_length : s->model->d.context_length, .n_vocab = s->model->d.V,
        .assistant_only = o->assistant_only_loss, .completion_only = o->completion_only_loss, .n_threads = s->backend.n_threads}, err);
    if (!status && x->n_cut > 0)
        fprintf(stderr, "warning: %lld rows are longer than %lld tokens and were cut\n", (long long)x->n_cut, (long long)o->max_seq_length);
    if (!status) status = score_examples(o, s, x, err);
    ag_examples_free(&x);
    ag_rows_close(&rows);
    return status;
}

static ag_status score(const options *o, const cli_session *s, ag_arena *arena, ag_err *err)
{
    if (!!o->ids_file + !!o->file != 1) return ag_fail(err, AG_E_USAGE, "agoge score needs exactly one of --ids-file and --file");
    return o->ids_file ? score_ids(o, s, arena, err) : score_rows(o, s, err);
}

static int run(int argc, char **argv)
{
    options o = {.model = CLI_MODEL_DEFAULT, .format = CLI_FORMAT_DEFAULT, .text_field = "text"};
    ag_err err;
    cli_session s;
    ag_arena arena = {0};
    CLI_PARSE(&cli_score, &o, argc, argv);
    ag_status status = cli_session_open(&s, &o.model, &o.compute, CLI_WEIGHTS | (o.file ? CLI_TEXT : 0), &err);
    if (!status) status = score(&o, &s, &arena, &err);
    cli_session_close(&s);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_score = {
    .name = "score", .summary = "log-probabilities of ids, or loss and perplexity of a dataset", .options = table, .run = run};
