#include "support/tiny_folder.h"

#include "base/fs.h"
#include "base/num.h"
#include "base/str.h"
#include "format/safetensors.h"
#include "support/op_check.h"

#include <stdio.h>

enum { L = 2, H = 4, G = 2, V = 384, MAX_TENSORS = 3 + 11 * L };
typedef struct {
    int C, D, F;
    bool is_qwen3;
} widths;

static const char config[] =
    "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"hidden_size\": %d, \"num_hidden_layers\": 2,\n"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": %d, \"intermediate_size\": %d, \"vocab_size\": 384,\n"
    " \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true,\n"
    " \"hidden_act\": \"silu\", \"torch_dtype\": \"bfloat16\", \"bos_token_id\": 0, \"eos_token_id\": 1}\n";

static void write_text(const char *dir, const char *name, const char *text, size_t n)
{
    ag_err err;
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (ag_file_publish(path, text, n, &err)) fail_msg("%s", err.text);
}

typedef struct {
    ag_st_entry entries[MAX_TENSORS];
    size_t n;
    ag_arena arena;
} tensor_list;

static void add(tensor_list *t, const char *name, int rank, int64_t rows, int64_t columns, float scale, float offset)
{
    const int64_t n = rows * columns;
    float *values = ag_arena_array(&t->arena, (size_t)n, sizeof *values);
    uint16_t *halves = ag_arena_array(&t->arena, (size_t)n, sizeof *halves);
    check_fill(values, n, (uint32_t)t->n + 1, scale);
    for (int64_t i = 0; i < n; i++) halves[i] = ag_f32_to_bf16(values[i] + offset);
    t->entries[t->n++] = (ag_st_entry){.name = name, .dtype = AG_ST_BF16, .rank = rank, .dim = {rows, columns}, .data = halves};
}

static void write_weights(const char *dir, widths w)
{
    const int64_t C = w.C, D = w.D, F = w.F;
    const struct {
        const char *name;
        int64_t n, k;
    } matrices[] = {{"self_attn.q_proj", H * D, C}, {"self_attn.k_proj", G * D, C}, {"self_attn.v_proj", G * D, C},
                    {"self_attn.o_proj", C, H * D}, {"mlp.gate_proj", F, C}, {"mlp.up_proj", F, C}, {"mlp.down_proj", C, F}};
    ag_err err;
    char path[512];
    tensor_list t = {0};
    add(&t, "model.embed_tokens.weight", 2, V, C, 0.5f, 0);
    add(&t, "model.norm.weight", 1, C, 1, 0.3f, 1);
    for (int l = 0; l < L; l++) {
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
            add(&t, ag_arena_printf(&t.arena, "model.layers.%d.%s.weight", l, matrices[i].name), 2, matrices[i].n, matrices[i].k, 0.3f, 0);
        add(&t, ag_arena_printf(&t.arena, "model.layers.%d.input_layernorm.weight", l), 1, C, 1, 0.3f, 1);
        add(&t, ag_arena_printf(&t.arena, "model.layers.%d.post_attention_layernorm.weight", l), 1, C, 1, 0.3f, 1);
        if (!w.is_qwen3) continue;
        add(&t, ag_arena_printf(&t.arena, "model.layers.%d.self_attn.q_norm.weight", l), 1, D, 1, 0.3f, 1);
        add(&t, ag_arena_printf(&t.arena, "model.layers.%d.self_attn.k_norm.weight", l), 1, D, 1, 0.3f, 1);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (ag_safetensors_write(path, t.entries, t.n, AG_ST_ORDER_LIBRARY, NULL, 0, &err)) fail_msg("%s", err.text);
    ag_arena_free(&t.arena);
}

static void write_rows(const char *dir)
{
    static const char *const words[] = {"the ", "light ", "holds ", "a ship ", "of salt ", "and wind ", "goes home ", "by night "};
    ag_str text = {0};
    for (unsigned r = 0; r < 17; r++) {
        ag_str_add(&text, "{\"text\": \"");
        for (unsigned i = 0; i < 3 + r * 5 % 11; i++) ag_str_add(&text, words[(r * 3 + i * i) % 8]);
        ag_str_add(&text, "\"}\n");
    }
    write_text(dir, "rows.jsonl", text.text, text.n);
    ag_str_free(&text);
}

static void make(const char *dir, widths w)
{
    ag_err err;
    ag_arena arena = {0};
    char *tokenizer, path[480];
    size_t n;
    snprintf(path, sizeof path, "%s/model", dir);
    if (ag_make_dirs(path, &err)) fail_msg("%s", err.text);
    if (ag_file_read(&tokenizer, &n, AGOGE_TESTS_DIR "/golden/data/tokenizer.json", 1 << 20, &arena, &err)) fail_msg("%s", err.text);
    static const char tokenizer_config[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"pad_token\": \"<pad>\"}\n";
    write_text(path, "tokenizer.json", tokenizer, n);
    write_text(path, "tokenizer_config.json", tokenizer_config, sizeof tokenizer_config - 1);
    char text[1024];
    write_text(path, "config.json", text, (size_t)snprintf(text, sizeof text, config, w.is_qwen3 ? "Qwen3ForCausalLM" : "LlamaForCausalLM",
                                                                 w.is_qwen3 ? "qwen3" : "llama", w.C, w.D, w.F));
    write_weights(path, w);
    write_rows(dir);
    ag_arena_free(&arena);
}

void tiny_folder_make(const char *dir) { make(dir, (widths){.C = 32, .D = 8, .F = 48}); }
void tiny_folder_make_wide(const char *dir) { make(dir, (widths){.C = 64, .D = 16, .F = 128}); }
void tiny_folder_make_wide_qwen3(const char *dir) { make(dir, (widths){.C = 64, .D = 16, .F = 128, .is_qwen3 = true}); }
