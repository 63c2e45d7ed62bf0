#define _GNU_SOURCE
#include "train/train_config.h"

#include "base/fs.h"
#include "support/cmocka_all.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEEDED "model_id: some/model\ndataset_path: rows.jsonl\n"

static ag_err err;

static ag_train_config *parse_sets(const char *yaml, const char *const *sets, size_t n_sets)
{
    ag_train_config *config = NULL;
    err = (ag_err){0};
    ag_status status = ag_train_config_parse(&config, yaml, strlen(yaml), "c.yaml", sets, n_sets, &err);
    assert_int_equal(status, err.code);
    assert_true((config != NULL) == (status == AG_OK));
    return config;
}

static ag_train_config *parse(const char *yaml)
{
    ag_train_config *config = parse_sets(yaml, NULL, 0);
    if (!config) fail_msg("%s", err.text);
    return config;
}

/* The text must be refused with exactly this sentence. */
static void refuse(const char *yaml, const char *sentence)
{
    ag_train_config *config = parse_sets(yaml, NULL, 0);
    if (config) fail_msg("accepted: %s", yaml);
    assert_string_equal(err.text, sentence);
}

static void refuse_set(const char *set, const char *sentence)
{
    ag_train_config *config = parse_sets(NEEDED, &set, 1);
    if (config) fail_msg("accepted: --set %s", set);
    assert_string_equal(err.text, sentence);
}

static char *to_json(const ag_train_config *config)
{
    ag_str text = {0};
    ag_json_writer w = {.out = &text, .indent = -1};
    ag_train_config_write(config, &w, NULL);
    return text.text;
}

static void the_defaults_are_those_of_the_specification(void **state)
{
    (void)state;
    ag_train_config *c = parse(NEEDED);
    char *json = to_json(c);
    assert_string_equal(
        json,
        "{\"model_id\":\"some/model\",\"revision\":null,\"trust_remote_code\":false,\"dataset_path\":\"rows.jsonl\","
        "\"dataset_text_field\":\"text\",\"output_dir\":\"adapters\",\"run_name\":\"run\","
        "\"quantization\":{\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"nf4\",\"bnb_4bit_compute_dtype\":\"bfloat16\","
        "\"bnb_4bit_use_double_quant\":true},"
        "\"training\":{\"max_seq_length\":2048,\"batch_size\":1,\"gradient_accumulation_steps\":8,\"gradient_checkpointing\":"
        "true,"
        "\"learning_rate\":0.0002,\"num_train_epochs\":1,\"max_steps\":-1,\"lr_scheduler_type\":\"linear\",\"warmup_steps\":0,"
        "\"warmup_ratio\":0.0,\"weight_decay\":0.0,\"adam_beta1\":0.9,\"adam_beta2\":0.999,\"adam_epsilon\":1e-08,"
        "\"max_grad_norm\":1.0,\"optim\":\"adamw_torch\",\"bf16\":true,\"seed\":42,\"packing\":false,"
        "\"completion_only_loss\":false,\"assistant_only_loss\":false,\"neftune_noise_alpha\":null,\"loraplus_lr_ratio\":null,"
        "\"eval_dataset_path\":null,\"eval_steps\":0,\"eval_prompts\":null,\"eval_prompt_tokens\":48,\"save_steps\":50,\"save_total_limit\":2,"
        "\"resume_from_latest_checkpoint\":false,\"resume_checkpoint_path\":null},"
        "\"lora\":{\"lora_r\":16,\"lora_alpha\":32,\"lora_dropout\":0.05,\"use_rslora\":false,\"use_dora\":false,\"bias\":\"none\","
        "\"target_modules\":[\"q_proj\",\"v_proj\"],\"exclude_modules\":null,\"target_modules_mode\":\"auto_common\",\"modules_to_save\":null,"
        "\"layers_to_transform\":null,\"layers_pattern\":null,\"rank_pattern\":null,\"alpha_pattern\":null},"
        "\"runtime\":{\"save_safetensors\":true,\"allow_unsafe_serialization\":false,\"max_shard_size\":\"4GB\","
        "\"disk_free_warning_gb\":20.0,\"checkpoint_disk_buffer_gb\":8.0,\"logging_dir\":\"runs/run\",\"save_on_signal\":true},"
        "\"telemetry\":{\"run_id\":null,\"emit_markers\":true,\"profile_window\":{\"enabled\":false,\"phase\":\"train\","
        "\"start_step\":1,\"end_step\":2,\"backend\":\"torch\"}}}");
    assert_string_equal(c->run_dir, "adapters/run");
    free(json);
    ag_train_config_free(&c);
    assert_null(c);
    ag_train_config_free(&c);
}

