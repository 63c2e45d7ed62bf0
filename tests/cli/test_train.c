/* The program trains, is stopped and killed, and goes on: what it leaves must be the same to the bit as if nothing had happened, and never
 * half. Runs the real binary (AGOGE_BIN). */
#define _GNU_SOURCE
#include "support/op_check.h"
#include "support/scratch_dir.h"
#include "support/tiny_folder.h"

#include "base/fs.h"
#include "base/str.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir;

static void write_config(const char *name, const char *more)
{
    ag_err err;
    ag_str s = {0};
    char path[512];
    ag_str_printf(&s, "model_id: %s/model\ndataset_path: rows.jsonl\noutput_dir: %s/out\nlogging_dir: %s/log-%s\nrun_name: %s\n"
                  "max_seq_length: 64\nlora_r: 4\nlearning_rate: 0.01\n%s", dir, dir, dir, name, name, more);
    snprintf(path, sizeof path, "%s/%s.yaml", dir, name);
    if (ag_file_publish(path, s.text, s.n, &err)) fail_msg("%s", err.text);
    ag_str_free(&s);
}

/* Starts `agoge train-qlora --config <name>.yaml …more` in the scratch folder; its words go to <name>.err. */
static pid_t start(const char *name, const char *const *more)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    char config[512], words[512];
    const char *argv[32] = {getenv("AGOGE_BIN"), "train-qlora", "--config", config};
    int n = 4;
    snprintf(config, sizeof config, "%s/%s.yaml", dir, name);
    snprintf(words, sizeof words, "%s/%s.err", dir, name);
    while (more && *more) argv[n++] = *more++;
    if (chdir(dir) || !freopen(words, "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(99);
    execv(argv[0], (char *const *)argv);
    _exit(98);
}

static int finish(pid_t child)
{
    int status;
    assert_true(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static char *words_of(const char *name, ag_arena *arena)
{
    ag_err err;
    char path[512], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/%s.err", dir, name);
    if (ag_file_read(&text, &n, path, 1 << 20, arena, &err)) fail_msg("%s", err.text);
    return text;
}

static void expect(const char *name, const char *const *more, int code)
{
    const int got = finish(start(name, more));
    ag_arena arena = {0};
    if (got != code) fail_msg("exit code %d, want %d: %s", got, code, words_of(name, &arena));
    ag_arena_free(&arena);
}

static void expect_words(const char *name, const char *words)
{
    ag_arena arena = {0};
    const char *text = words_of(name, &arena);
    if (!strstr(text, words)) fail_msg("'%s' is not in: %s", words, text);
    ag_arena_free(&arena);
}

static void expect_same_file(const char *a, const char *b, const char *file)
{
    ag_err err;
    ag_map x, y;
    char path[512];
    snprintf(path, sizeof path, "%s/out/%s/%s", dir, a, file);
    if (ag_map_open(&x, path, &err)) fail_msg("%s", err.text);
    snprintf(path, sizeof path, "%s/out/%s/%s", dir, b, file);
    if (ag_map_open(&y, path, &err)) fail_msg("%s", err.text);
    assert_true(x.n > 100);
    if (x.n != y.n || memcmp(x.bytes, y.bytes, x.n) != 0) fail_msg("%s of %s and %s differ", file, a, b);
    ag_map_close(&x);
    ag_map_close(&y);
}

static void wait_for(const char *run, int step)
{
    char path[512];
    snprintf(path, sizeof path, "%s/out/%s/checkpoint-%d", dir, run, step);
    for (int i = 0; i < 20000 && access(path, F_OK) != 0; i++) usleep(100);
}

static char **names_in(const char *run, size_t *n, ag_arena *arena)
{
    ag_err err;
    char path[512], **names;
    snprintf(path, sizeof path, "%s/out/%s", dir, run);
    if (ag_dir_list(&names, n, path, arena, &err)) fail_msg("%s", err.text);
    return names;
}

/* The optimizer's state of the checkpoints that both runs still have. */
static void expect_same_checkpoints(const char *a, const char *b)
{
    ag_arena arena = {0};
    size_t n, n_compared = 0;
    char **names = names_in(a, &n, &arena), path[512], file[128];
    for (size_t i = 0; i < n; i++) {
        if (!ag_str_starts(names[i], "checkpoint-")) continue;
        snprintf(file, sizeof file, "%s/optimizer.pt", names[i]);
        snprintf(path, sizeof path, "%s/out/%s/%s", dir, b, file);
        if (access(path, F_OK) != 0) continue;
        expect_same_file(a, b, file);
        n_compared++;
    }
    assert_true(n_compared > 0);
    ag_arena_free(&arena);
}

static const char *const RESUME[] = {"--set", "resume_from_latest_checkpoint=true", NULL};

/* Stopped three times by signals behind different checkpoints and resumed with other numbers of threads, against the run that never
 * stopped. */
static void check_resume(const char *name, int save_steps, const char *more)
{
    char whole[64], parts[64];
    snprintf(whole, sizeof whole, "%s-whole", name);
    snprintf(parts, sizeof parts, "%s-parts", name);
    write_config(whole, more);
    write_config(parts, more);
    expect(whole, (const char *const[]){"--threads", "1", NULL}, 0);
    for (int stop = 1; stop <= 3; stop++) {
        const pid_t child = start(parts, (const char *const[]){"--threads", stop % 2 ? "2" : "1", RESUME[0], RESUME[1], NULL});
        wait_for(parts, 2 * stop * save_steps);
        kill(child, stop == 2 ? SIGTERM : SIGINT);
        const int code = finish(child);
        if (code == 0) break; /* it was faster than the signal; what it left is compared all the same */
        if (code == -SIGINT || code == -SIGTERM) continue; /* the signal was faster: the checkpoint was there before the program listened */
        assert_int_equal(code, stop == 2 ? 143 : 130);
    }
    expect(parts, RESUME, 0);
    expect_same_file(whole, parts, "adapter_model.safetensors");
    expect_same_checkpoints(whole, parts);
}

static void a_stopped_run_goes_on_to_the_same_bits(void **state)
{
    (void)state;
    check_resume("plain", 2, "gradient_accumulation_steps: 1\nsave_steps: 2\nnum_train_epochs: 4\nlora_dropout: 0.0\n");
    check_resume("dropout", 1, "gradient_accumulation_steps: 3\nsave_steps: 1\nnum_train_epochs: 6\nlora_dropout: 0.2\nlr_scheduler_type: cosine\n");
    check_resume("packed", 1, "gradient_accumulation_steps: 2\nsave_steps: 1\nnum_train_epochs: 8\npacking: true\nload_in_4bit: false\nbf16: false\n");
    check_resume("batch", 2, "batch_size: 3\ngradient_accumulation_steps: 2\nsave_steps: 2\nnum_train_epochs: 8\nwarmup_steps: 2\n"
                             "bnb_4bit_compute_dtype: float32\ngradient_checkpointing: false\n");
    check_resume("dora", 1, "use_dora: true\nlora_dropout: 0.1\nneftune_noise_alpha: 5\ngradient_accumulation_steps: 3\nsave_steps: 1\n"
                            "num_train_epochs: 6\nrank_pattern: {q_proj: 3}\n");
    check_resume("saved", 1, "modules_to_save: [lm_head, embed_tokens, norm]\noptim: adamw_8bit\nloraplus_lr_ratio: 8\nbias: all\n"
                             "weight_decay: 0.1\ngradient_accumulation_steps: 3\nsave_steps: 1\nnum_train_epochs: 6\n");
}

static void fifty_kills_lose_no_checkpoint(void **state)
{
    (void)state;
    static const char more[] = "gradient_accumulation_steps: 1\nsave_steps: 1\nnum_train_epochs: 8\nsave_total_limit: 2\n";
    write_config("unhurt", more);
    write_config("killed", more);
    expect("unhurt", NULL, 0);
    uint32_t random = 1;
    int n_killed = 0;
    for (int i = 0; i < 50; i++) {
        const pid_t child = start("killed", RESUME);
        random = random * 1664525u + 1013904223u;
        usleep(20000 + random / 65536 % 60000);
        kill(child, SIGKILL);
        if (finish(child) == 0) break;
        n_killed++;
    }
    assert_true(n_killed > 5);
    expect("killed", RESUME, 0);
    expect_same_file("unhurt", "killed", "adapter_model.safetensors");
    ag_arena arena = {0};
    size_t n;
    char **names = names_in("killed", &n, &arena);
    for (size_t i = 0; i < n; i++)
        if (names[i][0] == '.' && strcmp(names[i], ".agoge-quarantine") != 0) fail_msg("%s was left behind", names[i]);
    char quarantine[512];
    snprintf(quarantine, sizeof quarantine, "%s/out/killed/.agoge-quarantine", dir);
    n = 0;
    if (ag_path_is_dir(quarantine)) names = names_in("killed/.agoge-quarantine", &n, &arena); /* saves that were cut short; never a checkpoint */
    for (size_t i = 0; i < n; i++)
        if (!strstr(names[i], ".leftover_staging.")) fail_msg("%s was found broken", names[i]);
    ag_arena_free(&arena);
}

static void a_folder_in_use_is_refused(void **state)
{
    (void)state;
    write_config("busy", "num_train_epochs: 4000\nsave_steps: 1\ngradient_accumulation_steps: 1\n");
    const pid_t child = start("busy", NULL);
    wait_for("busy", 1);
    const int second = finish(start("busy", RESUME));
    kill(child, SIGKILL);
    finish(child);
    assert_int_equal(second, 1);
    expect_words("busy", "process");
}

static void what_a_user_gets_wrong_is_said_in_one_sentence(void **state)
{
    (void)state;
    ag_err err;
    char path[512];
    write_config("wrong", "lerning_rate: 0.1\n");
    expect("wrong", NULL, 1);
    expect_words("wrong", "learning_rate");
    write_config("wrong", "trust_remote_code: true\n");
    expect("wrong", NULL, 1);
    expect_words("wrong", "trust_remote_code");

    snprintf(path, sizeof path, "%s/bad.jsonl", dir);
    const char bad[] = "{\"text\": \"fine\"}\n\n{\"text\": 7}\n";
    assert_int_equal(AG_OK, ag_file_publish(path, bad, sizeof bad - 1, &err));
    write_config("wrong", "");
    expect("wrong", (const char *const[]){"--set", "dataset_path=bad.jsonl", NULL}, 1);
    expect_words("wrong", "line 3");
    assert_int_equal(AG_OK, ag_file_publish(path, "\n", 1, &err));
    expect("wrong", (const char *const[]){"--set", "dataset_path=bad.jsonl", NULL}, 1);
    expect("wrong", (const char *const[]){"--cpu", "avx3", NULL}, 2);
    expect_words("wrong", "avx512");
    expect("wrong", (const char *const[]){"--sett", "a=b", NULL}, 2);
    expect_words("wrong", "--set");
    expect("wrong", (const char *const[]){"--set", "model_id=openbmb/MiniCPM5-1B-Base", NULL}, 1);
}

/* eval_prompts: answers before the first step and at every evaluation, in metrics.jsonl, and not a bit of the adapter. */
static void answers_on_the_way_change_nothing(void **state)
{
    (void)state;
    static const char same[] = "gradient_accumulation_steps: 1\nmax_steps: 4\nlora_dropout: 0.1\n";
    write_config("silent", same);
    ag_arena arena = {0};
    write_config("asked", ag_arena_printf(&arena, "%seval_steps: 2\neval_prompts: [the light, a ship of salt]\neval_prompt_tokens: 8\n", same));
    expect("silent", NULL, 0);
    expect("asked", NULL, 0);
    expect_same_file("silent", "asked", "adapter_model.safetensors");
    ag_err err;
    char path[512], *text;
    size_t n, n_lines = 0;
    snprintf(path, sizeof path, "%s/log-asked/metrics.jsonl", dir);
    if (ag_file_read(&text, &n, path, 1 << 20, &arena, &err)) fail_msg("%s", err.text);
    static const char *const begins[] = {"{\"step\": 0, \"samples\": [{\"prompt\": \"the light\", \"answer\": \"", "{\"step\": 2, \"samples\"",
                                         "{\"step\": 4, \"samples\""};
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (!strstr(line, "samples")) continue;
        assert_true(n_lines < 3);
        if (strncmp(line, begins[n_lines], strlen(begins[n_lines])) != 0) fail_msg("\"%s\" does not begin with \"%s\"", line, begins[n_lines]);
        n_lines++;
    }
    assert_int_equal(3, n_lines);
    ag_arena_free(&arena);
}

static int make(void **state)
{
    (void)state;
    if (!getenv("AGOGE_BIN")) return -1;
    dir = scratch_dir_create();
    tiny_folder_make(dir);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    scratch_dir_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_run_goes_on_to_the_same_bits),
        cmocka_unit_test(fifty_kills_lose_no_checkpoint),
        cmocka_unit_test(answers_on_the_way_change_nothing),
        cmocka_unit_test(a_folder_in_use_is_refused),
        cmocka_unit_test(what_a_user_gets_wrong_is_said_in_one_sentence),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
