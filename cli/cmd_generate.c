/* agoge generate: one answer to a prompt, a conversation, or a list of ids. */
#include "cli/answering.h"
#include "cli/commands.h"
#include "cli/prompting.h"
#include "cli/terminal.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    cli_model_options model;
    cli_compute_options compute;
    cli_sampling_options sampling;
    cli_format_options format;
    const char *prompt, *messages, *ids;
} options;

static const cli_option table[] = {
    CLI_MODEL_WEIGHTS(options, model),
    CLI_STRING("prompt", options, prompt, "TEXT", "text to go on from", 0),
    CLI_STRING("messages", options, messages, "FILE", "a JSON list of messages, answered through the chat template", 0),
    CLI_STRING("ids", options, ids, "1,2,3", "token ids to go on from", 0),
    CLI_SAMPLING(options, sampling),
    CLI_COMPUTE(options, compute),
    CLI_FORMAT(options, format),
    CLI_END,
};

static ag_status prompt_ids(int32_t **ids, int64_t *n, const options *o, const cli_session *s, ag_arena *arena, ag_err *err)
{
    if (!!o->prompt + !!o->messages + !!o->ids != 1)
        return ag_fail(err, AG_E_USAGE, "agoge generate needs exactly one of --prompt, --messages and --ids");
    if (o->ids) return cli_parse_ids(ids, n, o->ids, arena, err);
    if (o->prompt) return cli_encode(ids, n, s->text, o->prompt, strlen(o->prompt), true, arena, err);
    json_t *messages;
    AG_TRY(cli_load_list(&messages, o->messages, "messages", err));
    ag_status status = cli_encode_messages(ids, n, s->text, messages, arena, err);
    ag_json_free(&messages);
    return status;
}

static bool print_piece(void *user, const char *text, size_t n)
{
    (void)user;
    return fwrite(text, 1, n, stdout) == n && fflush(stdout) == 0;
}

static double rate(int64_t n, uint64_t ns) { return ns > 0 ? (double)n * 1e9 / (double)ns : 0; }

static void print_json(const cli_answer *a)
{
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    ag_jw_object(&w, NULL);
    ag_jw_string_n(&w, "text", a->text.text ? a->text.text : "", a->text.n);
    ag_jw_array(&w, "ids");
    for (int64_t i = 0; i < a->stats.n_new; i++) ag_jw_int(&w, NULL, a->ids[i]);
    ag_jw_end(&w);
    ag_jw_string(&w, "finish_reason", a->finish);
    ag_jw_int(&w, "prompt_tokens", a->stats.n_prompt);
    ag_jw_int(&w, "completion_tokens", a->stats.n_new);
    ag_jw_double(&w, "prefill_tok_s", rate(a->stats.n_prefilled, a->stats.prefill_ns));
    ag_jw_double(&w, "decode_tok_s", rate(a->stats.n_new, a->stats.decode_ns));
    ag_jw_end(&w);
    printf("%s\n", out.text);
    ag_str_free(&out);
}

static ag_status generate(const options *o, cli_session *s, ag_arena *arena, ag_err *err)
{
    int32_t *ids;
    int64_t n;
    AG_TRY(prompt_ids(&ids, &n, o, s, arena, err));
    cli_answerer a;
    AG_TRY(cli_answerer_open(&a, s, n + o->sampling.max_new_tokens, err));
    cli_answer answer;
    const bool is_json = cli_format_is_json(&o->format);
    ag_status status = cli_answer_prompt(&answer, &a, s, &o->sampling, ids, n, is_json ? NULL : print_piece, NULL, err);
    if (!status && is_json) print_json(&answer);
    if (!status && !is_json) printf("\n");
    if (!status && !is_json && cli_stderr_is_terminal())
        fprintf(stderr, "%lld + %lld tokens, %.0f and %.0f tok/s\n", (long long)answer.stats.n_prompt, (long long)answer.stats.n_new,
                rate(answer.stats.n_prefilled, answer.stats.prefill_ns), rate(answer.stats.n_new, answer.stats.decode_ns));
    cli_answer_free(&answer);
    cli_answerer_close(&a);
    return status;
}

static int run(int argc, char **argv)
{
    options o = {.model = CLI_MODEL_DEFAULT, .sampling = CLI_SAMPLING_DEFAULT, .format = CLI_FORMAT_DEFAULT};
    ag_err err;
    cli_session s;
    ag_arena arena = {0};
    CLI_PARSE(&cli_generate, &o, argc, argv);
    ag_status status = cli_session_open(&s, &o.model, &o.compute, CLI_TEXT | CLI_WEIGHTS, &err);
    if (!status) status = generate(&o, &s, &arena, &err);
    cli_session_close(&s);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_generate = {
    .name = "generate", .summary = "one answer to a prompt, a conversation, or a list of ids", .options = table, .run = run};