static void every_kind_of_value_is_read(void **state)
{
    (void)state;
    ag_train_config *c = parse("# a comment\n"
                               "model_id: \"a b\"   # with a comment\n"
                               "dataset_path: '../data/x.jsonl'\n"
                               "run_name: 2024\n"
                               "learning_rate: 1e-4\n"
                               "adam_epsilon: .5e-3\n"
                               "warmup_ratio: +0.1\n"
                               "lora_dropout: 0\n"
                               "packing: yes\n"
                               "bf16: Off\n"
                               "max_steps: -1\n"
                               "save_total_limit: null\n"
                               "target_modules: [q_proj, \"o_proj\",\n  up_proj]\n"
                               "target_modules_mode: explicit\n"
                               "lr_scheduler_type: constant_with_warmup\n"
                               "use_dora: false\n"
                               "rank_pattern: {}\n"
                               "modules_to_save: []\n"
                               "telemetry:\n  run_id: abc\n  profile_window:\n    phase: ' train '\n    end_step: 7\n");
    assert_string_equal(c->model_id, "a b");
    assert_string_equal(c->dataset_path, "../data/x.jsonl");
    assert_string_equal(c->run_name, "2024");
    assert_true(c->learning_rate == 1e-4);
    assert_true(c->adam_epsilon == 0.5e-3);
    assert_true(c->warmup_ratio == 0.1);
    assert_true(c->lora_dropout == 0);
    assert_true(c->packing);
    assert_false(c->bf16);
    assert_int_equal(c->save_total_limit, 0);
    assert_int_equal(c->target_modules.n, 3);
    assert_string_equal(c->target_modules.item[1], "o_proj");
    assert_int_equal(c->target_modules_mode, AG_TARGETS_EXPLICIT);
    assert_int_equal(c->lr_scheduler_type, AG_LR_SCHEDULE_CONSTANT_WITH_WARMUP);
    assert_string_equal(c->telemetry.run_id, "abc");
    assert_int_equal(c->telemetry.profile_window.end_step, 7);
    assert_string_equal(c->logging_dir, "runs/2024");
    ag_train_config_free(&c);
}

static void a_revision_may_be_a_number_or_blank_but_no_boolean(void **state)
{
    (void)state;
    ag_train_config *c = parse(NEEDED "revision: 1234567\n");
    assert_string_equal(c->revision, "1234567");
    ag_train_config_free(&c);
    c = parse(NEEDED "revision: \"  \"\n");
    assert_null(c->revision);
    ag_train_config_free(&c);
    c = parse(NEEDED "revision: ' main '\n");
    assert_string_equal(c->revision, "main");
    ag_train_config_free(&c);
    refuse(NEEDED "revision: true\n",
           "c.yaml:3: 'revision' must be a string or null (in quotes if it is meant as text), found the boolean 'true'");
    refuse(NEEDED "revision: [a]\n", "c.yaml:3: 'revision' must be one value, found a list");
}

static void misspelt_keys_are_refused_with_the_nearest_one(void **state)
{
    (void)state;
    refuse(NEEDED "lerning_rate: 1e-4\n", "c.yaml:3: unknown key 'lerning_rate'; did you mean 'learning_rate'?");
    refuse(NEEDED "xyzzy: 1\n", "c.yaml:3: unknown key 'xyzzy'; docs/configuration.md lists the known ones");
    refuse(NEEDED "telemetry:\n  runid: x\n", "c.yaml:4: unknown key 'telemetry.runid'; did you mean 'telemetry.run_id'?");
    refuse(NEEDED "optim: adamw_tourch\n", "c.yaml:3: 'optim' must be 'adamw_torch' or 'adamw_8bit', found the string "
                                           "'adamw_tourch'; did you mean 'adamw_torch'?");
}

