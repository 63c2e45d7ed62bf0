/* agoge smoke-eval: three fixed prompts through an adapter, to see that it loads and speaks. A toy; held-out-eval measures. */
#include "cli/answering.h"
#include "cli/commands.h"
#include "cli/prompting.h"
#include "cli/session.h"

#include "base/fs.h"
#include "base/json.h"
#include "eval/held_out.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const char *adapter;
    bool trust_remote_code, allow_unsafe;
    cli_compute_options compute;
    cli_format_options format;
} options;

static const cli_option table[] = {
    CLI_STRING("adapter-path", options, adapter, "DIR", "a LoRA adapter in PEFT's layout that names its base", CLI_REQUIRED),
    CLI_FLAG("trust-remote-code", options, trust_remote_code, "refused: agoge runs no code of a model"),
    CLI_FLAG("allow-unsafe-serialization", options, allow_unsafe, "go on where files that may hold code lie in the folder"),
    CLI_COMPUTE(options, compute),
    CLI_FORMAT(options, format),
    CLI_END,
};

static const char *const prompts[] = {"The capital of France is", "def reverse_string(text):\n",
                                      "A short list of prime numbers:"};
enum { N_PROMPTS = sizeof prompts / sizeof *prompts, NEW_TOKENS = 50 };
static const char result_dir[] = "runs/smoke_eval_run", result_file[] = "runs/smoke_eval_run/smoke_eval.json";

static ag_status answer(ag_json_writer *w, const char *prompt, const cli_session *s, ag_arena *arena, ag_err *err)
{
    int32_t *ids;
    int64_t n;
    cli_answerer answerer;
    cli_answer result;
    const cli_sampling_options greedy = {.max_new_tokens = NEW_TOKENS, .top_p = 1, .repeat_penalty = 1};
    AG_TRY(cli_encode(&ids, &n, s->text, prompt, strlen(prompt), true, arena, err));
    AG_TRY(cli_answerer_open(&answerer, s, n + NEW_TOKENS, err));
    ag_status status = cli_answer_prompt(&result, &answerer, s, &greedy, ids, n, NULL, NULL, err);
    if (!status) {
        ag_jw_object(w, NULL);
        ag_jw_string(w, "prompt", prompt);
        ag_jw_string_n(w, "response", result.text.text ? result.text.text : "", result.text.n);
        ag_jw_end(w);
    }
    cli_answer_free(&result);
    cli_answerer_close(&answerer);
    return status;
}

static ag_status answer_all(ag_str *out, const cli_session *s, ag_arena *arena, ag_err *err)
{
    ag_json_writer w = {.out = out, .indent = 2, .ascii = true};
    ag_status status = AG_OK;
    ag_jw_array(&w, NULL);
    for (int i = 0; i < N_PROMPTS && !status; i++) status = answer(&w, prompts[i], s, arena, err);
    if (status) return status;
    ag_jw_end(&w);
    ag_str_add_char(out, '\n');
    AG_TRY(ag_make_dirs(result_dir, err));
    return ag_file_publish(result_file, out->text, out->n, err);
}

static ag_status evaluate(const options *o, ag_str *out, ag_arena *arena, ag_err *err)
{
    char *dir;
    ag_peft_config config;
    cli_session s;
    if (o->trust_remote_code)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "--trust-remote-code: agoge runs no code that comes with a model; leave the option out");
    AG_TRY(ag_path_existing_dir(&dir, o->adapter, arena, err));
    if (!o->allow_unsafe) AG_TRY(ag_refuse_unsafe_weights(dir, err));
    AG_TRY(ag_peft_config_load(&config, dir, arena, err));
    if (!config.base_model || !*config.base_model)
        return ag_fail(
            err, AG_E_DATA,
            "%s: adapter_config.json names no base model (base_model_name_or_path); write it in, or train the adapter with "
            "a tool that does",
            dir);
    const cli_model_options model = {.model = config.base_model, .revision = config.revision, .adapter = dir, .dtype = "f32"};
    AG_TRY(cli_session_open(&s, &model, &o->compute, CLI_TEXT | CLI_WEIGHTS, err));
    ag_status status = answer_all(out, &s, arena, err);
    cli_session_close(&s);
    return status;
}

static int run(int argc, char **argv)
{
    options o = {.format = CLI_FORMAT_DEFAULT};
    ag_err err;
    ag_arena arena = {0};
    ag_str out = {0};
    CLI_PARSE(&cli_smoke_eval, &o, argc, argv);
    ag_status status = evaluate(&o, &out, &arena, &err);
    if (!status && cli_format_is_json(&o.format))
        printf("%s", out.text);
    else if (!status)
        printf("%d answers in %s\n", N_PROMPTS, result_file);
    ag_str_free(&out);
    ag_arena_free(&arena);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_smoke_eval = {.name = "smoke-eval",
                                    .summary = "three fixed prompts through an adapter: does it load and speak?",
                                    .options = table,
                                    .run = run};
