/* Bundles made by tools/golden/seal_bundles.py, tampered with in every way that verification must see. */
#define _GNU_SOURCE
#include "support/bundle_bench.h"
#include "support/file_tools.h"
#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/canonical_json.h"
#include "base/fs.h"
#include "seal/artifact_index.h"
#include "seal/bundle.h"
#include "seal/bundle_tree.h"
#include "seal/split_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#define REVISION "0123456789abcdef0123456789abcdef01234567"

static char *verdict(const char *dir, bool table)
{
    ag_err err;
    ag_bundle_report report;
    ag_str text = {0};
    must(ag_bundle_verify(&report, dir, &(ag_bundle_verify_options){.n_threads = 2}, &err));
    if (table) ag_bundle_report_write_table(&report, &text);
    else ag_bundle_report_write_json(&report, &text);
    ag_bundle_report_free(&report);
    return text.text;
}

/* ---- bundles that are right ------------------------------------------------------------------------------------------ */
static void a_bundle_passes_twice_alike_and_is_not_touched(void **state)
{
    (void)state;
    static const char *const which[] = {"adapter", "merged"};
    for (int i = 0; i < 2; i++) {
        const char *dir = bundle_begin(which[i]);
        struct stat before, after;
        assert_int_equal(0, stat(bundle_file(AG_BUNDLE_INVENTORY_FILE), &before));
        assert_int_equal(0, chmod(bundle_file("splits"), 0555));
        assert_int_equal(0, chmod(dir, 0555));
        char *first = verdict(dir, false), *second = verdict(dir, false), want[1024];
        snprintf(want, sizeof want,
                 "{\n  \"schema_version\": \"agoge.bundle-verification.v1\",\n  \"verdict\": \"pass\",\n  \"bundle_path\": \"%s\",\n"
                 "  \"bundle_schema_version\": \"agoge.reproducibility-bundle.v1\",\n  \"failures\": []\n}\n",
                 dir);
        assert_string_equal(first, want);
        assert_string_equal(first, second);
        assert_int_equal(0, stat(bundle_file(AG_BUNDLE_INVENTORY_FILE), &after));
        assert_true(before.st_mtim.tv_nsec == after.st_mtim.tv_nsec && before.st_ino == after.st_ino);
        chmod(dir, 0755);
        chmod(bundle_file("splits"), 0755);
        free(first);
        free(second);
        bundle_end();
    }
}

static void sealing_writes_the_inventory_that_an_independent_program_wrote(void **state)
{
    (void)state;
    ag_err err;
    ag_bundle_report report;
    json_t *root;
    bundle_begin("adapter");
    char *golden = file_text(bundle_file(AG_BUNDLE_INVENTORY_FILE));
    file_put(bundle_file(AG_BUNDLE_INVENTORY_FILE), "{");
    file_put(bundle_file(AG_BUNDLE_INVENTORY_FILE ".tmp-17-0"), "left by a kill");
    must(ag_bundle_seal(&report, bundle_file(""), &(ag_bundle_seal_options){.parts = AG_BUNDLE_PARTS_DEFAULT, .n_threads = 2}, &err));
    ag_bundle_report_free(&report);
    char *ours = file_text(bundle_file(AG_BUNDLE_INVENTORY_FILE));
    assert_string_equal(golden, ours);
    must(ag_json_parse(&root, ours, strlen(ours), "inventory", &err));
    assert_true(ag_json_is_canonical_file(root, ours, strlen(ours)));
    ag_json_free(&root);
    bundle_expect("");
    free(golden);
    free(ours);
    bundle_end();
}

static void a_merged_model_that_is_there_is_never_left_out(void **state)
{
    (void)state;
    ag_err err;
    ag_bundle_report report;
    bundle_begin("merged");
    must(ag_bundle_seal(&report, bundle_file(""), &(ag_bundle_seal_options){.parts = AG_BUNDLE_PARTS_DEFAULT, .n_threads = 1}, &err));
    ag_bundle_report_free(&report);
    char *text = file_text(bundle_file(AG_BUNDLE_INVENTORY_FILE));
    assert_non_null(strstr(text, "\"merged_artifact_index_path\":\"merged/artifact_index.json\""));
    free(text);
    bundle_expect("");
    bundle_end();
}

