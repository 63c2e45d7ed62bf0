/* agoge's device path under the emulator: five steps of a tiny model with the losses of the CPU, resume to the bit, and what a device
 * cannot do refused in a sentence. Runs the real binary (AGOGE_BIN) with --device emu. */
#define _GNU_SOURCE
#include "support/op_check.h"
#include "support/scratch_dir.h"
#include "support/tiny_folder.h"

#include "base/fs.h"
#include "base/json.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir;

static void write_config(const char *name, const char *more)
{
    ag_err err;
    ag_str s = {0};
    char path[512];
    ag_str_printf(&s, "model_id: %s/model\ndataset_path: rows.jsonl\noutput_dir: %s/out\nlogging_dir: %s/log-%s\nrun_name: %s\nmax_seq_length: 64\n"
                  "lora_r: 8\nlora_alpha: 16\nlearning_rate: 0.01\nbatch_size: 2\ngradient_accumulation_steps: 2\nmax_steps: 5\n"
                  "target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]\n%s",
                  dir, dir, dir, name, name, more);
    snprintf(path, sizeof path, "%s/%s.yaml", dir, name);
    if (ag_file_publish(path, s.text, s.n, &err)) fail_msg("%s", err.text);
    ag_str_free(&s);
}

/* `agoge COMMAND --config <name>.yaml --device <device> …more`; what it says goes to <name>.err. Returns the exit code. */
static int run(const char *command, const char *name, const char *device, const char *more)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char config[512], words[512];
        const char *argv[] = {getenv("AGOGE_BIN"), command, "--config", config, "--device", device, "--threads", "1", more ? "--set" : NULL, more, NULL};
        snprintf(config, sizeof config, "%s/%s.yaml", dir, name);
        snprintf(words, sizeof words, "%s/%s.err", dir, name);
        if (chdir(dir) || !freopen(words, "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(99);
        execv(argv[0], (char *const *)argv);
        _exit(98);
    }
    int status;
    assert_true(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static char *read_file(const char *path, size_t *n, ag_arena *arena)
{
    ag_err err;
    char *text;
    if (ag_file_read(&text, n, path, 8 << 20, arena, &err)) fail_msg("%s", err.text);
    return text;
}

static void expect(const char *command, const char *name, const char *device, const char *more, int code, const char *words)
{
    const int got = run(command, name, device, more);
    ag_arena arena = {0};
    size_t n;
    const char *said = read_file(scratch_path(ag_arena_printf(&arena, "%s.err", name)), &n, &arena);
    if (got != code || !strstr(said, words)) fail_msg("exit code %d (want %d), and '%s' in: %s", got, code, words, said);
    ag_arena_free(&arena);
}

typedef struct {
    double loss[16], grad_norm[16], eval_loss;
    int n;
} record;

static record metrics_of(const char *name)
{
    ag_err err;
    ag_arena arena = {0};
    record r = {0};
    size_t n;
    char *text = read_file(scratch_path(ag_arena_printf(&arena, "log-%s/metrics.jsonl", name)), &n, &arena);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *root;
        if (ag_json_parse(&root, line, strlen(line), "metrics", &err)) fail_msg("%s", err.text);
        const json_t *loss = json_object_get(root, "loss");
        if (loss) {
            r.loss[r.n] = json_number_value(loss);
            r.grad_norm[r.n++] = json_number_value(json_object_get(root, "grad_norm"));
        } else {
            r.eval_loss = json_number_value(json_object_get(root, "eval_loss"));
        }
        ag_json_free(&root);
    }
    ag_arena_free(&arena);
    return r;
}

/* bf16 activations keep 8 bits; over two layers and a mean of some fifty rows the losses agree to a few thousandths. */
static const double loss_tolerance = 6e-3, norm_tolerance = 2e-2;

static void compare_with_cpu(const char *cpu, const char *emu, const char *more)
{
    write_config(cpu, more);
    write_config(emu, more);
    expect("train-qlora", cpu, "cpu", NULL, 0, "compute");
    expect("train-qlora", emu, "emu", NULL, 0, "bkl emulated");
    const record a = metrics_of(cpu), b = metrics_of(emu);
    assert_int_equal(5, a.n);
    assert_int_equal(5, b.n);
    for (int i = 0; i < 5; i++) {
        if (!(fabs(a.loss[i] - b.loss[i]) <= loss_tolerance * a.loss[i])) fail_msg("%s, step %d: loss %.6f on the CPU, %.6f on the device", emu, i + 1, a.loss[i], b.loss[i]);
        if (!(fabs(a.grad_norm[i] - b.grad_norm[i]) <= norm_tolerance * a.grad_norm[i]))
            fail_msg("%s, step %d: gradient norm %.6f on the CPU, %.6f on the device", emu, i + 1, a.grad_norm[i], b.grad_norm[i]);
    }
    assert_true(a.loss[4] < a.loss[0]);
    assert_true(fabs(a.eval_loss - b.eval_loss) <= loss_tolerance * a.eval_loss);
}

static void five_steps_have_the_losses_of_the_cpu(void **state)
{
    (void)state;
    compare_with_cpu("nf4-cpu", "nf4-emu", "load_in_4bit: true\neval_dataset_path: rows.jsonl\nlora_dropout: 0.2\n");
}

static void packed_rows_and_weights_in_bf16_do_too(void **state)
{
    (void)state;
    compare_with_cpu("bf16-cpu", "bf16-emu", "load_in_4bit: false\nlora_dropout: 0\npacking: true\nweight_decay: 0.1\neval_dataset_path: rows.jsonl\n");
}

static void norms_of_heads_do_too(void **state)
{
    (void)state;
    tiny_folder_make_wide_qwen3(dir);
    compare_with_cpu("qwen3-cpu", "qwen3-emu", "load_in_4bit: true\neval_dataset_path: rows.jsonl\n");
    tiny_folder_make_wide(dir);
}

static void a_run_that_stops_and_resumes_ends_with_the_same_bytes(void **state)
{
    (void)state;
    static const char same[] = "save_steps: 3\nlr_scheduler_type: constant\nresume_from_latest_checkpoint: true\n";
    write_config("whole", same);
    write_config("parts", same);
    expect("train-qlora", "whole", "emu", NULL, 0, "");
    expect("train-qlora", "parts", "emu", "max_steps=3", 0, "");
    expect("train-qlora", "parts", "emu", NULL, 0, "resuming");
    ag_arena arena = {0};
    size_t n, m;
    const char *a = read_file(scratch_path("out/whole/adapter_model.safetensors"), &n, &arena);
    const char *b = read_file(scratch_path("out/parts/adapter_model.safetensors"), &m, &arena);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    const record of_whole = metrics_of("whole"), of_parts = metrics_of("parts");
    for (int i = 0; i < 5; i++) assert_true(of_whole.loss[i] == of_parts.loss[i]);
    ag_arena_free(&arena);
}

static void what_a_device_cannot_do_is_refused(void **state)
{
    (void)state;
    write_config("refused", "");
    expect("train-qlora", "refused", "emu", "load_in_4bit=false", 1, "lora_dropout: 0");
    expect("train-qlora", "refused", "emu", "lora_r=4", 1, "multiples of 8");
    expect("train-qlora", "refused", "emu", "bnb_4bit_compute_dtype=float32", 1, "bf16 operands");
    expect("train-qlora", "refused", "emu", "use_dora=true", 1, "does not train DoRA");
    expect("train-qlora", "refused", "emu", "optim=adamw_8bit", 1, "adamw_torch");
    expect("train-qlora", "refused", "gpu", NULL, 2, "cpu, cuda, emu");
    setenv("AGOGE_BKL_LIBRARY", "/nowhere/libbkl.so", 1);
    expect("train-qlora", "refused", "cuda", NULL, 1, "kernel library cannot be loaded"); /* never the CPU instead */
    unsetenv("AGOGE_BKL_LIBRARY");
}

static void a_plan_for_a_device_needs_none(void **state)
{
    (void)state;
    write_config("plan", "");
    expect("plan", "plan", "emu", NULL, 0, "");
    expect("plan", "plan", "cuda", NULL, 0, "");
}

static int make_folder(void **state)
{
    (void)state;
    dir = scratch_dir_create();
    tiny_folder_make_wide(dir);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    scratch_dir_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(five_steps_have_the_losses_of_the_cpu),
        cmocka_unit_test(packed_rows_and_weights_in_bf16_do_too),
        cmocka_unit_test(norms_of_heads_do_too),
        cmocka_unit_test(a_run_that_stops_and_resumes_ends_with_the_same_bytes),
        cmocka_unit_test(what_a_device_cannot_do_is_refused),
        cmocka_unit_test(a_plan_for_a_device_needs_none),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