static void wrong_types_and_bounds_are_refused(void **state)
{
    (void)state;
    refuse(NEEDED "batch_size: \"8\"\n", "c.yaml:3: 'batch_size' must be an integer, found the string '8'");
    refuse(NEEDED "batch_size: 1.5\n", "c.yaml:3: 'batch_size' must be an integer, found the number '1.5'");
    refuse(NEEDED "batch_size: 0\n", "c.yaml:3: 'batch_size' must be from 1 to 65536, found 0");
    refuse(NEEDED "batch_size: 99999999999999999999\n",
           "c.yaml:3: 'batch_size' must be from 1 to 65536, found 99999999999999999999");
    refuse(NEEDED "batch_size: 010\n",
           "c.yaml:3: 'batch_size' is '010': some YAML readers take a leading 0 for octal; write it without");
    refuse(NEEDED "batch_size: true\n", "c.yaml:3: 'batch_size' must be an integer, found the boolean 'true'");
    refuse(NEEDED "batch_size:\n", "c.yaml:3: 'batch_size' must be an integer, found null");
    refuse(NEEDED "learning_rate: fast\n", "c.yaml:3: 'learning_rate' must be a number, found the string 'fast'");
    refuse(NEEDED "learning_rate: .nan\n", "c.yaml:3: 'learning_rate' must be a number, found the string '.nan'");
    refuse(NEEDED "learning_rate: 1e999\n", "c.yaml:3: 'learning_rate' must be at least 0 and below 1000, found 1e999");
    refuse(NEEDED "lora_dropout: 1\n", "c.yaml:3: 'lora_dropout' must be at least 0 and below 1, found 1");
    refuse(NEEDED "packing: 1\n", "c.yaml:3: 'packing' must be true or false, found the number '1'");
    refuse(NEEDED "packing: \"true\"\n", "c.yaml:3: 'packing' must be true or false, found the string 'true'");
    refuse(NEEDED "run_name: yes\n",
           "c.yaml:3: 'run_name' must be a string (in quotes if it is meant as text), found the boolean 'yes'");
    refuse(NEEDED "run_name: ' '\n", "c.yaml:3: 'run_name' is empty; give it a value or leave the key out");
    refuse(NEEDED "target_modules: {q_proj: 1}\n", "c.yaml:3: 'target_modules' must be one value, found a mapping");
    refuse(NEEDED "target_modules: [[a]]\n",
           "c.yaml:3: 'target_modules' must be a list of strings, found something nested in it");
    refuse(NEEDED "seed: {a: 1}\n", "c.yaml:3: 'seed' must be one value, found a mapping");
    refuse(NEEDED "bnb_4bit_compute_dtype: float16\n", "c.yaml:3: 'bnb_4bit_compute_dtype' must be 'bfloat16' or 'float32', "
                                                       "found the string 'float16'; did you mean 'bfloat16'?");
    refuse(NEEDED "max_shard_size: 4 GB\n",
           "c.yaml: 'max_shard_size': a size must be a whole number above 0 with KB, MB, GB, TB, KiB, "
           "MiB, GiB, TiB or nothing behind it, found '4 GB'");
    refuse(NEEDED "max_steps: 0\n", "c.yaml: 'max_steps' must be -1 (the epochs decide) or at least 1, found 0");
    refuse(NEEDED "run_name: a/b\n",
           "c.yaml: 'run_name' must be one path component, found 'a/b'; set the folder with 'output_dir'");
}

static void files_that_are_no_plain_mapping_are_refused(void **state)
{
    (void)state;
    refuse("", "c.yaml:1: the file is empty; it must be a mapping of keys to values");
    refuse("# only a comment\n", "c.yaml:1: the file is empty; it must be a mapping of keys to values");
    refuse("- a\n", "c.yaml:1: the file must be a mapping of keys to values, found a list");
    refuse("5\n", "c.yaml:1: the file must be a mapping of keys to values, found a number");
    refuse("hello\n", "c.yaml:1: the file must be a mapping of keys to values, found a string");
    refuse(NEEDED "seed: 1\nseed: 2\n", "c.yaml:4: 'seed' stands here twice; the first is in line 3");
    refuse("telemetry: {}\ntelemetry: {}\n", "c.yaml:2: 'telemetry' stands here twice; the first is in line 1");
    refuse(NEEDED "run_name: &a x\noutput_dir: *a\n", "c.yaml:3: anchor 'a': a config has no use for it; write the value out");
    refuse(NEEDED "output_dir: *a\n", "c.yaml:3: alias 'a': a config has no use for it; write the value out");
    refuse(NEEDED "seed: !!int 3\n", "c.yaml:3: tag 'tag:yaml.org,2002:int': a config has no use for it; write the value out");
    refuse(NEEDED "---\nseed: 3\n", "c.yaml:3: a second document begins here; a config is one document");
    refuse(NEEDED "[a]: 3\n", "c.yaml:3: a key must be a word, found a list or a mapping");
    refuse(NEEDED "telemetry: 3\n", "c.yaml:3: 'telemetry' must be a mapping of keys to values");
    refuse(NEEDED "  seed: 3\n", "c.yaml:3: not valid YAML: mapping values are not allowed in this context (column 7)");
    refuse("model_id: \xff\n", "c.yaml:1: invalid leading UTF-8 octet at byte 10; a config is YAML in UTF-8");
}

