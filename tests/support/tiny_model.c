#include "support/tiny_model.h"

#include "support/op_check.h"

static float *filled(tiny_model *tiny, int64_t n, uint32_t seed, float scale, float offset)
{
    float *p = ag_arena_array(&tiny->arena, (size_t)n, sizeof *p);
    check_fill(p, n, seed, scale);
    for (int64_t i = 0; i < n; i++) p[i] += offset;
    return p;
}

static ag_weight matrix(tiny_model *tiny, int64_t N, int64_t K, uint32_t seed)
{
    return (ag_weight){.type = AG_W_F32, .N = N, .K = K, .data = filled(tiny, N * K, seed, 1.5f / sqrtf((float)K), 0)};
}

static tiny_model create(const ag_description *description, uint32_t seed, int64_t R)
{
    tiny_model tiny = {.model.d = *description};
    const ag_description *d = &tiny.model.d;
    const int64_t L = d->L;
    tiny.model.embed = matrix(&tiny, d->V, d->C, seed + 1);
    tiny.model.head = matrix(&tiny, d->V, d->C, seed + 2);
    tiny.model.final_norm = filled(&tiny, d->C, seed + 3, 0.4f, 1);
    tiny.model.layers = ag_arena_array(&tiny.arena, (size_t)L, sizeof *tiny.model.layers);
    tiny.lora = ag_arena_array(&tiny.arena, (size_t)L, sizeof *tiny.lora);
    for (int64_t l = 0; l < L; l++) {
        ag_layer *layer = &tiny.model.layers[l];
        for (int n = 0; n < AG_N_NORMS; n++) {
            const int64_t width = ag_norm_width(d, (ag_norm)n);
            if (width > 0) layer->norm[n] = filled(&tiny, width, seed + 10 + 1000 * (uint32_t)n + (uint32_t)l, 0.4f, 1);
        }
        for (int p = 0; p < AG_N_PROJ; p++) {
            int64_t N, K;
            ag_projection_size(&N, &K, d, (ag_projection)p);
            layer->proj[p] = matrix(&tiny, N, K, seed + 100 * (uint32_t)(l + 1) + (uint32_t)p);
            tiny.n_params += R * (N + K);
        }
    }
    if (R == 0) return tiny;
    tiny.params = filled(&tiny, tiny.n_params, seed + 5, 0.3f, 0);
    tiny.grads = ag_arena_array(&tiny.arena, (size_t)tiny.n_params, sizeof(float));
    int64_t at = 0;
    for (int64_t l = 0; l < L; l++)
        for (int p = 0; p < AG_N_PROJ; p++) {
            const ag_weight *w = &tiny.model.layers[l].proj[p];
            tiny.lora[l].pair[p] = (ag_lora_view){.R = R,
                                                  .a = tiny.params + at,
                                                  .b = tiny.params + at + R * w->K,
                                                  .da = tiny.grads + at,
                                                  .db = tiny.grads + at + R * w->K,
                                                  .scale = 1.7f};
            at += R * (w->K + w->N);
        }
    return tiny;
}

static ag_description plain(int64_t L)
{
    return (ag_description){.model_type = "llama",
                            .architecture = "LlamaForCausalLM",
                            .C = 20,
                            .L = L,
                            .H = 6,
                            .G = 2,
                            .D = 8,
                            .F = 28,
                            .V = 53,
                            .context_length = 64,
                            .rms_eps = 1e-5f,
                            .rope_theta = 10000,
                            .embedding_scale = 1.3f,
                            .residual_scale = 0.7f,
                            .attention_scale = 0.4f,
                            .logit_scale = 1.2f,
                            .bos_id = -1,
                            .eos_id = -1,
                            .pad_id = -1};
}

tiny_model tiny_model_create(uint32_t seed, int64_t L, int64_t R)
{
    const ag_description d = plain(L);
    return create(&d, seed, R);
}

tiny_model tiny_model_create_wide(uint32_t seed, int64_t L, int64_t R)
{
    ag_description d = plain(L);
    d.C = 96;
    d.D = 16;
    d.F = 112;
    return create(&d, seed, R);
}

tiny_model tiny_model_create_with_everything(uint32_t seed, int64_t R)
{
    static const bool slides[] = {true, false, true}, rotates[] = {true, true, false};
    ag_description d = plain(3);
    d.residual_scale = 1;
    d.has_qk_norm = d.has_post_norms = true;
    d.gate = AG_GATE_GELU_TANH;
    d.attention_softcap = 1.5f;
    d.logit_softcap = 2;
    d.sliding_window = 3;
    d.slides = slides;
    d.rotates = rotates;
    d.rope_local_theta = 100;
    return create(&d, seed, R);
}

void tiny_model_free(tiny_model *tiny) { ag_arena_free(&tiny->arena); }
