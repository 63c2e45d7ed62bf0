/* What can be trained beside plain LoRA: DoRA, biases, norms, whole matrices, embedding and head, a pair beside the embedding, all at once
 * on a tiny model. The gradient of each by finite differences, and what must be equal to the bit. */
#include "support/op_check.h"
#include "support/tiny_model.h"

#include <stdio.h>

enum { T = 11, L = 3, R = 4, MAX_TENSORS = 80 };
static const int32_t ids[T] = {3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 50};
static const int32_t positions[T] = {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3}; /* two documents */
static const int32_t targets[T] = {14, 15, -1, 26, 5, 35, -1, 9, 7, 50, 1};
static const ag_attention_span spans[] = {{0, 7, 0, 7}, {7, 4, 7, 4}};
static const ag_decoder_batch batch = {.T = T, .ids = ids, .positions = positions, .targets = targets, .spans = spans, .n_spans = 2};

typedef struct {
    char name[64];
    float *value, *gradient;
    int64_t n;
    bool holds_norm; /* a pair of DoRA: the row lengths are constants */
} trained;

typedef struct {
    tiny_model tiny;
    ag_lora_view embed_lora;
    ag_model_grads grads;
    trained tensors[MAX_TENSORS];
    int n;
} problem;

typedef struct {
    ag_cpu_level level;
    int n_threads;
    bool recompute;
    ag_compute compute;
    float dropout;
} setting;

static trained *add(problem *p, const char *name, int64_t l, int64_t n, float scale, float offset)
{
    assert_true(p->n < MAX_TENSORS);
    trained *t = &p->tensors[p->n++];
    snprintf(t->name, sizeof t->name, "layer %d %s", (int)l, name);
    t->value = ag_arena_array(&p->tiny.arena, (size_t)n, sizeof *t->value);
    t->gradient = ag_arena_array(&p->tiny.arena, (size_t)n, sizeof *t->value);
    t->n = n;
    check_fill(t->value, n, 900 + (uint32_t)p->n, scale);
    for (int64_t i = 0; i < n; i++) t->value[i] += offset;
    return t;
}

static float *add_copy(problem *p, const char *name, int64_t l, const float *of, int64_t n, float **gradient)
{
    trained *t = add(p, name, l, n, 1, 0);
    memcpy(t->value, of, (size_t)n * sizeof *of);
    *gradient = t->gradient;
    return t->value;
}

/* Layer 0: q, v, o, down with DoRA, biases on all; layer 1: v and down trained in full, the rest plain; layer 2: k, gate with DoRA. */
static void make_layer(problem *p, int64_t l)
{
    ag_layer *layer = &p->tiny.model.layers[l];
    ag_layer_grads *grads = &p->grads.layers[l];
    layer->norm[AG_NORM_ATTN] = add_copy(p, "attn_norm", l, layer->norm[AG_NORM_ATTN], p->tiny.model.d.C, &grads->norm[AG_NORM_ATTN]);
    layer->norm[AG_NORM_FFN] = add_copy(p, "ffn_norm", l, layer->norm[AG_NORM_FFN], p->tiny.model.d.C, &grads->norm[AG_NORM_FFN]);
    for (int i = 0; i < AG_N_PROJ; i++) {
        ag_weight *w = &layer->proj[i];
        ag_lora_view *pair = &p->tiny.lora[l].pair[i];
        const bool is_dora = (l == 0 && (i == AG_PROJ_Q || i == AG_PROJ_V || i == AG_PROJ_O || i == AG_PROJ_DOWN)) ||
                             (l == 2 && (i == AG_PROJ_K || i == AG_PROJ_GATE));
        const bool is_whole = l == 1 && (i == AG_PROJ_V || i == AG_PROJ_DOWN);
        *pair = (ag_lora_view){.R = R, .scale = 1.7f};
        if (l != 1) {
            trained *bias = add(p, ag_projection_name((ag_projection)i), l, w->N, 0.3f, 0);
            layer->bias[i] = bias->value;
            grads->bias[i] = bias->gradient;
        }
        if (is_whole) {
            w->data = add_copy(p, "whole", l, w->data, w->N * w->K, &grads->proj[i]);
            pair->R = 0;
            continue;
        }
        trained *a = add(p, "A", l, R * w->K, 0.3f, 0), *b = add(p, "B", l, R * w->N, 0.3f, 0);
        pair->a = a->value, pair->da = a->gradient, pair->b = b->value, pair->db = b->gradient;
        a->holds_norm = b->holds_norm = is_dora;
        if (!is_dora) continue;
        trained *m = add(p, "magnitude", l, w->N, 0.4f, 1.5f);
        pair->is_dora = true;
        pair->magnitude = m->value;
        pair->dmagnitude = m->gradient;
    }
}