static void what_would_not_verify_is_not_sealed(void **state)
{
    (void)state;
    ag_err err;
    ag_bundle_report report;
    bundle_begin("adapter");
    char *before = file_text(bundle_file(AG_BUNDLE_INVENTORY_FILE));
    file_append(bundle_file("adapter/adapter_model.safetensors"), "x");
    must_fail(AG_E_VERIFY, "was not sealed", ag_bundle_seal(&report, bundle_file(""), &(ag_bundle_seal_options){
        .parts = AG_BUNDLE_PARTS_DEFAULT, .n_threads = 1}, &err));
    assert_int_equal(report.n, 1);
    assert_int_equal(report.failures[0].code, AG_BUNDLE_MODIFIED_FILE);
    ag_bundle_report_free(&report);
    char *after = file_text(bundle_file(AG_BUNDLE_INVENTORY_FILE));
    assert_string_equal(before, after);
    free(before);
    free(after);
    bundle_end();
}

/* ---- files ----------------------------------------------------------------------------------------------------------- */
static const char *const every_file[] = {
    "run/manifest.json", "config/locked.json", "split_manifest.json", "splits/train.jsonl", "splits/validation.jsonl",
    "splits/held_out.jsonl", "adapter/artifact_index.json", "adapter/adapter_config.json", "adapter/adapter_model.safetensors",
    "adapter/checkpoint-50/trainer_state.json", "contract.json"};
enum { N_FILES = sizeof every_file / sizeof *every_file };

static void an_appended_byte_is_a_modified_file(void **state)
{
    (void)state;
    char want[1024];
    for (int i = 0; i < N_FILES; i++) {
        bundle_begin("adapter");
        file_append(bundle_file(every_file[i]), "x");
        snprintf(want, sizeof want, "modified_file %s\nmodified_file %s\n", every_file[i], every_file[i]); /* size and digest */
        bundle_expect(want);
        bundle_end();
    }
}

static void a_changed_byte_is_a_modified_file(void **state)
{
    (void)state;
    char want[1024];
    for (int i = 0; i < N_FILES; i++) {
        bundle_begin("adapter");
        FILE *file = fopen(bundle_file(every_file[i]), "r+b");
        const int c = fgetc(file);
        rewind(file);
        fputc(c ^ 1, file);
        fclose(file);
        snprintf(want, sizeof want, "modified_file %s\n", every_file[i]);
        bundle_expect(want);
        bundle_end();
    }
}

static void a_deleted_file_is_a_missing_file(void **state)
{
    (void)state;
    char want[1024];
    for (int i = 0; i < N_FILES; i++) {
        bundle_begin("adapter");
        assert_int_equal(0, unlink(bundle_file(every_file[i])));
        snprintf(want, sizeof want, "missing_file %s\n", every_file[i]);
        bundle_expect(want);
        bundle_end();
    }
    bundle_begin("adapter");
    assert_int_equal(0, unlink(bundle_file(AG_BUNDLE_INVENTORY_FILE)));
    bundle_expect_message("missing_file reproducibility-bundle.json\n", "agoge seal-bundle");
    bundle_end();
}

static void a_stray_file_is_an_extra_file_with_its_path(void **state)
{
    (void)state;
    bundle_begin("adapter");
    file_put(bundle_file("notes.txt"), "hello");
    file_put(bundle_file("adapter/deep/er/stray.bin"), "");
    file_put(bundle_file(AG_BUNDLE_INVENTORY_FILE ".tmp-9-1"), "");
    bundle_expect_message("extra_file adapter/deep/er/stray.bin\nextra_file notes.txt\nextra_file reproducibility-bundle.json.tmp-9-1\n",
                          "a seal that did not end");
    bundle_end();
}

static void a_link_anywhere_is_an_unsafe_symlink(void **state)
{
    (void)state;
    char want[1024];
    for (int i = 0; i < N_FILES; i++) {
        bundle_begin("adapter");
        char away[800];
        snprintf(away, sizeof away, "%s/away", scratch_path(""));
        assert_int_equal(0, rename(bundle_file(every_file[i]), away));
        assert_int_equal(0, symlink(away, bundle_file(every_file[i])));
        snprintf(want, sizeof want, "unsafe_symlink %s\n", every_file[i]);
        bundle_expect(want);
        bundle_end();
    }
    bundle_begin("adapter");
    assert_int_equal(0, rename(bundle_file("splits"), scratch_path("elsewhere")));
    assert_int_equal(0, symlink(scratch_path("elsewhere"), bundle_file("splits")));
    bundle_expect("unsafe_symlink splits\n");
    bundle_end();
}

