/* Decoding on the device: attention against caches by the CPU's reference, and the sampler by the CPU's, id for id. */
#include "device_check.h"

#include "base/num.h"
#include "base/rng.h"
#include "model/sampling.h"

/* B sequences of S keys each at most; sequence b has lengths[b] of them. */
static void check_attention(int64_t B, int64_t S, int64_t H, int64_t G, int64_t D, int64_t window, int64_t gap,
                            const int32_t *lengths)
{
    const int64_t kv_pitch = G * D + gap, sequence_pitch = S * kv_pitch + gap, n = B * sequence_pitch;
    float *q = host_floats(B * H * D), *k = host_floats(n), *v = host_floats(n), *o = host_floats(B * H * D);
    float *dense_k = host_floats(B * S * G * D), *dense_v = host_floats(B * S * G * D);
    check_fill(q, B * H * D, 1, 2), check_fill(k, n, 2, 1), check_fill(v, n, 3, 2);
    bkl_bf16 *d_q = device_bf16(q, B * H * D), *d_k = device_bf16(k, n), *d_v = device_bf16(v, n),
             *d_o = device_bf16(NULL, B * H * D);
    int32_t *d_lengths = device_i32(lengths, B);
    const float scale = 1 / sqrtf((float)D);
    run_op(attention_decode, {.o = d_o,
                              .q = d_q,
                              .k = d_k,
                              .v = d_v,
                              .lengths = d_lengths,
                              .B = B,
                              .S = S,
                              .H = H,
                              .G = G,
                              .D = D,
                              .kv_pitch = kv_pitch,
                              .sequence_pitch = sequence_pitch,
                              .window = window,
                              .scale = scale});

    ag_attention_span *spans = calloc((size_t)B, sizeof *spans);
    assert_non_null(spans);
    int64_t longest = 0, n_spans = 0;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t j = 0; j < S; j++)
            for (int64_t c = 0; c < G * D; c++) {
                dense_k[(b * S + j) * G * D + c] = k[b * sequence_pitch + j * kv_pitch + c];
                dense_v[(b * S + j) * G * D + c] = v[b * sequence_pitch + j * kv_pitch + c];
            }
        if (lengths[b]) spans[n_spans++] = (ag_attention_span){b, 1, b * S, lengths[b]};
        longest = lengths[b] > longest ? lengths[b] : longest;
    }
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    ag_err err;
    check_backend_scratch(&ref, ag_attention_scratch_bytes(&ref, B, longest, H, G, D));
    if (ag_attention_fwd(&ref,
                         &(ag_attention_fwd_args){.o = ag_cube_f32(o, B, H, D),
                                                  .q = ag_cube_f32(q, B, H, D),
                                                  .k = ag_cube_f32(dense_k, B * S, G, D),
                                                  .v = ag_cube_f32(dense_v, B * S, G, D),
                                                  .spans = spans,
                                                  .n_spans = n_spans,
                                                  .window = window,
                                                  .scale = scale},
                         &err))
        fail_msg("%s", err.text);
    check_backend_free(&ref);
    check_bf16(d_o, o, B * H * D, 0x1p-8 + tolerance_attention_f32((double)(D + S), 4), "o");
    void *device[] = {d_q, d_k, d_v, d_o, d_lengths};
    float *host[] = {q, k, v, o, dense_k, dense_v};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
    free(spans);
}

static void attention_against_a_cache_equals_the_reference(void **state)
{
    (void)state;
    check_attention(1, 1, 1, 1, 8, 0, 0, (const int32_t[]){1});
    check_attention(1, 300, 16, 2, 128, 0, 0, (const int32_t[]){300});
    check_attention(3, 600, 9, 3, 64, 0, 8, (const int32_t[]){600, 1, 257});
    check_attention(2, 520, 6, 2, 80, 70, 0, (const int32_t[]){512, 33});
    check_attention(4, 260, 20, 2, 16, 300, 16, (const int32_t[]){260, 256, 0, 7}); /* ten heads a group; an empty sequence */
}

