/* The device's attention against the CPU's reference, over its cases whose heads the device takes (D a multiple of 16).
 * Documents of a packed row go in as the first key that each query sees. */
#include "device_check.h"
#include "support/attention_problem.h"

typedef struct {
    int32_t *first_key, *last_query; /* NULL for one document */
} documents;

static documents documents_of(const attention_problem *p)
{
    documents d = {NULL, NULL};
    if (p->n_spans == 1) return d;
    d.first_key = malloc((size_t)p->T * sizeof *d.first_key), d.last_query = malloc((size_t)p->T * sizeof *d.last_query);
    assert_true(d.first_key && d.last_query);
    for (int64_t t = 0; t < p->T; t++) d.first_key[t] = -1, d.last_query[t] = -1;
    for (int64_t i = 0; i < p->n_spans; i++)
        for (int64_t t = p->spans[i].q0; t < p->spans[i].q0 + p->spans[i].n_q; t++)
            d.first_key[t] = (int32_t)p->spans[i].q0, d.last_query[t] = (int32_t)(p->spans[i].q0 + p->spans[i].n_q - 1);
    return d;
}

static void check_case(int64_t T, int64_t S, int64_t H, int64_t G, int64_t D, ag_attention_layout layout, int64_t window,
                       double largest, bool gaps)
{
    attention_problem want = attention_problem_create(T, S, H, G, D, layout, window, largest);
    const int64_t n = T * H * D, n_kv = S * G * D, gap = gaps ? 16 : 0, q_pitch = H * D + gap, kv_pitch = G * D + gap;
    float *wide = host_floats((S + 1) * (H * D + 16));
    bkl_bf16 *d_q, *d_k, *d_v, *d_do;
    struct {
        bkl_bf16 **to;
        float *from;
        int64_t rows, width, pitch;
    } in[] = {{&d_q, want.q, T, H * D, q_pitch},
              {&d_k, want.k, S, G * D, kv_pitch},
              {&d_v, want.v, S, G * D, kv_pitch},
              {&d_do, want.d_o, T, H * D, H * D}};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
        for (int64_t r = 0; r < in[i].rows; r++)
            for (int64_t c = 0; c < in[i].pitch; c++)
                wide[r * in[i].pitch + c] = c < in[i].width ? in[i].from[r * in[i].width + c] : 1e30f;
        *in[i].to = device_bf16(wide, in[i].rows * in[i].pitch);
        for (int64_t r = 0; r < in[i].rows; r++)
            for (int64_t c = 0; c < in[i].width; c++) in[i].from[r * in[i].width + c] = wide[r * in[i].pitch + c];
    }
    documents docs = documents_of(&want);
    int32_t *d_first = docs.first_key ? device_i32(docs.first_key, T) : NULL,
            *d_last = docs.last_query ? device_i32(docs.last_query, T) : NULL;
    bkl_bf16 *d_o = device_bf16(NULL, n), *d_dq = device_bf16(NULL, n), *d_dk = device_bf16(NULL, n_kv),
             *d_dv = device_bf16(NULL, n_kv);
    float *d_lse = device_f32(NULL, T * H);
    run_op(attention_fwd, {.o = d_o,
                           .lse = d_lse,
                           .q = d_q,
                           .k = d_k,
                           .v = d_v,
                           .first_key = d_first,
                           .T = T,
                           .S = S,
                           .H = H,
                           .G = G,
                           .D = D,
                           .q_pitch = q_pitch,
                           .kv_pitch = kv_pitch,
                           .o_pitch = H * D,
                           .window = window,
                           .scale = want.scale});
    run_op(attention_bwd, {.dq = d_dq,
                           .dk = d_dk,
                           .dv = d_dv,
                           .d_o = d_do,
                           .o = d_o,
                           .q = d_q,
                           .k = d_k,
                           .v = d_v,
                           .lse = d_lse,
                           .first_key = d_first,
                           .last_query = d_last,
                           .T = T,
                           .S = S,
                           .H = H,
                           .G = G,
                           .D = D,
                           .q_pitch = q_pitch,
                           .kv_pitch = kv_pitch,
                           .o_pitch = H * D,
                           .dq_pitch = H * D,
                           .dkv_pitch = G * D,
                           .window = window,
                           .scale = want.scale});

    ag_backend ref = check_backend(AG_CPU_REF, 2);
    attention_problem_run(&want, &ref, AG_COMPUTE_F32);
    attention_problem got = attention_problem_like(&want);
    fetch_bf16(got.o, d_o, n), fetch_f32(got.lse, d_lse, T * H), fetch_bf16(got.dq, d_dq, n), fetch_bf16(got.dk, d_dk, n_kv),
        fetch_bf16(got.dv, d_dv, n_kv);
    for (int64_t t = 0; t < T && docs.first_key; t++)
        for (int64_t h = 0; h < H && docs.first_key[t] < 0; h++) {
            assert_true(isinf(got.lse[t * H + h]));
            got.lse[t * H + h] = want.lse[t * H + h]; /* the CPU leaves it alone */
        }
    if (largest < 100) /* beyond, rounding a score to bf16 makes another maximum */
        attention_problem_check_close(&got, &want, 0x1p-8 + tolerance_attention_bf16(largest));
    for (int64_t i = 0; i < n; i++) assert_true(isfinite(got.o[i]) && isfinite(got.dq[i]));
    for (int64_t i = 0; i < n_kv; i++) assert_true(isfinite(got.dk[i]) && isfinite(got.dv[i]));

    attention_problem_free(&got), attention_problem_free(&want);
    void *device[] = {d_q, d_k, d_v, d_do, d_o, d_dq, d_dk, d_dv, d_lse, d_first, d_last};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) device_drop(device[i]);
    free(docs.first_key), free(docs.last_query), free(wide);
}