static void special_files_and_pickled_weights_are_unsafe_paths(void **state)
{
    (void)state;
    bundle_begin("adapter");
    assert_int_equal(0, mkfifo(bundle_file("pipe"), 0666));
    bundle_expect("unsafe_path pipe\n");
    bundle_end();
    static const char *const pickled[] = {"adapter/adapter_model.bin", "notes/pytorch_model.bin", "notes/old.ckpt"};
    for (int i = 0; i < 3; i++) {
        bundle_begin("adapter");
        file_put(bundle_file(pickled[i]), "\x80\x02");
        if (i == 0) bundle_reindex("adapter");
        bundle_reseal();
        char want[256];
        snprintf(want, sizeof want, "unsafe_path %s\n", pickled[i]);
        bundle_expect(want);
        bundle_end();
    }
}

/* ---- the inventory --------------------------------------------------------------------------------------------------- */
static void inventory_replaced(const char *old, const char *new, const char *failures, const char *part)
{
    bundle_begin("adapter");
    file_replace(bundle_file(AG_BUNDLE_INVENTORY_FILE), old, new);
    bundle_expect_message(failures, part);
    bundle_end();
}

static void entries_twice_or_out_of_bounds_are_named(void **state)
{
    (void)state;
    static const char entry[] = "{\"path\":\"contract.json\"";
    inventory_replaced(entry, "{\"path\":\"config/locked.json\"", "duplicate_path config/locked.json\n", "more than once");
    inventory_replaced(entry, "{\"path\":\"../contract.json\"", "path_escaping ../contract.json\n", "'..'");
    inventory_replaced(entry, "{\"path\":\"/etc/passwd\"", "path_escaping /etc/passwd\n", "absolute");
    inventory_replaced(entry, "{\"path\":\"C:/x\"", "path_escaping C:/x\n", "absolute");
    inventory_replaced(entry, "{\"path\":\"a\\\\b\"", "path_escaping a\\b\n", "canonical");
    inventory_replaced(entry, "{\"path\":\"a//b\"", "path_escaping a//b\n", "canonical");
    inventory_replaced(entry, "{\"path\":\"./contract.json\"", "path_escaping ./contract.json\n", "canonical");
    inventory_replaced(entry, "{\"path\":\"reproducibility-bundle.json\"", "invalid_json reproducibility-bundle.json\n",
                       "lists the seal itself");
    inventory_replaced("\"evaluation_contract_path\":\"contract.json\"", "\"evaluation_contract_path\":\"other.json\"",
                       "missing_file other.json\n", "the inventory does not list");
    inventory_replaced("\"evaluation_contract_path\":\"contract.json\"", "\"evaluation_contract_path\":\"a/../contract.json\"",
                       "path_escaping a/../contract.json\n", "'evaluation_contract_path'");
}

static void a_truncated_inventory_is_invalid_json(void **state)
{
    (void)state;
    for (int cut = 1; cut < 1200; cut += 97) {
        bundle_begin("adapter");
        struct stat st;
        assert_int_equal(0, stat(bundle_file(AG_BUNDLE_INVENTORY_FILE), &st));
        assert_int_equal(0, truncate(bundle_file(AG_BUNDLE_INVENTORY_FILE), st.st_size - 1 - cut));
        bundle_expect("invalid_json reproducibility-bundle.json\n");
        bundle_end();
    }
    static const char *const wrong[] = {"[]", "", "{\"schema_version\":\"agoge.reproducibility-bundle.v1\",\"schema_version\":\"x\"}",
                                        "\xff"};
    for (int i = 0; i < 4; i++) {
        bundle_begin("adapter");
        file_put(bundle_file(AG_BUNDLE_INVENTORY_FILE), wrong[i]);
        bundle_expect("invalid_json reproducibility-bundle.json\n");
        bundle_end();
    }
    inventory_replaced("\"files\":", "\"surprise\":1,\"files\":", "invalid_json reproducibility-bundle.json\n", "unknown key 'surprise'");
    inventory_replaced("\"size_bytes\":", "\"size_bytes\":-", "invalid_json reproducibility-bundle.json\n", "size_bytes");
}

