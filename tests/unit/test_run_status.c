/* What a run is said to be ready for, against checkpoints that the Trainer wrote and ones that are broken in one thing each. Edge cases
 * by number are those of docs/runs.md. */
#define _GNU_SOURCE
#include "support/run_fixture.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/fs.h"
#include "base/json.h"
#include "format/torch_archive.h"
#include "runs/run_status.h"
#include "train/trainer_state.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static ag_arena arena;
static const char *const RUN = "adapters/run", *const C2 = "adapters/run/checkpoint-2";

static int setup(void **state)
{
    (void)state;
    run_fixture_begin();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    run_fixture_end();
    ag_arena_free(&arena);
    return 0;
}

static ag_status look_with(ag_run_status *s, const char *run_dir, const char *merged, bool allow_unsafe, ag_err *err)
{
    ag_run_place place;
    AG_TRY(ag_run_place_find(&place, run_dir, merged, &arena, err));
    return ag_run_status_make(s, &place, &(ag_run_status_options){.allow_unsafe = allow_unsafe, .hub_cache = "hub", .n_threads = 1}, &arena, err);
}

static ag_run_status look_at(const char *run_dir)
{
    ag_err err;
    ag_run_status s;
    must(look_with(&s, run_dir, NULL, false, &err));
    return s;
}

static void expect_resume(bool ready, const char *part)
{
    const ag_run_status s = look_at(RUN);
    if (s.resume_ready != ready) fail_msg("resume is %sready: %s", s.resume_ready ? "" : "not ", s.why_not_resume);
    if (part && !strstr(s.why_not_resume, part)) fail_msg("\"%s\" does not say \"%s\"", s.why_not_resume, part);
}

static void expect_export(bool ready, const char *part)
{
    const ag_run_status s = look_at(RUN);
    if (s.export_ready != ready) fail_msg("export is %sready: %s", s.export_ready ? "" : "not ", s.why_not_export);
    if (part && !strstr(s.why_not_export, part)) fail_msg("\"%s\" does not say \"%s\"", s.why_not_export, part);
}

static const char *in(const char *dir, const char *name) { return ag_path_join(&arena, dir, name); }

/* ---- the report -------------------------------------------------------------------------------------------------- */
static void a_run_that_the_trainer_left_is_ready(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    run_fixture_checkpoint("adapters/run/checkpoint-4", 4);
    run_fixture_adapter(RUN);
    run_fixture_merged("merged/run");
    const ag_run_status s = look_at(RUN);
    assert_null(s.why_not_resume);
    assert_null(s.why_not_export);
    assert_null(s.why_not_merged);
    assert_true(s.resume_ready && s.export_ready);
    assert_int_equal(AG_SOURCE_FINAL_ADAPTER, s.source);
    assert_string_equal(s.merged_path, ag_path_join(&arena, scratch_path(""), "merged/run"));
}

static void the_json_has_every_key_in_its_order(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    const ag_run_status s = look_at(RUN);
    ag_str out = {0}, want = {0};
    ag_run_status_json(&out, &s);
    const char *dir = s.place.real;
    ag_str_printf(&want, "{\n  \"schema_version\": 1,\n  \"run_dir\": \"%s\",\n  \"run_name\": \"run\",\n"
                  "  \"allow_unsafe_serialization\": false,\n  \"checkpoints\": {\n    \"valid_count\": 1,\n    \"steps\": [\n      2\n    ],\n"
                  "    \"latest_step\": 2,\n    \"latest_path\": \"%s/checkpoint-2\"\n  },\n  \"final_adapter\": {\n    \"present\": false,\n"
                  "    \"path\": null\n  },\n  \"merged_model\": {\n    \"present\": false,\n    \"path\": null\n  },\n"
                  "  \"base_model\": \"base/tiny-llama\",\n  \"base_revision\": null,\n  \"resume\": {\n    \"ready\": true,\n"
                  "    \"checkpoint_path\": \"%s/checkpoint-2\"\n  },\n  \"export\": {\n    \"ready\": true,\n"
                  "    \"source_path\": \"%s/checkpoint-2\",\n    \"source_kind\": \"checkpoint\"\n  }\n}\n", dir, dir, dir, dir);
    assert_string_equal(want.text, out.text);
    ag_str_free(&out);
    ag_str_free(&want);
}

