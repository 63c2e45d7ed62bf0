/* run-compute-sanitizer: the lab's programs under NVIDIA's compute-sanitizer, each with its log and a verdict that can be kept. */
#include "kernels/tools/bkl_command.h"
#include "kernels/tools/bkl_process.h"

#include "base/digest.h"
#include "base/fs.h"
#include "lab/sanitizer_log.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_LOG_BYTES = 1 << 20, PREVIEW_BYTES = 65536, JOB_LIMIT_S = 900, TOOL_LIMIT_S = 60, MAX_VERSION_BYTES = 512, MAX_LOG_READ = 1 << 30,
       MAX_ARGS = 64 };

typedef struct {
    const char *bin_dir, *out_dir, *tool;
    int64_t max_log_bytes;
    bool suite;
} sanitizer_options;

static const char *const tools[] = {"memcheck", "initcheck", "racecheck", "synccheck", NULL};

/* What the machine is, asked once. */
typedef struct {
    const char *sanitizer;
    char *sanitizer_version, *nvcc_version, *driver, *gpu, *capability; /* NULL: not known */
    const sanitizer_options *options;
    ag_arena *arena;
    json_t *runs, *failures;
} session;

/* Standard output of a program; NULL where it failed or said nothing. */
static char *output_of(const char *const *argv, ag_arena *arena)
{
    ag_str text = {0};
    bkl_exit how;
    ag_err err;
    char *result = NULL;
    if (argv[0] && bkl_process_run(&how, &text, argv, NULL, TOOL_LIMIT_S, &err) == AG_OK && how.exit_code == 0) {
        while (text.n && strchr(" \t\r\n", text.text[text.n - 1])) text.text[--text.n] = 0;
        if (text.n > MAX_VERSION_BYTES) {
            text.n = MAX_VERSION_BYTES - 16;
            text.text[text.n] = 0;
            ag_str_add(&text, "[truncated]");
        }
        if (text.n) result = ag_arena_strndup(arena, text.text, text.n);
    }
    ag_str_free(&text);
    return result;
}

static ag_status ask_machine(session *s, ag_err *err)
{
    s->sanitizer = bkl_program_find("compute-sanitizer", "COMPUTE_SANITIZER", s->arena);
    if (!s->sanitizer) return ag_fail(err, AG_E_NOT_FOUND, "compute-sanitizer not found on PATH or in CUDA's folder; install the CUDA toolkit or set COMPUTE_SANITIZER");
    const char *const version[] = {s->sanitizer, "--version", NULL};
    s->sanitizer_version = output_of(version, s->arena);
    if (!s->sanitizer_version) return ag_fail(err, AG_E_IO, "%s --version says nothing", s->sanitizer);
    const char *const nvcc[] = {bkl_program_find("nvcc", "NVCC", s->arena), "--version", NULL};
    s->nvcc_version = output_of(nvcc, s->arena);
    const char *smi = bkl_program_find("nvidia-smi", "NVIDIA_SMI", s->arena);
    const char *const queries[] = {"--query-gpu=driver_version", "--query-gpu=name", "--query-gpu=compute_cap"};
    char **answers[] = {&s->driver, &s->gpu, &s->capability};
    for (int i = 0; i < 3; i++) {
        const char *const ask[] = {smi, queries[i], "--format=csv,noheader", NULL};
        *answers[i] = output_of(ask, s->arena);
        if (*answers[i]) (*answers[i])[strcspn(*answers[i], "\n")] = 0;
    }
    return AG_OK;
}

static json_t *text_or_null(const char *text) { return text ? json_string(text) : json_null(); }

static void job_failed(session *s, const char *sentence)
{
    fprintf(stderr, "%s\n", sentence);
    json_array_append_new(s->failures, json_string(sentence));
}

