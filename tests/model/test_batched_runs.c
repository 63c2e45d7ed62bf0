/* What a server relies on: a run of tokens gives the bits that it gives alone, whatever else is in the call, with whatever adapter,
 * from a copied prefix, and cut into pieces at the decoder's granule. */
#include "support/op_check.h"
#include "support/tiny_model.h"

enum { ROWS = 256, PROMPT = 150, OTHER = 40, V_MAX = 64 };

typedef struct {
    tiny_model base, other; /* `other` lends its adapter only */
    ag_backend be;
    ag_decoder *dec;
    ag_kv_cache *cache;
    int32_t ids[ROWS];
} fixture;

static void start(fixture *f, ag_cpu_level level, ag_compute compute)
{
    ag_err err;
    *f = (fixture){.base = tiny_model_create_wide(1, 3, 4), .other = tiny_model_create_wide(9, 3, 7), .be = check_backend(level, 2)};
    for (int i = 0; i < ROWS; i++) f->ids[i] = (i * i * 7 + i) % 53;
    if (ag_decoder_create(&f->dec, &(ag_decoder_options){.model = &f->base.model, .backend = &f->be, .compute = compute, .max_run_rank = 7,
                                        .max_tokens = ROWS, .max_targets = 8, .max_positions = ROWS, .longest_span = ROWS}, &err) ||
        ag_kv_cache_create(&f->cache, &f->base.model, 8, ROWS, &err))
        fail_msg("%s", err.text);
}

static void stop(fixture *f)
{
    ag_kv_cache_free(&f->cache);
    ag_decoder_free(&f->dec);
    tiny_model_free(&f->base);
    tiny_model_free(&f->other);
}

static void infer(fixture *f, const ag_decoder_run *runs, int64_t n_runs, const int32_t *ids, float *logits)
{
    ag_err err;
    if (ag_decoder_infer(f->dec, f->cache, runs, n_runs, ids, logits, &err)) fail_msg("%s", err.text);
}

/* The logits behind a prompt and one more token, computed alone in slot 0. */
static void alone(fixture *f, const ag_layer_lora *lora, const int32_t *ids, int64_t n, float *logits)
{
    ag_kv_cache_truncate(f->cache, 0, 0);
    infer(f, &(ag_decoder_run){.slot = 0, .n_new = n, .lora = lora}, 1, ids, logits);
    infer(f, &(ag_decoder_run){.slot = 0, .n_new = 1, .lora = lora}, 1, ids + n, logits);
}

static void check_runs(ag_cpu_level level, ag_compute compute)
{
    fixture f;
    start(&f, level, compute);
    const int64_t V = f.base.model.d.V;
    const ag_layer_lora *adapters[] = {NULL, f.base.lora, f.other.lora, f.base.lora, NULL, f.other.lora, f.other.lora};
    enum { N = sizeof adapters / sizeof *adapters };
    float want[N][V_MAX], got[N * V_MAX];
    for (int i = 0; i < N; i++) alone(&f, adapters[i], f.ids + i, 20 + i, want[i]);

    ag_decoder_run runs[N];
    int32_t ids[ROWS];
    for (int i = 0, at = 0; i < N; at += 20 + i, i++) {
        runs[i] = (ag_decoder_run){.slot = 1 + i, .n_new = 20 + i, .lora = adapters[i]};
        memcpy(ids + at, f.ids + i, (size_t)(20 + i) * sizeof *ids);
    }
    infer(&f, runs, N, ids, NULL);
    for (int i = 0; i < N; i++) {
        runs[i].n_new = 1;
        ids[i] = f.ids[i + 20 + i];
    }
    infer(&f, runs, N, ids, got);
    for (int i = 0; i < N; i++) assert_memory_equal(want[i], got + i * V, (size_t)V * sizeof(float));
    assert_memory_not_equal(want[0], want[1], (size_t)V * sizeof(float));
    stop(&f);
}

static void a_run_has_the_same_bits_alone_and_beside_runs_with_other_adapters(void **state)
{
    (void)state;
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++)
        for (int compute = AG_COMPUTE_F32; compute <= AG_COMPUTE_BF16; compute++) check_runs(*level, (ag_compute)compute);
}

static void check_cuts(ag_cpu_level level, ag_compute compute)
{
    fixture f;
    start(&f, level, compute);
    const int64_t V = f.base.model.d.V, granule = ag_decoder_granule(f.dec);
    assert_true(granule >= 1);
    float want[V_MAX], got[V_MAX];
    alone(&f, f.base.lora, f.ids, PROMPT, want);
    for (int64_t cut = granule; cut < PROMPT - 8; cut += granule) {
        if (cut <= 8) continue;
        /* The first part was computed for another prompt, which went on differently. */
        int32_t other[ROWS];
        memcpy(other, f.ids, (size_t)cut * sizeof *other);
        for (int64_t i = cut; i < cut + OTHER; i++) other[i] = 1;
        const int64_t n_other = cut + OTHER < ROWS ? cut + OTHER : ROWS;
        ag_kv_cache_truncate(f.cache, 1, 0);
        infer(&f, &(ag_decoder_run){.slot = 1, .n_new = n_other, .lora = f.base.lora}, 1, other, NULL);
        ag_kv_cache_copy(f.cache, 2, 1, cut);
        assert_int_equal(cut, ag_kv_cache_length(f.cache, 2));
        infer(&f, &(ag_decoder_run){.slot = 2, .n_new = PROMPT - cut, .lora = f.base.lora}, 1, f.ids + cut, NULL);
        infer(&f, &(ag_decoder_run){.slot = 2, .n_new = 1, .lora = f.base.lora}, 1, f.ids + PROMPT, got);
        assert_memory_equal(want, got, (size_t)V * sizeof(float));
    }
    stop(&f);
}

static void a_prompt_cut_at_the_granule_has_the_same_bits(void **state)
{
    (void)state;
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++)
        for (int compute = AG_COMPUTE_F32; compute <= AG_COMPUTE_BF16; compute++) check_cuts(*level, (ag_compute)compute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_has_the_same_bits_alone_and_beside_runs_with_other_adapters),
        cmocka_unit_test(a_prompt_cut_at_the_granule_has_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