static void edge_2_table_values_start_in_one_column_and_every_row_is_there(void **state)
{
    (void)state;
    static const char *const labels[] = {
        "schema_version", "run_name", "run_dir", "allow_unsafe_serialization", "valid_checkpoints", "checkpoint_steps", "latest_checkpoint_step",
        "latest_checkpoint_path", "final_adapter", "final_adapter_path", "merged_model", "merged_model_path", "base_model", "base_revision",
        "resume_ready", "resume_checkpoint_path", "export_ready", "export_source_kind", "export_source_path"};
    const ag_run_status s = look_at(RUN);
    ag_str out = {0};
    ag_run_status_table(&out, &s);
    const size_t column = strlen("allow_unsafe_serialization: ");
    const char *line = out.text;
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        assert_memory_equal(labels[i], line, strlen(labels[i]));
        assert_int_equal(':', line[strlen(labels[i])]);
        for (size_t k = strlen(labels[i]) + 1; k < column; k++) assert_int_equal(' ', line[k]);
        assert_int_not_equal(' ', line[column]);
        line = strchr(line, '\n') + 1;
    }
    assert_int_equal(0, *line);
    assert_non_null(strstr(out.text, "base_model:                 -\n"));
    assert_non_null(strstr(out.text, "resume_ready:               no\n"));
    ag_str_free(&out);
}

static void edge_3_what_moves_cursors_is_escaped_in_the_table(void **state)
{
    (void)state;
    const char *run = "adapters/r\x1b[31m\xe2\x80\xae\xff";
    run_fixture_checkpoint(in(run, "checkpoint-2"), 2);
    fixture_replace(in(run, "checkpoint-2/adapter_config.json"), "base/tiny-llama", "b\\u001b[2J\\u202e\\ud800\\udc00\\ud800\\udb40\\udc41z");
    const ag_run_status s = look_at(run);
    ag_str out = {0};
    ag_run_status_table(&out, &s);
    assert_non_null(strstr(out.text, "run_name:                   r\\u001b[31m\\u202e\\udcff\n"));
    assert_non_null(strstr(out.text, "base_model:                 b\\u001b[2J\\u202e\xf0\x90\x80\x80\\ud800\\U000e0041z\n"));
    assert_null(strchr(out.text, 0x1b));
    ag_str_free(&out);
}

static void edge_4_a_pinned_revision_is_told_and_an_absent_one_is_null(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    assert_null(look_at(RUN).base_revision);
    const char *config = in(C2, "adapter_config.json");
    fixture_replace(config, "\"revision\": null", "\"revision\": \" 0123456789abcdef0123456789abcdef01234567 \"");
    assert_string_equal("0123456789abcdef0123456789abcdef01234567", look_at(RUN).base_revision);
    fixture_replace(config, "\" 0123456789abcdef0123456789abcdef01234567 \"", "1234567");
    assert_string_equal("1234567", look_at(RUN).base_revision);
    fixture_replace(config, "1234567", "true");
    assert_null(look_at(RUN).base_revision);
    expect_export(false, "'revision' must be a text");
}

static void edge_5_a_base_without_a_tokenizer_makes_export_not_ready(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    expect_export(true, NULL);
    fixture_remove("base/tiny-llama/tokenizer.json");
    expect_export(false, "there is no tokenizer.json");
    expect_resume(false, "there is no tokenizer.json");
}