static void an_unknown_inventory_version_is_exactly_one_failure_that_quotes_it(void **state)
{
    (void)state;
    bundle_begin("adapter");
    file_append(bundle_file("contract.json"), "x"); /* must not be told, for nothing is known of this version */
    file_replace(bundle_file(AG_BUNDLE_INVENTORY_FILE), "agoge.reproducibility-bundle.v1", "agoge.reproducibility-bundle.v9");
    bundle_expect_message("unknown_schema_version reproducibility-bundle.json\n", "'agoge.reproducibility-bundle.v9'");
    char *json = verdict(bundle_file(""), false);
    assert_non_null(strstr(json, "\"bundle_schema_version\": null"));
    free(json);
    bundle_end();
}

/* ---- what is inside, resealed by someone who could not reach the run's own seals ------------------------------------- */
static void resealed(const char *which, const char *file, const char *old, const char *new, const char *failures, const char *part)
{
    bundle_begin(which);
    file_replace(bundle_file(file), old, new);
    bundle_reseal();
    bundle_expect_message(failures, part);
    bundle_end();
}

static void a_contract_of_version_1_or_without_an_arm_is_named(void **state)
{
    (void)state;
    resealed("adapter", "contract.json", "evaluation-contract.v2", "evaluation-contract.v1", "unknown_schema_version contract.json\n",
             "'agoge.evaluation-contract.v1'");
    resealed("adapter", "contract.json", ",\"sft\":{", ",\"later\":{", "missing_evaluation_arm contract.json\n", "'sft'");
    resealed("adapter", "contract.json", "{\"base\":{", "{\"base\":null,\"other\":{", "missing_evaluation_arm contract.json\n", "'base'");
    resealed("adapter", "contract.json", "\"context_window\":2048", "\"context_window\":4096", "invalid_json contract.json\n",
             "differ in context_window");
    resealed("adapter", "contract.json", "\"role\":\"causal_base\"", "\"role\":\"causal_sft\"", "invalid_json contract.json\n", "role");
    bundle_begin("adapter");
    char *text = file_text(bundle_file("contract.json")), *artifact = strstr(text, "\"artifact\":{"), *end = strchr(artifact, '}');
    memmove(artifact + strlen("\"artifact\":null"), end + 1, strlen(end + 1) + 1);
    memcpy(artifact, "\"artifact\":null", strlen("\"artifact\":null"));
    file_put(bundle_file("contract.json"), text);
    free(text);
    bundle_reseal();
    bundle_expect_message("missing_evaluation_arm contract.json\n", "names no artifact");
    bundle_end();
}

static void resealed_weights_still_fail_through_the_artifact_index(void **state)
{
    (void)state;
    bundle_begin("adapter");
    file_append(bundle_file("adapter/adapter_model.safetensors"), "x");
    bundle_reseal();
    bundle_expect_message("modified_file adapter/adapter_model.safetensors\n", "artifact index vouches for");
    bundle_end();
    bundle_begin("adapter");
    file_put(bundle_file("adapter/more.txt"), "x");
    bundle_reseal();
    bundle_expect_message("extra_file adapter/more.txt\n", "their index does not list it");
    bundle_end();
    bundle_begin("adapter");
    assert_int_equal(0, unlink(bundle_file("adapter/checkpoint-50/trainer_state.json")));
    bundle_reseal();
    bundle_expect_message("missing_file adapter/checkpoint-50/trainer_state.json\n", "the artifact index lists it");
    bundle_end();
    /* One who also rewrites the index is caught by the contract, which pins it. */
    bundle_begin("adapter");
    file_append(bundle_file("adapter/adapter_model.safetensors"), "x");
    char *contract = file_text(bundle_file("contract.json"));
    bundle_reindex("adapter");
    file_put(bundle_file("contract.json"), contract);
    free(contract);
    bundle_reseal();
    bundle_expect_message("modified_file adapter/artifact_index.json\n", "the contract pins");
    bundle_end();
}

