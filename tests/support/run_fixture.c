#define _GNU_SOURCE
#include "support/run_fixture.h"

#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/digest.h"
#include "base/fs.h"
#include "base/str.h"
#include "format/safetensors.h"
#include "seal/artifact_index.h"
#include "train/trainer_state.h"

#include <sys/stat.h>
#include <unistd.h>

static char home[4096];

/* ---- files ------------------------------------------------------------------------------------------------------- */
void fixture_write_n(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) fail_msg("%s cannot be written", path);
}

void fixture_write(const char *path, const char *text) { fixture_write_n(path, text, strlen(text)); }

char *fixture_read(const char *path, size_t *n)
{
    ag_err err;
    ag_arena arena = {0};
    char *text;
    size_t size;
    must(ag_file_read(&text, &size, path, 16 << 20, &arena, &err));
    char *copy = malloc(size + 1);
    memcpy(copy, text, size + 1);
    ag_arena_free(&arena);
    if (n) *n = size;
    return copy;
}

void fixture_copy(const char *from, const char *to)
{
    size_t n;
    char *bytes = fixture_read(from, &n);
    fixture_write_n(to, bytes, n);
    free(bytes);
}

void fixture_copy_tree(const char *from, const char *to)
{
    ag_err err;
    ag_arena arena = {0};
    char **names;
    size_t n;
    must(ag_dir_list(&names, &n, from, &arena, &err));
    if (mkdir(to, 0755) && !ag_path_is_dir(to)) fail_msg("%s cannot be made", to);
    for (size_t i = 0; i < n; i++) {
        const char *source = ag_path_join(&arena, from, names[i]), *target = ag_path_join(&arena, to, names[i]);
        if (ag_path_is_dir(source)) fixture_copy_tree(source, target);
        else fixture_copy(source, target);
    }
    ag_arena_free(&arena);
}

void fixture_golden(const char *name, const char *to)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/golden/runs/%s", AGOGE_TESTS_DIR, name);
    fixture_copy(path, to);
}

void fixture_replace(const char *path, const char *from, const char *to)
{
    char *text = fixture_read(path, NULL), *at = strstr(text, from);
    if (!at) fail_msg("'%s' is not in %s", from, path);
    ag_str s = {0};
    ag_str_add_n(&s, text, (size_t)(at - text));
    ag_str_add(&s, to);
    ag_str_add(&s, at + strlen(from));
    fixture_write(path, s.text);
    ag_str_free(&s);
    free(text);
}

void fixture_remove(const char *path)
{
    ag_err err;
    must(ag_remove_tree(path, &err));
}

void fixture_make_dir(const char *path)
{
    ag_err err;
    must(ag_make_dirs(path, &err));
}

bool fixture_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static void picture(ag_str *out, const char *dir, ag_arena *arena)
{
    ag_err err;
    char **names;
    size_t n;
    must(ag_dir_list(&names, &n, dir, arena, &err));
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        const char *path = ag_path_join(arena, dir, names[i]);
        assert_int_equal(0, lstat(path, &st));
        ag_str_printf(out, "%s %o", path, (unsigned)st.st_mode);
        if (S_ISREG(st.st_mode)) {
            ag_sha256 digest;
            must(ag_sha256_file(&digest, path, &err));
            ag_str_printf(out, " %s", digest.hex);
        }
        ag_str_add_char(out, '\n');
        if (S_ISDIR(st.st_mode)) picture(out, path, arena);
    }
}

char *fixture_picture(const char *dir)
{
    ag_str s = {0};
    ag_arena arena = {0};
    ag_str_add(&s, "");
    picture(&s, dir, &arena);
    ag_arena_free(&arena);
    return s.text;
}

/* ---- a model ----------------------------------------------------------------------------------------------------- */
enum { V = 300, C = 32, F = 64, KV = 16, L = 2 };

static void add(ag_st_entry *entries, size_t *n, const char *name, int64_t rows, int64_t columns, const void *data)
{
    entries[*n] = (ag_st_entry){.name = name, .dtype = AG_ST_F32, .rank = columns ? 2 : 1, .dim = {rows, columns}, .data = data};
    (*n)++;
}