static problem create(void)
{
    problem p = {.tiny = tiny_model_create(1, L, R)};
    ag_model *m = &p.tiny.model;
    const ag_description *d = &m->d;
    p.grads.layers = ag_arena_array(&p.tiny.arena, L, sizeof *p.grads.layers);
    m->embed.data = add_copy(&p, "embedding", -1, m->embed.data, d->V * d->C, &p.grads.embed);
    trained *a = add(&p, "embedding A", -1, 3 * d->V, 0.5f, 0), *b = add(&p, "embedding B", -1, 3 * d->C, 0.5f, 0);
    p.embed_lora = (ag_lora_view){.R = 3, .a = a->value, .da = a->gradient, .b = b->value, .db = b->gradient, .scale = 0.6f};
    for (int64_t l = 0; l < L; l++) make_layer(&p, l);
    m->final_norm = add_copy(&p, "final norm", -1, m->final_norm, d->C, &p.grads.final_norm);
    m->head.data = add_copy(&p, "head", -1, m->head.data, d->V * d->C, &p.grads.head);
    return p;
}

static void destroy(problem *p) { tiny_model_free(&p->tiny); }

static ag_decoder *decoder(const problem *p, const ag_backend *be, setting s)
{
    ag_err err;
    ag_decoder *dec;
    if (ag_decoder_create(&dec, &(ag_decoder_options){
            .model = &p->tiny.model, .backend = be, .lora = p->tiny.lora, .embed_lora = &p->embed_lora, .grads = &p->grads,
            .compute = s.compute, .train = true, .recompute = s.recompute, .dropout = s.dropout, .dropout_key = 42, .neftune_alpha = 5,
            .max_tokens = 16, .max_positions = 64, .longest_span = 64}, &err))
        fail_msg("%s", err.text);
    return dec;
}

static double step(const problem *p, ag_decoder *dec)
{
    ag_err err;
    double loss;
    int64_t n;
    for (int i = 0; i < p->n; i++) memset(p->tensors[i].gradient, 0, (size_t)p->tensors[i].n * sizeof(float));
    if (ag_decoder_train(dec, &batch, 1.0 / 9, 7, &loss, &n, &err)) fail_msg("%s", err.text);
    assert_int_equal(n, 9);
    return loss / 9;
}

/* Along a random direction within each tensor by itself. */
static void try_tensor(const problem *p, ag_decoder *dec, const trained *t)
{
    float *start = malloc((size_t)t->n * sizeof *start), *direction = malloc((size_t)t->n * sizeof *start);
    memcpy(start, t->value, (size_t)t->n * sizeof *start);
    check_fill(direction, t->n, (uint32_t)t->n, 1);
    ag_decoder_refresh(dec);
    step(p, dec);
    double expected = 0, size = 0;
    for (int64_t i = 0; i < t->n; i++) {
        expected += (double)direction[i] * (double)t->gradient[i];
        size += (double)t->gradient[i] * (double)t->gradient[i];
    }
    if (!(size > 0)) fail_msg("%s: the gradient is 0", t->name);
    const double h = 2e-3;
    double loss[2];
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < t->n; i++) t->value[i] = start[i] + (float)(side ? -h : h) * direction[i];
        if (!t->holds_norm) ag_decoder_refresh(dec);
        loss[side] = step(p, dec);
    }
    memcpy(t->value, start, (size_t)t->n * sizeof *start);
    const double found = (loss[0] - loss[1]) / (2 * h);
    if (!(fabs(found - expected) <= 2e-4 + 2e-3 * sqrt(size)))
        fail_msg("%s: %g by differences, %g by backward", t->name, found, expected);
    free(start);
    free(direction);
}