static void required_keys_are_missed(void **state)
{
    (void)state;
    refuse("dataset_path: x\n", "c.yaml: the required key 'model_id' is missing");
    refuse("model_id: x\n", "c.yaml: the required key 'dataset_path' is missing");
    refuse("model_id: null\n", "c.yaml:1: 'model_id' must be a string (in quotes if it is meant as text), found null");
}

static void what_an_adapter_trains_is_read(void **state)
{
    (void)state;
    ag_train_config *c = parse("model_id: m\ndataset_path: d\nuse_dora: true\nbias: lora_only\ntarget_modules: all-linear\n"
                               "exclude_modules: [up_proj, layers.3.mlp.down_proj]\nmodules_to_save: [lm_head, norm]\n"
                               "layers_to_transform: [0, 2]\nlayers_pattern: [layers]\nrank_pattern: {q_proj: 8, '(k|v)_proj': 2}\n"
                               "alpha_pattern:\n  v_proj: 2.5\nloraplus_lr_ratio: 16\nneftune_noise_alpha: 5.0\noptim: adamw_8bit\n");
    assert_true(c->use_dora && c->bias == AG_BIAS_LORA_ONLY && c->target_modules.is_pattern && c->optim == AG_OPTIM_ADAMW_8BIT);
    assert_string_equal(c->target_modules.item[0], "all-linear");
    assert_true(c->exclude_modules.n == 2 && !c->exclude_modules.is_pattern && c->modules_to_save.n == 2 && c->layers_pattern.n == 1);
    assert_true(c->layers_to_transform.n == 2 && c->layers_to_transform.item[1] == 2);
    assert_true(c->rank_pattern.n == 2 && c->rank_pattern.item[1].value == 2 && c->alpha_pattern.item[0].value == 2.5);
    assert_string_equal(c->rank_pattern.item[1].name, "(k|v)_proj");
    assert_true(c->loraplus_lr_ratio == 16 && c->neftune_noise_alpha == 5);
    ag_str out = {0};
    ag_json_writer w = {.out = &out};
    ag_train_config_write(c, &w, NULL);
    assert_non_null(strstr(out.text, "\"target_modules\": \"all-linear\", \"exclude_modules\": [\"up_proj\", \"layers.3.mlp.down_proj\"],"));
    assert_non_null(strstr(out.text, "\"layers_to_transform\": [0, 2], \"layers_pattern\": [\"layers\"], \"rank_pattern\": {\"q_proj\": 8,"));
    ag_str_free(&out);
    ag_train_config_free(&c);
    c = parse_sets("model_id: m\ndataset_path: d\n", (const char *const[]){"rank_pattern={q_proj: 4}", "layers_to_transform=3", "exclude_modules=.*mlp.*"}, 3);
    assert_true(c->rank_pattern.n == 1 && c->layers_to_transform.n == 1 && c->layers_to_transform.item[0] == 3 && c->exclude_modules.is_pattern);
    ag_train_config_free(&c);
    refuse(NEEDED "layers_to_transform: [-1]\n", "c.yaml:3: 'layers_to_transform' must be from 0 to 2147483647, found -1");
    refuse(NEEDED "layers_to_transform: [[1]]\n", "c.yaml:3: 'layers_to_transform' must be a list of integers, found something nested in it");
    refuse(NEEDED "rank_pattern: [q_proj]\n", "c.yaml:3: 'rank_pattern' must be one value, found a list");
    refuse(NEEDED "rank_pattern: 8\n", "c.yaml:3: 'rank_pattern' must be a mapping of names to numbers, such as {q_proj: 8}, found the number '8'");
    refuse(NEEDED "rank_pattern: {q_proj: many}\n", "c.yaml:3: 'rank_pattern' must be a number, found the string 'many'");
    refuse(NEEDED "rank_pattern: {q_proj: 1, q_proj: 2}\n", "c.yaml:3: 'rank_pattern' has the key 'q_proj' twice");
    refuse(NEEDED "rank_pattern: {q_proj: {a: 1}}\n", "c.yaml:3: 'rank_pattern' must map names to numbers, found something nested in it");
    refuse(NEEDED "modules_to_save: lm_head\n", "c.yaml:3: 'modules_to_save' must be a list of strings, such as [q_proj, v_proj], found the string 'lm_head'");
    refuse(NEEDED "bias: some\n", "c.yaml:3: 'bias' must be 'none', 'all' or 'lora_only', found the string 'some'; did you mean 'none'?");
    refuse(NEEDED "loraplus_lr_ratio: -2\n", "c.yaml:3: 'loraplus_lr_ratio' must be at least 1e-06 and below 1e+06, found -2");
}