static void edge_6_a_config_of_no_causal_model_is_no_merged_model(void **state)
{
    (void)state;
    static const char *const types[] = {"bert", "no_such_type"};
    for (int i = 0; i < 2; i++) {
        run_fixture_merged("merged/run");
        assert_non_null(look_at(RUN).merged_path);
        fixture_replace("merged/run/config.json", "\"model_type\": \"llama\"", ag_arena_printf(&arena, "\"model_type\": \"%s\"", types[i]));
        fixture_remove("merged/run/artifact_index.json");
        run_fixture_seal("merged/run", false);
        const ag_run_status s = look_at(RUN);
        assert_null(s.merged_path);
        assert_non_null(strstr(s.why_not_merged, "not supported"));
        fixture_remove("merged/run");
    }
}

static void edge_7_checkpoint_001_is_step_1_under_its_own_name(void **state)
{
    (void)state;
    run_fixture_checkpoint("adapters/run/checkpoint-001", 1);
    const ag_run_status s = look_at(RUN);
    assert_int_equal(1, s.scan.latest->step);
    assert_true(ag_str_ends(s.latest_path, "/adapters/run/checkpoint-001"));
}

static void edge_8_a_config_that_is_a_list_gives_no_base(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    static const char *const texts[] = {"[1, 2]", "7", "", "{\"base_model_name_or_path\": 3}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fixture_write(in(C2, "adapter_config.json"), texts[i]);
        const ag_run_status s = look_at(RUN);
        assert_null(s.base_model);
        assert_false(s.export_ready);
        assert_int_equal(1, s.scan.n_valid);
    }
}

static void edge_9_a_missing_merged_folder_is_absent_and_a_file_is_an_error(void **state)
{
    (void)state;
    ag_err err;
    ag_run_status s;
    assert_null(look_at(RUN).merged_path);
    must(look_with(&s, RUN, "merged/nowhere", false, &err));
    assert_null(s.merged_path);
    fixture_write("a-file", "x");
    must_fail(AG_E_IO, "a directory was expected", look_with(&s, RUN, "a-file", false, &err));
    must_fail(AG_E_CONFIG, "'..'", look_with(&s, RUN, "merged/../x", false, &err));
    must_fail(AG_E_NOT_FOUND, "names no home directory", look_with(&s, RUN, "~no-such-user-here/x", false, &err));
    must_fail(AG_E_NOT_FOUND, "does not exist", look_with(&s, "adapters/gone", NULL, false, &err));
    must_fail(AG_E_CONFIG, "'..'", look_with(&s, "adapters/../adapters/run", NULL, false, &err));
    must_fail(AG_E_IO, "a directory was expected", look_with(&s, "a-file", NULL, false, &err));
    /* When it is named, only that one is looked at. */
    run_fixture_merged("merged/run");
    must(look_with(&s, RUN, "merged/nowhere", false, &err));
    assert_null(s.merged_path);
}

static void edge_10_a_linked_run_finds_the_sibling_of_the_name_as_typed(void **state)
{
    (void)state;
    run_fixture_adapter("elsewhere/real");
    run_fixture_merged("merged/typed");
    assert_int_equal(0, symlink("../elsewhere/real", "adapters/typed"));
    const ag_run_status s = look_at("./adapters//typed/");
    assert_string_equal("typed", s.place.name);
    assert_true(ag_str_ends(s.place.real, "/elsewhere/real"));
    assert_non_null(s.merged_path);
}

static void edge_11_what_may_not_be_read_is_an_error(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    assert_int_equal(0, chmod(scratch_path(""), 0755));
    assert_int_equal(0, chmod(C2, 0));
    const pid_t child = fork();
    if (child == 0) {
        ag_err err;
        ag_run_status s;
        if (getuid() == 0 && (setgid(65534) || setuid(65534))) _exit(2);
        _exit(look_with(&s, RUN, NULL, false, &err) == AG_E_IO && strstr(err.text, "checkpoint-2") ? 0 : 1);
    }
    int status;
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_int_equal(0, chmod(C2, 0755));
    assert_int_equal(0, status);
}