static void remote_code_or_an_unpinned_base_breaks_the_locked_config(void **state)
{
    (void)state;
    static const char locked[] = "config/locked.json";
    resealed("adapter", locked, "\"trust_remote_code\":false", "\"trust_remote_code\":true",
             "locked_config config/locked.json\nlocked_config config/locked.json\n",
             "enables trust_remote_code"); /* and it is not what ran */
    resealed("adapter", locked, "\"revision\":\"" REVISION "\"", "\"revision\":null",
             "artifact_index adapter/artifact_index.json\nlocked_config config/locked.json\nlocked_config config/locked.json\n",
             "no immutable revision");
    resealed("adapter", locked, "\"revision\":\"" REVISION "\"", "\"revision\":\"main\"",
             "artifact_index adapter/artifact_index.json\nlocked_config config/locked.json\nlocked_config config/locked.json\n",
             "found main");
    resealed("adapter", locked, "\"learning_rate\":0.0001", "\"learning_rate\":0.0002", "locked_config config/locked.json\n",
             "'training.learning_rate'");
    resealed("adapter", locked, "\"max_seq_length\":512", "\"max_seq_length\":512,\"packing\":true", "locked_config config/locked.json\n",
             "'training.packing'");
    resealed("adapter", locked, "\"batch_size\":1", "\"batch_size\":\"1\"", "locked_config config/locked.json\n",
             "'batch_size' must be an integer");
}

static void a_manifest_without_its_fields_is_named(void **state)
{
    (void)state;
    static const char manifest[] = "run/manifest.json";
    resealed("adapter", manifest, "2030-01-02T03:04:05Z", "yesterday", "run_manifest run/manifest.json\n", "'yesterday'");
    resealed("adapter", manifest, "2030-01-02T03:04:05Z", "2030-01-02T03:04:05.123456+02:00", "", NULL);
    resealed("adapter", manifest, "\"timestamp\"", "\"time\"", "run_manifest run/manifest.json\n", "'timestamp' is missing");
    resealed("adapter", manifest, "\"git\": {}", "\"git\": null", "run_manifest run/manifest.json\n", "'git'");
    resealed("adapter", manifest, "\"config\": {", "\"config\": [], \"other\": {", "run_manifest run/manifest.json\n", "'config'");
    resealed("adapter", manifest, "{", "", "invalid_json run/manifest.json\n", NULL);
}

static void a_foreign_base_or_kind_is_an_artifact_failure(void **state)
{
    (void)state;
    resealed("adapter", "config/locked.json", "openbmb/MiniCPM5-1B-Base", "other/model",
             "artifact_index adapter/artifact_index.json\nlocked_config config/locked.json\n", "names another base model");
    bundle_begin("adapter"); /* both arms ask another model: only the provenance tells */
    file_replace(bundle_file("contract.json"), "\"model_repository\":\"openbmb/MiniCPM5-1B-Base\"", "\"model_repository\":\"other/model\"");
    file_replace(bundle_file("contract.json"), "\"model_repository\":\"openbmb/MiniCPM5-1B-Base\"", "\"model_repository\":\"other/model\"");
    bundle_reseal();
    bundle_expect_message("artifact_index contract.json\n", "made on another base");
    bundle_end();
    resealed("adapter", "contract.json", "\"kind\":\"peft_adapter\"", "\"kind\":\"merged_model\"", "artifact_index contract.json\n",
             "not there");
    resealed("merged", "contract.json", "\"kind\":\"merged_model\"", "\"kind\":\"peft_adapter\"", "artifact_index contract.json\n",
             "adapter/artifact_index.json");
    resealed("adapter", "contract.json", "\"artifact_index_path\":\"adapter/", "\"artifact_index_path\":\"../adapter/",
             "path_escaping contract.json\n", "leaves the bundle");
}