static void equals_the_reference(void **state)
{
    (void)state;
#define X(T, S, H, G, D, layout, window, largest)                              \
    if (D % 16 == 0 && AG_ATTENTION_##layout != AG_ATTENTION_CACHE && S <= 700) \
        check_case(T, S, H, G, D, AG_ATTENTION_##layout, window, largest, false);
    AG_ATTENTION_CASES(X)
#undef X
}

static void with_room_between_rows_equals_the_reference(void **state)
{
    (void)state;
    check_case(70, 70, 4, 2, 64, AG_ATTENTION_WHOLE, 0, 4, true);
    check_case(50, 90, 2, 1, 128, AG_ATTENTION_WHOLE, 33, 4, true);
    check_case(131, 131, 2, 2, 96, AG_ATTENTION_PACKED, 0, 4, true);
}

static void wrong_sizes_are_refused_with_a_sentence(void **state)
{
    (void)state;
    bkl_attention_fwd_args fwd = {.T = 8, .S = 4, .H = 2, .G = 1, .D = 64};
    must_refuse(BKL_E_SHAPE, "S = 4", bkl->attention_fwd(device_stream, &fwd, NULL, 0));
    fwd.S = 8, fwd.D = 144, fwd.q_pitch = fwd.o_pitch = 288, fwd.kv_pitch = 144;
    must_refuse(BKL_E_UNSUPPORTED, "144 values", bkl->attention_fwd(device_stream, &fwd, NULL, 0));
    bkl_attention_bwd_args bwd = {.T = 8,
                                  .S = 8,
                                  .H = 2,
                                  .G = 1,
                                  .D = 64,
                                  .q_pitch = 128,
                                  .o_pitch = 128,
                                  .kv_pitch = 64,
                                  .dq_pitch = 128,
                                  .dkv_pitch = 64};
    must_refuse(BKL_E_WORKSPACE, "needs",
                bkl->attention_bwd(device_stream, &bwd, NULL, bkl->attention_bwd_workspace(&bwd) - 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_reference),
        cmocka_unit_test(with_room_between_rows_equals_the_reference),
        cmocka_unit_test(wrong_sizes_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