static void edge_12_a_stray_bin_hides_the_final_adapter_unless_unsafe_is_allowed(void **state)
{
    (void)state;
    ag_err err;
    ag_run_status s;
    run_fixture_adapter(RUN);
    run_fixture_checkpoint(C2, 2);
    fixture_make_dir("adapters/run/old/backup");
    fixture_write("adapters/run/old/backup/adapter_model.bin", "x");
    s = look_at(RUN);
    assert_false(s.scan.has_final_adapter);
    assert_int_equal(1, s.scan.n_valid);
    assert_int_equal(AG_SOURCE_CHECKPOINT, s.source);
    must(look_with(&s, RUN, NULL, true, &err));
    assert_true(s.scan.has_final_adapter && s.export_ready);
    fixture_write("adapters/run/checkpoint-2/x.ckpt", "x");
    assert_int_equal(0, look_at(RUN).scan.n_valid);
}

static void a_bin_in_the_quarantine_hides_nothing(void **state)
{
    (void)state;
    run_fixture_adapter(RUN);
    fixture_make_dir("adapters/run/.agoge-quarantine/x");
    fixture_write("adapters/run/.agoge-quarantine/x/adapter_model.bin", "x");
    assert_true(look_at(RUN).scan.has_final_adapter);
}

static void edge_13_a_merged_tree_must_be_its_index_to_the_last_file(void **state)
{
    (void)state;
    run_fixture_merged("merged/run");
    assert_non_null(look_at(RUN).merged_path);
    fixture_write("merged/run/notes.txt", "x");
    assert_null(look_at(RUN).merged_path);
    fixture_remove("merged/run/notes.txt");
    assert_non_null(look_at(RUN).merged_path);
    assert_int_equal(0, symlink("config.json", "merged/run/link"));
    assert_null(look_at(RUN).merged_path);
    fixture_remove("merged/run/link");
    fixture_replace("merged/run/tokenizer_config.json", "{", "{ ");
    assert_null(look_at(RUN).merged_path);
    fixture_remove("merged/run/tokenizer_config.json");
    assert_null(look_at(RUN).merged_path);
    fixture_remove("merged/run");
    fixture_write("merged/run", "a file");
    assert_null(look_at(RUN).merged_path);
}

static void edge_14_an_ambiguous_or_incomplete_layout_of_weights_is_absent(void **state)
{
    (void)state;
    static const char *const names[] = {"model-00001-of-00002.safetensors", "model.safetensors.index.json", "other.safetensors"};
    for (size_t i = 0; i < 3; i++) {
        run_fixture_merged("merged/run");
        fixture_copy(i == 1 ? "base/tiny-llama/config.json" : "merged/run/model.safetensors", in("merged/run", names[i]));
        fixture_remove("merged/run/artifact_index.json");
        run_fixture_seal("merged/run", false);
        assert_null(look_at(RUN).merged_path);
        fixture_remove("merged/run");
    }
}

/* ---- trainer state ----------------------------------------------------------------------------------------------- */
static void with_golden(const char *name, const char *file, bool ready, const char *part)
{
    fixture_golden(name, in(C2, file));
    expect_resume(ready, part);
    assert_true(look_at(RUN).export_ready); /* export asks for no trainer state */
}