/* Cuts the log to its limit and says what it held. */
static ag_status finish_log(const session *s, const char *path, bool *has_summary, int64_t *errors, int64_t *log_bytes, bool *is_cut, ag_err *err)
{
    char *log;
    size_t n;
    ag_arena arena = {0};
    ag_status status = ag_file_read(&log, &n, path, MAX_LOG_READ, &arena, err);
    if (!status) {
        *has_summary = ag_sanitizer_summary(errors, log, n);
        ag_str kept = {0};
        *is_cut = ag_sanitizer_truncate(&kept, log, n, (size_t)s->options->max_log_bytes);
        if (*is_cut) status = ag_file_publish(path, kept.text, kept.n, err);
        *log_bytes = (int64_t)kept.n;
        fwrite(kept.text ? kept.text : "", 1, kept.n < PREVIEW_BYTES ? kept.n : PREVIEW_BYTES, stdout);
        if (kept.n > PREVIEW_BYTES) puts("\n[job-log preview truncated]");
        ag_str_free(&kept);
    }
    ag_arena_free(&arena);
    return status;
}

static ag_status run_job(session *s, const char *tool, const char *binary, const char *const *args, ag_err *err)
{
    const char *name = ag_path_base(binary);
    const char *log = ag_arena_printf(s->arena, "%s/%s-%s.log", s->options->out_dir, tool, name);
    const char *meta = ag_arena_printf(s->arena, "%s/%s-%s.json", s->options->out_dir, tool, name);
    if (!ag_path_is_file(binary)) {
        job_failed(s, ag_arena_printf(s->arena, "%s %s: the program is not there", tool, binary));
        return AG_OK;
    }
    const char *argv[MAX_ARGS + 16] = {s->sanitizer, "--tool", tool, "--error-exitcode", "1", "--print-limit", "50", "--check-exit-code", "yes", binary};
    size_t n = 10;
    for (; *args && n < MAX_ARGS + 10; args++) argv[n++] = *args;
    json_t *command = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(command, json_string(argv[i]));
    bkl_exit how = {0};
    ag_sha256 digest = {{0}};
    bool has_summary = false, is_cut = false;
    int64_t errors = 0, log_bytes = 0;
    ag_status status = ag_sha256_file(&digest, binary, err);
    if (!status) status = bkl_process_run(&how, NULL, argv, log, JOB_LIMIT_S, err);
    if (!status) status = finish_log(s, log, &has_summary, &errors, &log_bytes, &is_cut, err);
    if (status) {
        json_decref(command);
        return status;
    }
    json_t *record = json_pack("{ss ss so s{so} so s{so so} s{ss ss} so si so ss sI sb}", "schema", "bkl.compute_sanitizer.v1", "tool", tool,
                               "sanitizer_version", text_or_null(s->sanitizer_version), "cuda", "nvcc_version", text_or_null(s->nvcc_version),
                               "driver_version", text_or_null(s->driver), "gpu", "name", text_or_null(s->gpu), "compute_cap",
                               text_or_null(s->capability), "binary", "path", binary, "sha256", digest.hex, "command", command, "exit_code",
                               how.exit_code, "error_summary", has_summary ? json_integer(errors) : json_null(), "log_path", log, "log_bytes",
                               (json_int_t)log_bytes, "log_truncated", is_cut);
    json_array_append(s->runs, record);
    status = bkl_json_publish(meta, record, err);
    json_decref(record);
    if (status) return status;
    if (!has_summary)
        job_failed(s, ag_arena_printf(s->arena, "%s: missing ERROR SUMMARY", log));
    else if (errors != 0 || how.exit_code != 0)
        job_failed(s, ag_arena_printf(s->arena, "%s %s: exit_code=%d error_summary=%lld", tool, name, how.exit_code, (long long)errors));
    return AG_OK;
}