static void what_is_not_supported_is_refused_by_name(void **state)
{
    (void)state;
    refuse(NEEDED "trust_remote_code: true\n",
           "c.yaml: 'trust_remote_code' is true, but agoge runs no code that comes with a model; set it to false");
    refuse(NEEDED "save_safetensors: false\n",
           "c.yaml: 'save_safetensors' is false, but agoge writes no pickled weights; set it to true");
}

static void keys_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    refuse(NEEDED "completion_only_loss: true\nassistant_only_loss: true\n",
           "c.yaml: 'completion_only_loss' and 'assistant_only_loss' are both true; choose one: the first is for 'text' rows, "
           "the second "
           "for 'messages' rows");
    refuse(NEEDED "completion_only_loss: true\ndataset_text_field: body\n",
           "c.yaml: 'completion_only_loss' needs 'dataset_text_field: text', found 'body'");
    refuse(NEEDED "telemetry: {profile_window: {start_step: 3}}\n",
           "c.yaml: 'telemetry.profile_window.end_step' (2) is before 'start_step' (3)");
}

static void set_replaces_one_key_and_is_recorded(void **state)
{
    (void)state;
    const char *sets[] = {"learning_rate=5e-5", "target_modules=[k_proj]", "telemetry.run_id=r=1", "revision="};
    ag_train_config *c = parse_sets(NEEDED "learning_rate: 1\nrevision: x\n", sets, 4);
    if (!c) fail_msg("%s", err.text);
    assert_true(c->learning_rate == 5e-5);
    assert_int_equal(c->target_modules.n, 1);
    assert_string_equal(c->target_modules.item[0], "k_proj");
    assert_string_equal(c->telemetry.run_id, "r=1");
    assert_null(c->revision);
    ag_str text = {0};
    ag_json_writer w = {.out = &text, .indent = -1};
    ag_train_config_write_overrides(c, &w, NULL);
    assert_string_equal(text.text,
                        "[{\"key\":\"learning_rate\",\"value\":\"5e-5\"},{\"key\":\"target_modules\",\"value\":\"[k_proj]\"},"
                        "{\"key\":\"telemetry.run_id\",\"value\":\"r=1\"},{\"key\":\"revision\",\"value\":\"\"}]");
    ag_str_free(&text);
    ag_train_config_free(&c);

    refuse_set("learning_rat=1", "--set learning_rat: unknown key 'learning_rat'; did you mean 'learning_rate'?");
    assert_int_equal(err.code, AG_E_USAGE);
    refuse_set("learning_rate", "--set takes key=value, such as --set learning_rate=1e-4; found 'learning_rate'");
    refuse_set("seed=x", "--set seed: 'seed' must be an integer, found the string 'x'");
    refuse_set("model_id=a: b", "--set model_id: 'model_id' must be one value, found a mapping");
    refuse_set("run_name=x\nseed: 3",
               "--set run_name: not valid YAML: mapping values are not allowed in this context (column 5)");
    const char *twice[] = {"seed=1", "seed=2"};
    assert_null(parse_sets(NEEDED, twice, 2));
    assert_string_equal(err.text, "--set seed is given twice; say which value is meant");
}