/* `draws` ids of the device's sampler, all equal to the CPU's. */
static void check_sampling(int64_t V, ag_sampling s, int64_t n_seen, float spread, int draws)
{
    float *logits = host_floats(draws * V), *copy = host_floats(V);
    int32_t *seen = malloc((size_t)(draws * n_seen + 1) * sizeof *seen), *got = malloc((size_t)draws * sizeof *got);
    double *uniform = malloc((size_t)draws * sizeof *uniform);
    assert_true(seen && got && uniform);
    check_fill(logits, draws * V, (uint32_t)V, spread);
    for (int64_t i = 0; i < draws * V; i += 3) logits[i] = ag_round_bf16(logits[i]) / 4; /* equal ones among them */
    for (int64_t i = 0; i < draws * n_seen; i++) seen[i] = (int32_t)(i * 37 % (V + 2)) - 1; /* some twice, some outside */
    for (int i = 0; i < draws; i++) {
        const ag_philox4 random = ag_philox(s.seed, (uint64_t)i, 0);
        uniform[i] = ((double)random.word[0] + (double)random.word[1] * 0x1p-32) * 0x1p-32;
    }
    float *d_logits = device_f32(logits, draws * V);
    double *d_uniform = device_bytes(uniform, (size_t)draws * sizeof *uniform);
    int32_t *d_seen = n_seen ? device_i32(seen, draws * n_seen) : NULL, *d_out = device_i32(NULL, draws);
    run_op(sample, {.out = d_out,
                    .logits = d_logits,
                    .uniform = d_uniform,
                    .seen = d_seen,
                    .n_rows = draws,
                    .V = V,
                    .n_seen = n_seen,
                    .temperature = s.temperature,
                    .top_k = s.top_k,
                    .top_p = s.top_p,
                    .min_p = s.min_p,
                    .repeat_penalty = s.repeat_penalty});
    fetch_bytes(got, d_out, (size_t)draws * sizeof *got);
    ag_chooser *chooser = ag_chooser_create(V);
    for (int i = 0; i < draws; i++) {
        memcpy(copy, logits + i * V, (size_t)V * sizeof *copy);
        const int32_t want = ag_sample(chooser, &s, copy, seen + i * n_seen, n_seen, (uint64_t)i);
        if (got[i] != want) fail_msg("draw %d of %lld ids is %d, the CPU's %d", i, (long long)V, got[i], want);
    }
    ag_chooser_free(&chooser);
    void *device[] = {d_logits, d_uniform, d_seen, d_out};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
    free(logits), free(copy), free(seen), free(got), free(uniform);
}

static void the_sampler_chooses_as_the_cpu_does(void **state)
{
    (void)state;
    const ag_sampling all = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5};
    ag_sampling s = ag_sampling_greedy();
    check_sampling(1, s, 0, 1, 1), check_sampling(2500, s, 0, 4, 3);
    s.repeat_penalty = 1.3f;
    check_sampling(700, s, 40, 4, 3);
    check_sampling(2, all, 0, 1, 10), check_sampling(1030, all, 0, 3, 10);
    s = all, s.temperature = 0.7f, s.top_k = 7;
    check_sampling(1030, s, 0, 3, 10);
    s.top_k = 1;
    check_sampling(300, s, 0, 3, 3);
    s = all, s.top_p = 0.8f;
    check_sampling(1030, s, 0, 5, 10);
    s = all, s.min_p = 0.3f;
    check_sampling(1030, s, 0, 2, 10);
    s = (ag_sampling){.temperature = 1.3f, .top_k = 50, .top_p = 0.9f, .min_p = 0.05f, .repeat_penalty = 1.2f, .seed = 9};
    check_sampling(1500, s, 64, 4, 10);
    check_sampling(40, s, 5, 0.01f, 10); /* almost all equal */
}

static void wrong_values_are_refused_with_a_sentence(void **state)
{
    (void)state;
    must_refuse(BKL_E_SHAPE, "top-p 0",
                bkl->sample(device_stream, &(bkl_sample_args){.n_rows = 1, .V = 2, .repeat_penalty = 1}, NULL, 0));
    bkl_sample_args s = {.n_rows = 1, .V = 2, .top_p = 1, .repeat_penalty = 2, .n_seen = 1};
    must_refuse(BKL_E_WORKSPACE, "needs 8", bkl->sample(device_stream, &s, NULL, 0));
    must_refuse(
        BKL_E_SHAPE, "H = 3",
        bkl->attention_decode(device_stream, &(bkl_attention_decode_args){.B = 1, .S = 1, .H = 3, .G = 2, .D = 8}, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_against_a_cache_equals_the_reference),
        cmocka_unit_test(the_sampler_chooses_as_the_cpu_does),
        cmocka_unit_test(wrong_values_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
