/* The numbers that an adapter begins with, in torch's order of draws. */
#include "adapter/adapter.h"

#include "base/arena.h"
#include "base/rng.h"
#include "ops/backend.h"
#include "ops/dora/dora.h"

#include <math.h>
#include <string.h>

/* Beside a projection: A and B as new Linear layers (thrown away), then A again. */
static void draw_linear(float *a, float *b, const ag_adapter_pair *p, ag_mt19937 *mt)
{
    const int64_t n_a = p->R * p->K, n_b = p->N * p->R;
    for (int64_t k = 0; k < n_a + n_b; k++) ag_mt19937_u32(mt);
    /* torch: gain sqrt(2/(1+5)) over sqrt(fan_in), times sqrt 3, in double; then from + u·(to - from) in float,
     * which torch's build contracts to one FMA */
    const double bound = sqrt(3.0) * (sqrt(2.0 / (1 + 5.0)) / sqrt((double)p->K));
    const float from = (float)-bound, to = (float)bound;
    for (int64_t k = 0; k < n_a; k++) a[k] = fmaf(ag_mt19937_uniform_f32(mt), to - from, from);
    memset(b, 0, (size_t)n_b * sizeof(float));
}

enum { NORMALS = 16 };

/* Box-Muller on 16 uniform numbers, as torch's normal_fill takes them (aten/native/cpu/DistributionTemplates.h). */
static void make_normal(float *x)
{
    for (int j = 0; j < NORMALS / 2; j++) {
        const float u1 = 1 - x[j], u2 = x[j + NORMALS / 2];
        const float radius = (float)sqrt(-2 * log((double)u1)), theta = (float)(2 * 3.14159265358979323846 * (double)u2);
        x[j] = radius * (float)cos((double)theta);
        x[j + NORMALS / 2] = radius * (float)sin((double)theta);
    }
}

/* torch's randn of n numbers: all uniform first, then blocks of 16; a short last block makes the last 16 anew. (Fewer than 16, which no
 * real embedding has, go another way in torch; here they are the first of a block.) */
static void draw_normal(float *x, int64_t n, ag_mt19937 *mt)
{
    float few[NORMALS] = {0};
    float *to = n < NORMALS ? few : x;
    const int64_t n_to = n < NORMALS ? NORMALS : n;
    for (int64_t i = 0; i < n_to; i++) to[i] = ag_mt19937_uniform_f32(mt);
    for (int64_t i = 0; i + NORMALS <= n_to; i += NORMALS) make_normal(to + i);
    if (n < NORMALS) memcpy(x, few, (size_t)n * sizeof *x);
    if (n_to % NORMALS == 0) return;
    for (int64_t i = n - NORMALS; i < n; i++) x[i] = ag_mt19937_uniform_f32(mt);
    make_normal(x + n - NORMALS);
}

/* Beside the embedding: torch.randn for A [R,V] and for B [C,R] (thrown away), then A is 0 and B normal. */
static void draw_embedding(float *a, float *b, const ag_adapter_pair *p, ag_mt19937 *mt)
{
    const int64_t n_a = p->R * p->K, n_b = p->N * p->R;
    draw_normal(a, n_a, mt);
    draw_normal(b, n_b, mt);
    draw_normal(b, n_b, mt);
    memset(a, 0, (size_t)n_a * sizeof(float));
}

/* The length of every row of W; B is zero. */
static ag_status measure_rows(ag_adapter *adapter, const ag_adapter_pair *p, const ag_model *base, ag_backend *be, ag_err *err)
{
    float *magnitude = adapter->params + p->magnitude, *b = adapter->params + p->b;
    for (int i = 0; i < p->linear->n_parts; i++) {
        const ag_weight *w = &base->layers[p->layer].proj[p->linear->first + (ag_projection)i];
        AG_TRY(ag_dora_gain(be, &(ag_dora_gain_args){.norm = ag_vec_f32(magnitude, w->N), .a = ag_mat_f32(adapter->params + p->a, p->R, p->K),
                                                     .b = ag_mat_f32(b, w->N, p->R), .w = w, .scale = p->scale}, err));
        magnitude += w->N;
        b += w->N * p->R;
    }
    return AG_OK;
}

static ag_status measure_all_rows(ag_adapter *adapter, const ag_model *base, int n_threads, ag_err *err)
{
    ag_backend be;
    AG_TRY(ag_backend_init_cpu(&be, ag_cpu_best_level(), n_threads, err));
    for (size_t i = 0; i < adapter->n_pairs; i++) {
        const ag_adapter_pair *p = &adapter->pairs[i];
        if (!p->is_dora) continue;
        const size_t bytes = ag_dora_scratch_bytes(&be, p->K, p->N, p->R);
        AG_TRY(ag_pages_alloc(&be.scratch.data, bytes, "lengths of weight rows", err));
        be.scratch.bytes = bytes;
        const ag_status status = measure_rows(adapter, p, base, &be, err);
        ag_pages_free(be.scratch.data, bytes);
        if (status) {
            (void)ag_err_prefix(err, "model.layers.%lld.%s", (long long)p->layer, p->linear->path);
            return status;
        }
    }
    return AG_OK;
}

static float *copy_weight(float *to, const ag_weight *w)
{
    for (int64_t n = 0; n < w->N; n++, to += w->K) ag_weight_row(to, w, n, 0, w->K);
    return to;
}

static void copy_linear(float *to, const ag_trained *t, const ag_layer *layer)
{
    for (int i = 0; i < t->module.linear->n_parts; i++) {
        const ag_projection p = t->module.linear->first + (ag_projection)i;
        const int64_t N = layer->proj[p].N;
        if (t->kind == AG_TRAINED_COPY) {
            to = copy_weight(to, &layer->proj[p]);
        } else {
            memcpy(to, layer->bias[p], (size_t)N * sizeof *to);
            to += N;
        }
    }
}

/* What the base has where the adapter trains a tensor of the model's own. */
static void copy_own(float *to, const ag_trained *t, const ag_model *base)
{
    const ag_layer *layer = t->module.layer >= 0 ? &base->layers[t->module.layer] : NULL;
    switch (t->module.kind) {
    case AG_MODULE_LINEAR: copy_linear(to, t, layer); break;
    case AG_MODULE_EMBED: copy_weight(to, &base->embed); break;
    case AG_MODULE_HEAD: copy_weight(to, &base->head); break;
    case AG_MODULE_NORM: memcpy(to, layer->norm[t->module.norm], t->n * sizeof *to); break;
    case AG_MODULE_FINAL_NORM: memcpy(to, base->final_norm, t->n * sizeof *to); break;
    case AG_MODULE_OTHER: break;
    }
}

ag_status ag_adapter_draw(ag_adapter *adapter, const ag_model *base, uint64_t seed, int n_threads, ag_err *err)
{
    ag_mt19937 mt;
    ag_mt19937_seed(&mt, seed);
    for (size_t i = 0; i < adapter->n_pairs; i++) {
        const ag_adapter_pair *p = &adapter->pairs[i];
        (p->layer < 0 ? draw_embedding : draw_linear)(adapter->params + p->a, adapter->params + p->b, p, &mt);
    }
    for (size_t i = 0; i < adapter->n_trained; i++) {
        const ag_trained *t = &adapter->trained[i];
        if (t->kind != AG_TRAINED_A && t->kind != AG_TRAINED_B && t->kind != AG_TRAINED_MAGNITUDE)
            copy_own(adapter->params + t->at, t, base);
    }
    return adapter->config.dora ? measure_all_rows(adapter, base, n_threads, err) : AG_OK;
}