static void the_gradient_of_everything_trained_equals_finite_differences(void **state)
{
    (void)state;
    for (int with_dropout = 0; with_dropout < 2; with_dropout++) {
        problem p = create();
        ag_backend be = check_backend(AG_CPU_REF, 1);
        ag_decoder *dec = decoder(&p, &be, (setting){.dropout = with_dropout ? 0.25f : 0});
        for (int i = 0; i < p.n; i++) try_tensor(&p, dec, &p.tensors[i]);
        ag_decoder_free(&dec);
        destroy(&p);
    }
}

static double gradients(problem *p, setting s)
{
    *p = create();
    ag_backend be = check_backend(s.level, s.n_threads);
    ag_decoder *dec = decoder(p, &be, s);
    const double loss = step(p, dec);
    ag_decoder_free(&dec);
    return loss;
}

static void recomputation_and_the_number_of_threads_change_no_bit(void **state)
{
    (void)state;
    for (int compute = AG_COMPUTE_F32; compute <= AG_COMPUTE_BF16; compute++) {
        problem want, got;
        const setting s = {ag_cpu_best_level(), 1, false, (ag_compute)compute, 0.25f};
        const double loss = gradients(&want, s);
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            setting other = s;
            other.n_threads = n_threads;
            other.recompute = true;
            assert_true(gradients(&got, other) == loss);
            for (int i = 0; i < want.n; i++)
                if (memcmp(want.tensors[i].gradient, got.tensors[i].gradient, (size_t)want.tensors[i].n * sizeof(float)))
                    fail_msg("%s differs with %d threads and recomputation", want.tensors[i].name, n_threads);
            destroy(&got);
        }
        destroy(&want);
    }
}

static void every_level_agrees_with_the_reference(void **state)
{
    (void)state;
    problem want, got;
    const double loss = gradients(&want, (setting){AG_CPU_REF, 1, false, AG_COMPUTE_F32, 0.25f});
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) {
        assert_true(fabs(gradients(&got, (setting){*level, 2, false, AG_COMPUTE_F32, 0.25f}) - loss) < 1e-5 * loss);
        for (int i = 0; i < want.n; i++)
            check_close(got.tensors[i].gradient, want.tensors[i].gradient, want.tensors[i].n, 5e-5, want.tensors[i].name);
        destroy(&got);
    }
    destroy(&want);
}

static void a_pair_that_cancels_its_row_is_refused_by_name(void **state)
{
    (void)state;
    ag_err err;
    problem p = create();
    const ag_weight *w = &p.tiny.model.layers[0].proj[AG_PROJ_V];
    memset((float *)w->data + 3 * w->K, 0, (size_t)w->K * sizeof(float));
    memset((float *)p.tiny.lora[0].pair[AG_PROJ_V].b + 3 * R, 0, R * sizeof(float));
    ag_backend be = check_backend(ag_cpu_best_level(), 1);
    ag_decoder *dec = decoder(&p, &be, (setting){0});
    double loss;
    int64_t n;
    assert_int_equal(AG_E_NUMERIC, ag_decoder_train(dec, &batch, 1, 0, &loss, &n, &err));
    assert_string_equal("model.layers.0.self_attn.v_proj: row 3 of a weight with its DoRA pair has the length 0; it cannot be scaled to its "
                        "magnitude", err.text);
    ag_decoder_free(&dec);
    destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_gradient_of_everything_trained_equals_finite_differences),
        cmocka_unit_test(recomputation_and_the_number_of_threads_change_no_bit),
        cmocka_unit_test(every_level_agrees_with_the_reference),
        cmocka_unit_test(a_pair_that_cancels_its_row_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