static ag_status run_suite(session *s, ag_err *err)
{
    static const struct {
        const char *tool, *binary, *report; /* report NULL: the program takes no arguments */
    } jobs[] = {{"memcheck", "bkl_device_hello", NULL},
                {"initcheck", "bkl_device_hello", NULL},
                {"memcheck", "bkl_graph_launch_bench", "graph-launch-memcheck.json"},
                {"initcheck", "bkl_graph_launch_bench", "graph-launch-initcheck.json"},
                {"memcheck", "bkl_green_ctx_bench", "green-ctx-memcheck.json"}};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        const char *binary = ag_arena_printf(s->arena, "%s/%s", s->options->bin_dir, jobs[i].binary);
        const char *out = jobs[i].report ? ag_arena_printf(s->arena, "%s/%s", s->options->out_dir, jobs[i].report) : NULL;
        const char *const args[] = {out ? "--smoke" : NULL, "--out", out, NULL};
        AG_TRY(run_job(s, jobs[i].tool, binary, args, err));
    }
    const char *path = ag_arena_printf(s->arena, "%s/summary.json", s->options->out_dir);
    json_t *summary = json_pack("{ss sO sO}", "schema", "bkl.compute_sanitizer.suite.v1", "runs", s->runs, "failures", s->failures);
    ag_status status = bkl_json_publish(path, summary, err);
    json_decref(summary);
    return status;
}

static ag_status run_all(session *s, const char *const *command, ag_err *err)
{
    const sanitizer_options *o = s->options;
    if (o->suite && !o->bin_dir) return ag_fail(err, AG_E_CONFIG, "--suite needs --bin-dir: the folder with the lab's programs");
    AG_TRY(ask_machine(s, err));
    AG_TRY(ag_make_dirs(o->out_dir, err));
    return o->suite ? run_suite(s, err) : run_job(s, o->tool, command[0], command + 1, err);
}

static int run(int argc, char **argv)
{
    int own = 0;
    while (own < argc && strcmp(argv[own], "--") != 0) own++;
    sanitizer_options o = {.tool = "memcheck", .max_log_bytes = DEFAULT_LOG_BYTES};
    CLI_PARSE(&bkl_run_compute_sanitizer, &o, own, argv);
    const char *command[MAX_ARGS + 1] = {0};
    for (int i = own + 1; i < argc && i - own - 1 < MAX_ARGS; i++) command[i - own - 1] = argv[i];
    if (o.suite == (command[0] != NULL)) {
        fprintf(stderr, "bkl: give either --suite or a program behind --; see `bkl run-compute-sanitizer --help`\n");
        return 2;
    }
    ag_arena arena = {0};
    session s = {.options = &o, .arena = &arena, .runs = json_array(), .failures = json_array()};
    ag_err err;
    ag_status status = run_all(&s, command, &err);
    const size_t runs = json_array_size(s.runs), failures = json_array_size(s.failures);
    json_decref(s.runs);
    json_decref(s.failures);
    ag_arena_free(&arena);
    if (status) return cli_fail(&err);
    if (failures) return fprintf(stderr, "%zu sanitizer job(s) failed\n", failures), 1;
    printf("%zu sanitizer job(s) clean\n", runs);
    return 0;
}

static const cli_option table[] = {
    CLI_FLAG("suite", sanitizer_options, suite, "the lab's five jobs"),
    CLI_STRING("bin-dir", sanitizer_options, bin_dir, "DIR", "where the lab's programs lie (of --suite)", 0),
    CLI_STRING("out-dir", sanitizer_options, out_dir, "DIR", "logs and verdicts go there", CLI_REQUIRED),
    CLI_CHOICE("tool", sanitizer_options, tool, "TOOL", "the sanitizer's tool (memcheck)", tools),
    CLI_INT("max-log-bytes", sanitizer_options, max_log_bytes, "N", "longest log that is kept (1048576)", 0, MAX_LOG_READ),
    CLI_END};
const cli_command bkl_run_compute_sanitizer = {"run-compute-sanitizer", NULL, "run programs under compute-sanitizer and keep the verdicts",
                                               "One program: bkl run-compute-sanitizer --out-dir DIR [--tool TOOL] -- PROGRAM [ARGUMENTS]", table, run};