static void write_weights(const char *path)
{
    static const struct {
        const char *name;
        int64_t rows, columns;
    } parts[] = {{"input_layernorm", C, 0},      {"post_attention_layernorm", C, 0}, {"self_attn.q_proj", C, C},
                 {"self_attn.k_proj", KV, C},    {"self_attn.v_proj", KV, C},        {"self_attn.o_proj", C, C},
                 {"mlp.gate_proj", F, C},        {"mlp.up_proj", F, C},              {"mlp.down_proj", C, F}};
    static const float zeros[V * C];
    ag_err err;
    ag_arena arena = {0};
    ag_st_entry entries[64];
    size_t n = 0;
    add(entries, &n, "model.embed_tokens.weight", V, C, zeros);
    add(entries, &n, "model.norm.weight", C, 0, zeros);
    add(entries, &n, "lm_head.weight", V, C, zeros);
    for (int l = 0; l < L; l++)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            add(entries, &n, ag_arena_printf(&arena, "model.layers.%d.%s.weight", l, parts[i].name), parts[i].rows, parts[i].columns, zeros);
    must(ag_safetensors_write(path, entries, n, AG_ST_ORDER_LIBRARY, NULL, 0, &err));
    ag_arena_free(&arena);
}

static void write_model(const char *dir)
{
    static const char *const files[] = {"config.json", "tokenizer.json", "tokenizer_config.json"};
    char from[64], to[512];
    fixture_make_dir(dir);
    for (size_t i = 0; i < 3; i++) {
        snprintf(from, sizeof from, "base/%s", files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        fixture_golden(from, to);
    }
    snprintf(to, sizeof to, "%s/model.safetensors", dir);
    write_weights(to);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */
static int skip_fsync(int fd)
{
    (void)fd;
    return 0;
}

void run_fixture_begin(void)
{
    ag_fs_calls_used.fsync = skip_fsync; /* a fixture need not outlive a power cut */
    assert_non_null(getcwd(home, sizeof home));
    assert_int_equal(0, chdir(scratch_dir_create()));
    write_model("base/tiny-llama");
    fixture_make_dir("adapters/run");
}

void run_fixture_end(void)
{
    ag_fs_calls_used = ag_fs_system_calls;
    assert_int_equal(0, chdir(home));
    scratch_dir_remove();
}

static void take(const char *dir, const char *const *files, size_t n)
{
    char from[128], to[512];
    fixture_make_dir(dir);
    for (size_t i = 0; i < n; i++) {
        snprintf(from, sizeof from, "checkpoint-2/%s", files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        fixture_golden(from, to);
    }
}

void run_fixture_adapter(const char *dir)
{
    take(dir, (const char *const[]){"adapter_config.json", "adapter_model.safetensors"}, 2);
}

void run_fixture_checkpoint(const char *dir, int64_t step)
{
    ag_err err;
    char path[512], text[64];
    take(dir, (const char *const[]){"adapter_config.json", "adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth",
                                    "trainer_state.json"}, 6);
    if (step == 2) return;
    snprintf(path, sizeof path, "%s/trainer_state.json", dir);
    snprintf(text, sizeof text, "\"global_step\": %lld", (long long)step);
    fixture_replace(path, "\"global_step\": 2", text);
    must(ag_scheduler_save(&(ag_scheduler_state){.step = step, .base_lr = 0.01, .last_lr = 0.01}, dir, &err));
}

void run_fixture_merged(const char *dir)
{
    write_model(dir);
    run_fixture_seal(dir, false);
}

void run_fixture_seal(const char *dir, bool with_provenance)
{
    static const ag_provenance provenance = {"base/tiny-llama", "0123456789abcdef0123456789abcdef01234567",
                                             "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "train",
                                             "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"};
    ag_err err;
    must(ag_artifact_index_write(dir, dir, with_provenance ? &provenance : NULL, 1, &err));
}