static void edge_15_an_optimizer_that_does_not_fit_is_not_ready(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    static const struct {
        const char *name;
        bool ready;
        const char *part;
    } cases[] = {{"opt-view", true, NULL},
                 {"opt-shared-storage", true, NULL},
                 {"opt-step-zero", false, "'step' of parameter 0 is 0"},
                 {"opt-step-fraction", false, "'step' of parameter 0 is"},
                 {"opt-step-beyond", false, "from 1 to 2"},
                 {"opt-duplicate-id", false, "twice"},
                 {"opt-swapped", false, "belongs to another adapter or its order differs"},
                 {"opt-strided", false, "contiguous"},
                 {"opt-mixed-dtype", false, "different types"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        with_golden(ag_arena_printf(&arena, "optimizer/%s.pt", cases[i].name), "optimizer.pt", cases[i].ready, cases[i].part);
}

static void edge_15_bool_ids_are_no_ids(void **state)
{
    (void)state;
    ag_err err;
    run_fixture_checkpoint(C2, 2);
    ag_torch_value *root = ag_torch_dict(&arena), *groups = ag_torch_list(&arena);
    for (int g = 0; g < 2; g++) {
        ag_torch_value *group = ag_torch_dict(&arena), *ids = ag_torch_list(&arena);
        if (g == 0) ag_torch_push(&arena, ids, ag_torch_bool(&arena, true));
        ag_torch_put(&arena, group, "params", ids);
        ag_torch_push(&arena, groups, group);
    }
    ag_torch_put(&arena, root, "param_groups", groups);
    ag_torch_put(&arena, root, "state", ag_torch_tensor(&arena, "abcd", AG_TORCH_F32, 0, NULL));
    must(ag_torch_save(in(C2, "optimizer.pt"), root, &err));
    expect_resume(false, "numbers of parameters, found True");
}

static void edge_16_a_scheduler_off_by_one_is_not_ready(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    with_golden("scheduler/sched-off-by-one.pt", "scheduler.pt", false, "last_epoch");
    with_golden("scheduler/sched-step-count.pt", "scheduler.pt", false, "_step_count");
    with_golden("scheduler/sched-one-lr.pt", "scheduler.pt", false, "2 groups");
    with_golden("checkpoint-2/scheduler.pt", "scheduler.pt", true, NULL);
}

static void edge_16_generators_are_checked_and_a_cpu_run_needs_no_cuda_state(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    with_golden("rng_state/rng-cuda-offset.pth", "rng_state.pth", false, "'cuda'");
    with_golden("rng_state/rng-no-cuda.pth", "rng_state.pth", true, NULL);
    assert_int_equal(0, rename(in(C2, "rng_state.pth"), in(C2, "rng_state_0.pth")));
    expect_resume(false, "rng_state.pth");
}

static void edge_17_an_archive_that_is_not_as_torch_writes_it_is_not_ready(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    static const struct {
        const char *name;
        bool ready;
        const char *part;
    } cases[] = {{"zip-comment", true, NULL},        {"zip-64", true, NULL},
                 {"zip-64-count", false, "directory"},{"zip-64-offset", false, "ZIP64"},
                 {"zip-deflated", false, "compressed"}, {"zip-duplicate", false, "twice"},
                 {"zip-odd-storage", false, "must be a number"}, {"zip-two-roots", false, "different roots"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        with_golden(ag_arena_printf(&arena, "optimizer/%s.pt", cases[i].name), "optimizer.pt", cases[i].ready, cases[i].part);
    /* A wrong CRC, bytes behind the end, half of it, nothing. */
    size_t n;
    fixture_golden("checkpoint-2/optimizer.pt", in(C2, "optimizer.pt"));
    char *bytes = fixture_read(in(C2, "optimizer.pt"), &n);
    char *inside = memmem(bytes, n, "exp_avg", 7);
    *inside ^= 1;
    fixture_write_n(in(C2, "optimizer.pt"), bytes, n);
    expect_resume(false, "CRC");
    *inside ^= 1;
    fixture_write_n(in(C2, "optimizer.pt"), bytes, n + 1);
    expect_resume(false, "followed by other bytes");
    fixture_write_n(in(C2, "optimizer.pt"), bytes, n / 2);
    expect_resume(false, "no ZIP archive");
    fixture_write_n(in(C2, "optimizer.pt"), bytes, 0);
    expect_resume(false, "no ZIP archive");
    fixture_write_n(in(C2, "optimizer.pt"), bytes, n);
    expect_resume(true, NULL);
    free(bytes);
}

static void edge_18_a_pickle_that_asks_for_other_names_is_not_ready(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    with_golden("optimizer/evil-os-system.pt", "optimizer.pt", false, "not on the list of names");
    with_golden("optimizer/opt-numpy.pt", "optimizer.pt", false, "not on the list of names");
    assert_false(fixture_exists("AGOGE_PWNED"));
    with_golden("checkpoint-2/optimizer.pt", "optimizer.pt", true, NULL); /* rng_state.pth beside it has NumPy's names */
}

static void edge_19_a_trainer_state_that_is_no_plain_small_file_is_not_ready(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    const char *path = in(C2, "trainer_state.json");
    assert_int_equal(0, rename(path, "state.json"));
    assert_int_equal(0, symlink("../../../state.json", path));
    expect_resume(false, "symbolic link");
    assert_int_equal(0, unlink(path));
    assert_int_equal(0, mkfifo(path, 0600));
    assert_int_equal(0, look_at(RUN).scan.n_valid);
    assert_int_equal(0, unlink(path));
    fixture_copy("state.json", path);
    fixture_replace(path, "\"global_step\": 2", "\"global_step\": 3");
    expect_resume(false, "'global_step' is 3");
    fixture_copy("state.json", path);
    fixture_replace(path, "\"train_batch_size\": 2", "\"train_batch_size\": true");
    expect_resume(false, "train_batch_size");
    fixture_copy("state.json", path);
    fixture_replace(path, "{", "{\"a_key_of_ours\": 1,");
    expect_resume(false, "a_key_of_ours");
    char *deep = malloc(100001);
    memset(deep, '[', 100000);
    deep[100000] = 0;
    fixture_write(path, deep);
    expect_resume(false, "trainer_state.json");
    free(deep);
    char *large = malloc((4 << 20) + 2);
    memset(large, ' ', (4 << 20) + 1);
    large[(4 << 20) + 1] = 0;
    fixture_write(path, large);
    expect_resume(false, "at most");
    free(large);
}

static void a_sidecar_must_agree_with_the_rest(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    const char *path = in(C2, "agoge_resume.json");
    /* The adapter's tensors: q and v of two layers, rank 2, 32 wide, v to 16. */
    static const char good[] = "{\"global_step\": 2, \"sampler_position\": 4, \"optimizer_shapes\": [[[2,32],[32,2],[2,32],[16,2],[2,32],[32,2],"
                               "[2,32],[16,2]],[]]}";
    fixture_write(path, good);
    expect_resume(true, NULL);
    fixture_replace(path, "\"global_step\": 2", "\"global_step\": 3");
    expect_resume(false, "global_step");
    fixture_write(path, good);
    fixture_replace(path, "[16,2]", "[2,16]");
    expect_resume(false, "optimizer_shapes");
    fixture_write(path, good);
    fixture_replace(path, "\"sampler_position\": 4", "\"sampler_position\": -1");
    expect_resume(false, "sampler_position");
}

static void a_newest_checkpoint_that_is_not_usable_is_not_passed_over(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    run_fixture_checkpoint("adapters/run/checkpoint-4", 4);
    fixture_remove("adapters/run/checkpoint-4/optimizer.pt");
    const ag_run_status s = look_at(RUN);
    assert_false(s.resume_ready);
    assert_true(ag_str_ends(s.latest_path, "/checkpoint-4"));
    fixture_remove("adapters/run/checkpoint-4/trainer_state.json"); /* unfinished: not the newest any more */
    expect_resume(true, NULL);
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */
static void with_targets(const char *targets, bool ready, const char *part)
{
    fixture_golden("checkpoint-2/adapter_config.json", in(C2, "adapter_config.json"));
    char *text = fixture_read(in(C2, "adapter_config.json"), NULL), *begin = strstr(text, "\"target_modules\": ["), *end = strchr(begin, ']');
        ag_str s = {0};
    ag_str_printf(&s, "%.*s\"target_modules\": %s%s", (int)(begin - text), text, targets, end + 1);
    fixture_write(in(C2, "adapter_config.json"), s.text);
    ag_str_free(&s);
    free(text);
    expect_export(ready, part);
}

static void edge_20_only_plain_patterns_of_targets_are_vouched_for(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    with_targets("[\"q_proj\", \"v_proj\"]", true, NULL);
    with_targets("[\"self_attn.q_proj\", \"v_proj\"]", true, NULL);
    with_targets("\".*_proj\"", false, "there is no tensor");
    with_targets("\".*[qv]_proj\"", false, "more than literals");
    with_targets("\".*(q|v)_proj\"", false, "more than literals");
    with_targets("\".*.*q_proj\"", false, "more than literals");
    with_targets("\".*\"", false, "can have an adapter");
    with_targets("\"^model\\\\.layers\\\\..*\\\\.self_attn\\\\..*_proj$\"", false, "there is no tensor");
    with_targets("[\"q_proj\", \"v_proj\", \"x_proj\"]", false, "'x_proj' selects no module");
    with_targets("[\"q_proj\"]", false, "belongs to no module");
    with_targets("[\"q_proj\", \"v_proj\", \"norm\"]", false, "can have an adapter");
    with_targets("[\"q_proj\", \"v_proj\", \"\"]", false, "not a module's name");
    with_targets("[]", false, "target_modules");
}

static void an_adapters_numbers_must_make_sense(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    static const struct {
        const char *from, *to, *part;
    } cases[] = {{"\"r\": 2", "\"r\": true", "'r'"},
                 {"\"r\": 2", "\"r\": 0", "'r'"},
                 {"\"r\": 2", "\"r\": 8", "another shape"},
                 {"\"lora_alpha\": 4", "\"lora_alpha\": NaN", "'lora_alpha'"},
                 {"\"lora_dropout\": 0.0", "\"lora_dropout\": 1.5", "'lora_dropout'"},
                 {"\"peft_type\": \"LORA\"", "\"peft_type\": \"LOHA\"", "'peft_type'"},
                 {"\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 1.5}", "rank_pattern"},
                 {"\"rank_pattern\": {}", "\"rank_pattern\": {\"q(proj\": 2}", "rank_pattern"},
                 {"\"rank_pattern\": {}", "\"rank_pattern\": {\"layers.1.self_attn.v_proj\": 4}", "another shape"},
                 {"\"alpha_pattern\": {}", "\"alpha_pattern\": {\"q_proj\": \"1\"}", "alpha_pattern"},
                 {"\"use_dora\": false", "\"use_dora\": true", "lora_magnitude_vector"},
                 {"{", "{\"no_such_key\": 1,", "no_such_key"},
                 {"base/tiny-llama", " ", "names no base model"},
                 {"base/tiny-llama", "base/gone", "is neither a folder nor a file"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture_golden("checkpoint-2/adapter_config.json", in(C2, "adapter_config.json"));
        fixture_replace(in(C2, "adapter_config.json"), cases[i].from, cases[i].to);
        expect_export(false, cases[i].part);
    }
}

static void a_base_that_is_a_hub_id_must_be_pinned_and_in_the_cache(void **state)
{
    (void)state;
    static const char commit[] = "0123456789abcdef0123456789abcdef01234567";
    const char *repo = "hub/models--org--name", *snapshot = ag_arena_printf(&arena, "%s/snapshots/%s", repo, commit);
    run_fixture_checkpoint(C2, 2);
    const char *config = in(C2, "adapter_config.json");
    fixture_replace(config, "base/tiny-llama", "org/name");
    expect_export(false, "pinned to no commit");
    fixture_replace(config, "\"revision\": null", ag_arena_printf(&arena, "\"revision\": \"%s\"", commit));
    expect_export(false, "fetch it first");
    fixture_make_dir(in(repo, "blobs"));
    fixture_make_dir(ag_path_dir(&arena, snapshot));
    assert_int_equal(0, rename("base/tiny-llama", snapshot));
    expect_export(true, NULL);
    /* As the cache keeps them: links to blobs. One that leads elsewhere is refused. */
    assert_int_equal(0, rename(in(snapshot, "config.json"), in(repo, "blobs/abc")));
    assert_int_equal(0, symlink("../../blobs/abc", in(snapshot, "config.json")));
    expect_export(true, NULL);
    assert_int_equal(0, rename(in(repo, "blobs/abc"), "outside.json"));
    assert_int_equal(0, symlink("../../../outside.json", in(repo, "blobs/abc")));
    expect_export(false, "blobs of its own hub cache");
}

static void a_base_with_absurd_numbers_is_not_looked_into(void **state)
{
    (void)state;
    run_fixture_checkpoint(C2, 2);
    fixture_replace("base/tiny-llama/config.json", "{", "{\"num_local_experts\": 40000,");
    expect_export(false, "at most 4096");
    fixture_replace("base/tiny-llama/config.json", "40000", "4000");
    fixture_replace("base/tiny-llama/config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 20");
    expect_export(false, "layers of");
    fixture_replace("base/tiny-llama/config.json", "4000", "2");
    fixture_replace("base/tiny-llama/config.json", "\"num_hidden_layers\": 20", "\"num_hidden_layers\": 2, \"x\": 16777217");
    expect_export(false, "no architecture needs");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_run_that_the_trainer_left_is_ready),
        T(the_json_has_every_key_in_its_order),
        T(edge_2_table_values_start_in_one_column_and_every_row_is_there),
        T(edge_3_what_moves_cursors_is_escaped_in_the_table),
        T(edge_4_a_pinned_revision_is_told_and_an_absent_one_is_null),
        T(edge_5_a_base_without_a_tokenizer_makes_export_not_ready),
        T(edge_6_a_config_of_no_causal_model_is_no_merged_model),
        T(edge_7_checkpoint_001_is_step_1_under_its_own_name),
        T(edge_8_a_config_that_is_a_list_gives_no_base),
        T(edge_9_a_missing_merged_folder_is_absent_and_a_file_is_an_error),
        T(edge_10_a_linked_run_finds_the_sibling_of_the_name_as_typed),
        T(edge_11_what_may_not_be_read_is_an_error),
        T(edge_12_a_stray_bin_hides_the_final_adapter_unless_unsafe_is_allowed),
        T(a_bin_in_the_quarantine_hides_nothing),
        T(edge_13_a_merged_tree_must_be_its_index_to_the_last_file),
        T(edge_14_an_ambiguous_or_incomplete_layout_of_weights_is_absent),
        T(edge_15_an_optimizer_that_does_not_fit_is_not_ready),
        T(edge_15_bool_ids_are_no_ids),
        T(edge_16_a_scheduler_off_by_one_is_not_ready),
        T(edge_16_generators_are_checked_and_a_cpu_run_needs_no_cuda_state),
        T(edge_17_an_archive_that_is_not_as_torch_writes_it_is_not_ready),
        T(edge_18_a_pickle_that_asks_for_other_names_is_not_ready),
        T(edge_19_a_trainer_state_that_is_no_plain_small_file_is_not_ready),
        T(a_sidecar_must_agree_with_the_rest),
        T(a_newest_checkpoint_that_is_not_usable_is_not_passed_over),
        T(edge_20_only_plain_patterns_of_targets_are_vouched_for),
        T(an_adapters_numbers_must_make_sense),
        T(a_base_that_is_a_hub_id_must_be_pinned_and_in_the_cache),
        T(a_base_with_absurd_numbers_is_not_looked_into),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