static void the_compute_type_follows_from_two_keys(void **state)
{
    (void)state;
    static const struct {
        const char *yaml;
        bool bf16;
    } cases[] = {{"load_in_4bit: true\n", true},
                 {"bnb_4bit_compute_dtype: float32\n", false},
                 {"bf16: false\n", true},
                 {"load_in_4bit: false\n", true},
                 {"load_in_4bit: false\nbf16: false\n", false},
                 {"load_in_4bit: false\nbnb_4bit_compute_dtype: float32\n", true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char yaml[200];
        snprintf(yaml, sizeof yaml, NEEDED "%s", cases[i].yaml);
        ag_train_config *c = parse(yaml);
        assert_int_equal(ag_train_config_computes_bf16(c), cases[i].bf16);
        ag_train_config_free(&c);
    }
}

static void sizes_are_read_with_their_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"4GB", 4000000000u}, {"2GiB", 2147483648u}, {"500mb", 500000000}, {"1048576", 1048576}, {"3KiB", 3072}};
    static const char *const bad[] = {"", "0", "GB", "-1GB", "1.5GB", "4GBB", "99999999999999999999", "99999999TiB", " 4GB"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t bytes = 0;
        assert_int_equal(ag_byte_size_parse(&bytes, good[i].text, &err), AG_OK);
        assert_true(bytes == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t bytes = 0;
        if (ag_byte_size_parse(&bytes, bad[i], &err) != AG_E_CONFIG) fail_msg("accepted: '%s'", bad[i]);
    }
}

/* ---- files -------------------------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/agoge-config-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void paths_start_at_the_yaml_from_any_working_directory(void **state)
{
    (void)state;
    char path[300], wanted[300], made[300];
    assert_non_null(mkdtemp(folder));
    snprintf(made, sizeof made, "%s/configs", folder);
    assert_int_equal(mkdir(made, 0700), 0);
    write_file("rows.jsonl", "{}\n");
    write_file("configs/c.yaml", "model_id: m\ndataset_path: ../rows.jsonl\neval_dataset_path: ./../configs/../rows.jsonl\n");
    snprintf(path, sizeof path, "%s/configs/c.yaml", folder);
    snprintf(wanted, sizeof wanted, "%s/rows.jsonl", folder);
    char *before = getcwd(NULL, 0);
    static const char *const places[] = {"/", "/tmp"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(chdir(places[i]), 0);
        ag_train_config *c = NULL;
        if (ag_train_config_load(&c, path, NULL, 0, &err)) fail_msg("%s", err.text);
        assert_string_equal(c->dataset_file, wanted);
        assert_string_equal(c->eval_dataset_file, wanted);
        assert_string_equal(c->path, path);
        char *json = to_json(c);
        assert_non_null(strstr(json, wanted)); /* the manifest says which file it was */
        free(json);
        ag_train_config_free(&c);
    }
    assert_int_equal(chdir(before), 0);
    free(before);
}

static void refuse_load(const char *yaml, ag_status code, const char *part)
{
    char path[300];
    write_file("configs/bad.yaml", yaml);
    snprintf(path, sizeof path, "%s/configs/bad.yaml", folder);
    ag_train_config *c = NULL;
    assert_int_equal(ag_train_config_load(&c, path, NULL, 0, &err), code);
    assert_null(c);
    if (!strstr(err.text, part)) fail_msg("'%s' does not say '%s'", err.text, part);
}

static void missing_datasets_and_bad_paths_are_refused(void **state)
{
    (void)state;
    refuse_load("model_id: m\ndataset_path: ../none.jsonl\n", AG_E_NOT_FOUND, "'dataset_path' is '../none.jsonl', but");
    refuse_load("model_id: m\ndataset_path: ../configs\n", AG_E_CONFIG, "'dataset_path' must be a file");
    refuse_load("model_id: m\ndataset_path: /tmp/../etc/passwd\n", err.code, "..");
    refuse_load("model_id: m\ndataset_path: ../rows.jsonl\noutput_dir: ../out\n", err.code, "'output_dir'");
    ag_train_config *c = NULL;
    assert_int_not_equal(ag_train_config_load(&c, "/tmp/agoge-no-such-file.yaml", NULL, 0, &err), AG_OK);
    char remove_command[400];
    snprintf(remove_command, sizeof remove_command, "%s", folder);
    assert_int_equal(ag_remove_tree(remove_command, &err), AG_OK);
}

