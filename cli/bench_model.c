#include "cli/bench_model.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

const char *const cli_shapes[] = {"smollm2-135m", "minicpm5-1b", NULL};

static const ag_description descriptions[] = {
    {.model_type = "llama", .architecture = "LlamaForCausalLM", .C = 576, .L = 30, .H = 9, .G = 3, .D = 64, .F = 1536, .V = 49152,
     .context_length = 8192, .tied = true, .rms_eps = 1e-5f, .rope_theta = 1e5, .embedding_scale = 1, .residual_scale = 1,
     .attention_scale = 0.125f, .logit_scale = 1, .bos_id = -1, .eos_id = -1, .pad_id = -1},
    {.model_type = "llama", .architecture = "LlamaForCausalLM", .C = 1536, .L = 24, .H = 16, .G = 2, .D = 128, .F = 4608, .V = 130560,
     .context_length = 131072, .rms_eps = 1e-6f, .rope_theta = 5e6, .embedding_scale = 1, .residual_scale = 1,
     .attention_scale = 0.08838834764831845f, .logit_scale = 1, .bos_id = -1, .eos_id = -1, .pad_id = -1},
};

static void *random_words(ag_arena *arena, size_t bytes, uint64_t key, uint32_t and, uint32_t or)
{
    const size_t n = (bytes + 15) / 16;
    uint32_t *words = ag_arena_alloc(arena, n * 16);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        const ag_philox4 r = ag_philox(key, i, 0);
        for (int j = 0; j < 4; j++) words[4 * i + (size_t)j] = (r.word[j] & and) | or;
    }
    return words;
}

/* bf16 of either sign, magnitude 2^-6 to 2^-5. */
static ag_weight bf16_matrix(ag_arena *arena, int64_t N, int64_t K, uint64_t key)
{
    return (ag_weight){.type = AG_W_BF16, .N = N, .K = K,
                       .data = random_words(arena, (size_t)(N * K) * 2, key, 0x807f807fu, 0x3c803c80u)};
}

static ag_weight nf4_matrix(ag_arena *arena, int64_t N, int64_t K, uint64_t key)
{
    const size_t blocks = (size_t)(N * K + 63) / 64, nested = (blocks + 255) / 256;
    float *scales = ag_arena_array(arena, nested, sizeof *scales);
    for (size_t i = 0; i < nested; i++) scales[i] = 0.3f / sqrtf((float)K);
    return (ag_weight){.type = AG_W_NF4, .N = N, .K = K, .data = random_words(arena, (size_t)(N * K) / 2, key, ~0u, 0),
                       .absmax_q = random_words(arena, blocks, key + 1, ~0u, 0), .nested_absmax = scales, .offset = 1.5f / sqrtf((float)K)};
}

static const float *ones(ag_arena *arena, int64_t n)
{
    float *p = ag_arena_array(arena, (size_t)n, sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = 1;
    return p;
}

void cli_bench_model(ag_model *m, const char *shape, ag_arena *arena)
{
    int which = 0;
    while (strcmp(cli_shapes[which], shape) != 0) which++;
    *m = (ag_model){.d = descriptions[which], .source = AG_SOURCE_HF, .path = shape, .quantization = "nf4 (double)"};
    const ag_description *d = &m->d;
    uint64_t key = 1000;
    m->embed = bf16_matrix(arena, d->V, d->C, 1);
    m->head = d->tied ? m->embed : bf16_matrix(arena, d->V, d->C, 2);
    m->final_norm = ones(arena, d->C);
    m->layers = ag_arena_array(arena, (size_t)d->L, sizeof *m->layers);
    for (int64_t l = 0; l < d->L; l++) {
        m->layers[l].norm[AG_NORM_ATTN] = m->layers[l].norm[AG_NORM_FFN] = m->final_norm;
        for (int p = 0; p < AG_N_PROJ; p++, key += 2) {
            int64_t N, K;
            ag_projection_size(&N, &K, d, (ag_projection)p);
            m->layers[l].proj[p] = nf4_matrix(arena, N, K, key);
        }
    }
}