static void an_adapter_or_model_of_another_layout_fails(void **state)
{
    (void)state;
    static const struct {
        const char *which, *folder, *file, *old, *new, *failures, *part;
    } cases[] = {
        {"adapter", "adapter", "adapter/adapter_config.json", "\"peft_type\"", "\"poft_type\"",
         "artifact_index adapter/adapter_config.json\n", "peft_type"},
        {"adapter", "adapter", "adapter/adapter_config.json", "\"base_model_name_or_path\"", "\"base\"",
         "artifact_index adapter/adapter_config.json\n", "base_model"},
        {"adapter", "adapter", "adapter/adapter_config.json", REVISION, "main", "artifact_index adapter/adapter_config.json\n",
         "another revision"},
        {"adapter", "adapter", "adapter/adapter_config.json", "{", "", "invalid_json adapter/adapter_config.json\n", NULL},
        {"merged", "merged", "merged/model.safetensors.index.json", "model-00002", "model-00003",
         "missing_file merged/model-00003-of-00002.safetensors\n", "shard index"},
        {"merged", "merged", "merged/model.safetensors.index.json", "weight_map", "map",
         "artifact_index merged/model.safetensors.index.json\n", "weight_map"},
        {"merged", "merged", "merged/config.json", "model_type", "type", "artifact_index merged/config.json\n", "model_type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bundle_begin(cases[i].which);
        file_replace(bundle_file(cases[i].file), cases[i].old, cases[i].new);
        bundle_reindex(cases[i].folder);
        bundle_expect_message(cases[i].failures, cases[i].part);
        bundle_end();
    }
    bundle_begin("merged");
    file_put(bundle_file("merged/model.safetensors"), "x");
    bundle_reindex("merged");
    bundle_expect_message("artifact_index merged/artifact_index.json\n", "both model.safetensors and a shard index");
    bundle_end();
    bundle_begin("adapter");
    assert_int_equal(0, unlink(bundle_file("adapter/adapter_model.safetensors")));
    bundle_reindex("adapter");
    bundle_expect_message("artifact_index adapter/artifact_index.json\n", "lists no adapter_model.safetensors");
    bundle_end();
}

static void an_index_without_provenance_or_with_a_wrong_one_fails(void **state)
{
    (void)state;
    ag_err err;
    bundle_begin("adapter");
    must(ag_artifact_index_write(bundle_file("adapter"), "x", NULL, 1, &err));
    bundle_reindex("adapter");
    bundle_expect_message("artifact_index adapter/artifact_index.json\nmodified_file adapter/artifact_index.json\n",
                          "no producer_provenance");
    bundle_end();
    resealed("adapter", "adapter/artifact_index.json", "\"training_split_name\": \"train\"", "\"training_split_name\": \"held_out\"",
             "modified_file adapter/artifact_index.json\nsplit_identity adapter/artifact_index.json\n", "'held_out'");
    resealed("adapter", "adapter/artifact_index.json", "\"file\": \"adapter_config.json\"", "\"file\": \"../config/locked.json\"",
             "modified_file adapter/artifact_index.json\npath_escaping adapter/artifact_index.json\n", "'..'");
    resealed("adapter", "adapter/artifact_index.json", "\"file\": \"adapter_config.json\"", "\"file\": \"adapter_model.safetensors\"",
             "duplicate_path adapter/artifact_index.json\nmodified_file adapter/artifact_index.json\n", "twice");
    resealed("adapter", "adapter/artifact_index.json", "\"output_dir\"", "\"outputs\"",
             "invalid_json adapter/artifact_index.json\nmodified_file adapter/artifact_index.json\n", "output_dir");
}

/* ---- the split ------------------------------------------------------------------------------------------------------- */
static void a_split_that_is_not_the_frozen_one_is_named(void **state)
{
    (void)state;
    /* The forger repairs the digest in the manifest, too; the members still tell. */
    bundle_begin("adapter");
    ag_err err;
    ag_sha256 before, after;
    must(ag_sha256_file(&before, bundle_file("splits/validation.jsonl"), &err));
    file_replace(bundle_file("splits/validation.jsonl"), "Zeile 5", "Zeile 9");
    must(ag_sha256_file(&after, bundle_file("splits/validation.jsonl"), &err));
    file_replace(bundle_file("split_manifest.json"), before.hex, after.hex);
    bundle_reseal();
    bundle_expect_message(
        "split_identity adapter/artifact_index.json\nsplit_identity contract.json\nsplit_identity splits/validation.jsonl\n",
        "row 1 is not the member");
    bundle_end();
    static const char manifest[] = "split_manifest.json",
                      others[] = "split_identity adapter/artifact_index.json\nsplit_identity contract.json\n";
    char want[512];
    snprintf(want, sizeof want, "%ssplit_identity split_manifest.json\nsplit_identity splits/train.jsonl\n", others);
    resealed("adapter", manifest, "\"record_count\":4", "\"record_count\":5", want, "has 5 records and 4 members");
    snprintf(want, sizeof want, "%ssplit_identity split_manifest.json\n", others);
    resealed("adapter", manifest, "\"record_count\":9", "\"record_count\":10", want, "the source had 10 records");
    resealed("adapter", manifest, "\"lineage_cross_split\":0", "\"lineage_cross_split\":1", want, "leakage audit");
    resealed("adapter", manifest, "\"lineage_id\":\"train-line-0\"", "\"lineage_id\":\"held_out-line-0\"", want,
             "the lineage_id of row 1 of train stands again in row 1 of held_out");
    resealed("adapter", manifest, "\"canonical_id\":\"train-0\"", "\"canonical_id\":\"train-1\"", want,
             "the canonical_id of row 1 of train stands again in row 2 of train");
    resealed("adapter", manifest, "split-manifest.v1", "split-manifest.v2",
             "split_identity contract.json\nunknown_schema_version split_manifest.json\n", "'agoge.split-manifest.v2'");
    resealed("adapter", manifest, "\"exclusions\"", "\"inclusions\"", "invalid_json split_manifest.json\nsplit_identity contract.json\n",
             "'exclusions'");
    resealed("adapter", manifest, "\"path\":\"splits/train.jsonl\"", "\"path\":\"../train.jsonl\"",
             "path_escaping ../train.jsonl\nsplit_identity adapter/artifact_index.json\nsplit_identity contract.json\n", "'..'");
    resealed("adapter", manifest, "\"path\":\"splits/train.jsonl\"", "\"path\":\"splits/other.jsonl\"",
             "missing_file splits/other.jsonl\nsplit_identity adapter/artifact_index.json\nsplit_identity contract.json\n",
             "does not list it");
    resealed("adapter", "contract.json", "\"held_out-0\",\"held_out-1\"", "\"held_out-1\",\"held_out-0\"",
             "split_identity contract.json\nsplit_identity contract.json\n", "in their order");
}

static bool manifest_is_read(const char *text)
{
    ag_err err;
    ag_split_reader *r = ag_split_reader_create();
    ag_status status = AG_OK;
    for (const char *at = text; *at && !status; at++) status = ag_split_reader_feed(r, at, 1, &err);
    if (!status) status = ag_split_reader_end(r, &err);
    ag_split_reader_free(&r);
    return status == AG_OK;
}

static void a_list_of_members_is_read_as_strictly_as_any_json(void **state)
{
    (void)state;
#define DIGEST "\"0000000000000000000000000000000000000000000000000000000000000000\""
#define MEMBER                                                                                                                           \
    "{\"canonical_id\":\"a]\\\"{\",\"lineage_id\":\"a\",\"group_id\":null,\"source_coordinate\":\"x:1\",\"content_sha256\":" DIGEST      \
    ",\"raw_line_sha256\":" DIGEST ",\"materialized_line_sha256\":" DIGEST "}"
#define LIST(inside) "{\"splits\":{\"train\":{\"members\":[" inside "]}}}"
    assert_true(manifest_is_read(LIST("")));
    assert_true(manifest_is_read(LIST(" " MEMBER " , " MEMBER "\n")));
    assert_true(
        manifest_is_read("{\"splits\":{\"other\":{\"members\":[1,{}]}},\"members\":[2]}")); /* not a list of ours: the schema judges it */
    static const char *const wrong[] = {LIST(MEMBER ","),
                                        LIST("," MEMBER),
                                        LIST(MEMBER MEMBER),
                                        LIST("1"),
                                        LIST("[]"),
                                        LIST(MEMBER ",," MEMBER),
                                        LIST("{}"),
                                        "{\"splits\":{\"train\":{\"members\":[" MEMBER,
                                        "{\"splits\":{\"train\":{\"members\":[]}}}}",
                                        "[]",
                                        "",
                                        "{\"splits\":{\"train\":{\"members\":[],\"members\":[]}}}",
                                        "{\"splits\":{\"tr\\u0061in\":{\"members\":[" MEMBER "]}}}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (manifest_is_read(wrong[i])) fail_msg("was read: %s", wrong[i]);
}

/* ---- a tree that changes --------------------------------------------------------------------------------------------- */
static void a_file_that_is_not_the_scanned_one_is_never_read(void **state)
{
    (void)state;
    static const char name[] = "config/locked.json";
    for (int how = 0; how < 3; how++) {
        ag_bundle_report report = {0};
        ag_bundle_tree tree;
        ag_arena arena = {0};
        size_t n;
        bundle_begin("adapter");
        assert_true(ag_bundle_tree_scan(&tree, bundle_file(""), &report));
        char *same_bytes = file_text(bundle_file(name));
        if (how == 0) { /* another file of the same content */
            file_put(bundle_file("config/other"), same_bytes);
            assert_int_equal(0, rename(bundle_file("config/other"), bundle_file(name)));
        } else if (how == 1) { /* the same file, touched */
            assert_int_equal(0, chmod(bundle_file(name), 0600));
        } else { /* its folder, behind a link */
            assert_int_equal(0, rename(bundle_file("config"), scratch_path("config")));
            assert_int_equal(0, symlink(scratch_path("config"), bundle_file("config")));
        }
        const ag_bundle_entry *file = ag_bundle_tree_file(&tree, name);
        assert_int_equal(-1, ag_bundle_tree_open(&tree, file, &report));
        assert_null(ag_bundle_tree_read(&tree, file, 1 << 20, &n, &arena, &report));
        ag_bundle_tree_digest(&tree, 1, &report);
        assert_false(file->has_digest);
        assert_int_equal(report.n, 3);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(report.failures[i].code, AG_BUNDLE_MODIFIED_FILE);
            assert_string_equal(report.failures[i].path, name);
        }
        ag_bundle_tree_check_unchanged(&tree, &report);
        assert_int_equal(report.n, 4);
        assert_null(report.failures[3].path);
        free(same_bytes);
        ag_bundle_tree_close(&tree);
        ag_bundle_report_free(&report);
        ag_arena_free(&arena);
        bundle_end();
    }
}

/* ---- how it is printed ----------------------------------------------------------------------------------------------- */
static void a_table_escapes_what_a_file_name_can_hold(void **state)
{
    (void)state;
    char want[1024];
    const char *dir = bundle_begin("adapter");
    file_put(bundle_file("a\nverdict pass\x1b[2K\xe2\x80\xae"), "x");
    char *table = verdict(dir, true);
    snprintf(want, sizeof want,
             "verdict               fail\nbundle                %s\nbundle_schema_version agoge.reproducibility-bundle.v1\n"
             "failures              1\n  extra_file: a\\nverdict pass\\x1b[2K\\u202e: is not listed in the inventory; remove it, or seal "
             "the bundle again if it "
             "belongs there\n",
             dir);
    assert_string_equal(table, want);
    free(table);
    bundle_end();
    bundle_begin("adapter");
    file_put(bundle_file("no\xffutf8"), "x");
    char *json = verdict(bundle_file(""), false);
    json_t *root;
    ag_err err;
    must(ag_json_parse(&root, json, strlen(json), "the verdict", &err)); /* whatever a file is called, programs can read the verdict */
    ag_json_free(&root);
    free(json);
    bundle_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bundle_passes_twice_alike_and_is_not_touched),
        cmocka_unit_test(sealing_writes_the_inventory_that_an_independent_program_wrote),
        cmocka_unit_test(a_merged_model_that_is_there_is_never_left_out),
        cmocka_unit_test(what_would_not_verify_is_not_sealed),
        cmocka_unit_test(an_appended_byte_is_a_modified_file),
        cmocka_unit_test(a_changed_byte_is_a_modified_file),
        cmocka_unit_test(a_deleted_file_is_a_missing_file),
        cmocka_unit_test(a_stray_file_is_an_extra_file_with_its_path),
        cmocka_unit_test(a_link_anywhere_is_an_unsafe_symlink),
        cmocka_unit_test(special_files_and_pickled_weights_are_unsafe_paths),
        cmocka_unit_test(entries_twice_or_out_of_bounds_are_named),
        cmocka_unit_test(a_truncated_inventory_is_invalid_json),
        cmocka_unit_test(an_unknown_inventory_version_is_exactly_one_failure_that_quotes_it),
        cmocka_unit_test(a_contract_of_version_1_or_without_an_arm_is_named),
        cmocka_unit_test(resealed_weights_still_fail_through_the_artifact_index),
        cmocka_unit_test(remote_code_or_an_unpinned_base_breaks_the_locked_config),
        cmocka_unit_test(a_manifest_without_its_fields_is_named),
        cmocka_unit_test(a_foreign_base_or_kind_is_an_artifact_failure),
        cmocka_unit_test(an_adapter_or_model_of_another_layout_fails),
        cmocka_unit_test(an_index_without_provenance_or_with_a_wrong_one_fails),
        cmocka_unit_test(a_split_that_is_not_the_frozen_one_is_named),
        cmocka_unit_test(a_list_of_members_is_read_as_strictly_as_any_json),
        cmocka_unit_test(a_file_that_is_not_the_scanned_one_is_never_read),
        cmocka_unit_test(a_table_escapes_what_a_file_name_can_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