static void the_shipped_configs_parse(void **state)
{
    (void)state;
    ag_arena arena = {0};
    char **names;
    size_t n, n_configs = 0;
    if (ag_dir_list(&names, &n, AGOGE_SOURCE_DIR "/configs", &arena, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < n; i++) {
        char *text, *path = ag_path_join(&arena, AGOGE_SOURCE_DIR "/configs", names[i]);
        size_t n_text;
        if (!strstr(names[i], ".yaml")) continue;
        if (ag_file_read(&text, &n_text, path, 1 << 20, &arena, &err)) fail_msg("%s", err.text);
        ag_train_config *c;
        if (ag_train_config_parse(&c, text, n_text, path, NULL, 0, &err)) fail_msg("%s", err.text);
        ag_train_config_free(&c);
        if (!strstr(names[i], ".example") && ag_train_config_load(&c, path, NULL, 0, &err)) fail_msg("%s", err.text);
        ag_train_config_free(&c);
        n_configs++;
    }
    assert_true(n_configs >= 5);
    ag_arena_free(&arena);
}

/* ---- documentation ---------------------------------------------------------------------------------------------------- */

static void add_table(ag_str *out)
{
    const ag_config_key_info *info;
    size_t n = ag_train_config_keys(&info);
    const char *section = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!section || strcmp(section, info[i].section) != 0) {
            section = info[i].section;
            ag_str_printf(out, "\n### %s\n\n| key | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- |\n",
                          *section ? section : "top level");
        }
        ag_str_printf(out, "| `%s` | %s | %s%s%s | %s | %s |\n", info[i].key, info[i].type, *info[i].fallback ? "`" : "",
                      *info[i].fallback ? info[i].fallback : "required", *info[i].fallback ? "`" : "", info[i].allowed,
                      info[i].help);
    }
    ag_str_add(out, "\n");
}

static void docs_configuration_md_holds_the_table(void **state)
{
    (void)state;
    static const char begin[] = "<!-- keys: begin -->\n", end[] = "<!-- keys: end -->\n";
    const char *path = AGOGE_SOURCE_DIR "/docs/configuration.md";
    ag_arena arena = {0};
    ag_str table = {0};
    char *text;
    size_t n;
    add_table(&table);
    if (ag_file_read(&text, &n, path, 1 << 20, &arena, &err)) fail_msg("%s", err.text);
    char *from = strstr(text, begin), *to = strstr(text, end);
    if (!from || !to) fail_msg("%s has lost its markers", path);
    from += strlen(begin);
    bool same = (size_t)(to - from) == table.n && memcmp(from, table.text, table.n) == 0;
    if (!same && getenv("AGOGE_UPDATE")) {
        ag_str whole = {0};
        ag_str_add_n(&whole, text, (size_t)(from - text));
        ag_str_add_n(&whole, table.text, table.n);
        ag_str_add(&whole, to);
        assert_int_equal(ag_file_publish(path, whole.text, whole.n, &err), AG_OK);
        ag_str_free(&whole);
    } else if (!same) {
        fail_msg("%s differs from the table of keys; run this test with AGOGE_UPDATE=1 and look at the change", path);
    }
    ag_str_free(&table);
    ag_arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_defaults_are_those_of_the_specification),
        cmocka_unit_test(every_kind_of_value_is_read),
        cmocka_unit_test(a_revision_may_be_a_number_or_blank_but_no_boolean),
        cmocka_unit_test(misspelt_keys_are_refused_with_the_nearest_one),
        cmocka_unit_test(wrong_types_and_bounds_are_refused),
        cmocka_unit_test(files_that_are_no_plain_mapping_are_refused),
        cmocka_unit_test(required_keys_are_missed),
        cmocka_unit_test(what_an_adapter_trains_is_read),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(keys_that_contradict_each_other_are_refused),
        cmocka_unit_test(set_replaces_one_key_and_is_recorded),
        cmocka_unit_test(the_compute_type_follows_from_two_keys),
        cmocka_unit_test(sizes_are_read_with_their_units),
        cmocka_unit_test(paths_start_at_the_yaml_from_any_working_directory),
        cmocka_unit_test(missing_datasets_and_bad_paths_are_refused),
        cmocka_unit_test(the_shipped_configs_parse),
        cmocka_unit_test(docs_configuration_md_holds_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
