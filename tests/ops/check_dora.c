/* DoRA's lengths, scaling and backward against the formulas in double; what is added to embeddings. */
#include "ops/dora/dora.h"
#include "ops/embed/embed.h"
#include "support/op_check.h"

static float *filled(int64_t n, uint32_t seed, float scale)
{
    float *p = check_floats(n);
    check_fill(p, n, seed, scale);
    return p;
}

static void lengths_are_those_of_the_rows_of_the_sum(void **state)
{
    (void)state;
    ag_err err;
    enum { N = 300, K = 67, R = 5 };
    float *w = filled(N * K, 1, 1), *a = filled(R * K, 2, 1), *b = filled(N * R, 3, 1), *m = filled(N, 4, 1), want_norm[N], want_gain[N];
    for (int n = 0; n < N; n++) {
        double sum = 0;
        for (int k = 0; k < K; k++) {
            double x = 0;
            for (int r = 0; r < R; r++) x += (double)b[n * R + r] * (double)a[r * K + k];
            x = (double)w[n * K + k] + 1.5 * x;
            sum += x * x;
        }
        want_norm[n] = (float)sqrt(sum);
        want_gain[n] = m[n] / want_norm[n];
    }
    const ag_weight weight = {.type = AG_W_F32, .N = N, .K = K, .data = w};
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        ag_backend be = check_backend(ag_cpu_best_level(), n_threads);
        check_backend_scratch(&be, ag_dora_scratch_bytes(&be, K, N, R));
        float *norm = check_floats(N), *gain = check_floats(N);
        const ag_dora_gain_args args = {.norm = ag_vec_f32(norm, N), .gain = ag_vec_f32(gain, N), .magnitude = ag_vec_f32(m, N),
                                        .a = ag_mat_f32(a, R, K), .b = ag_mat_f32(b, N, R), .w = &weight, .scale = 1.5f};
        assert_int_equal(AG_OK, ag_dora_gain(&be, &args, &err));
        check_close(norm, want_norm, N, 1e-6, "norm");
        check_close(gain, want_gain, N, 1e-6, "gain");
        check_guards(norm, N, "norm");
        check_guards(gain, N, "gain");
        ag_dora_gain_args wrong = args;
        wrong.b = ag_mat_f32(b, N - 1, R);
        assert_int_equal(AG_E_SHAPE, ag_dora_gain(&be, &wrong, &err));
        check_free(norm);
        check_free(gain);
        check_backend_free(&be);
    }
    check_free(w);
    check_free(a);
    check_free(b);
    check_free(m);
}

static void rows_are_scaled_forward_and_backward(void **state)
{
    (void)state;
    ag_err err;
    enum { T = 7, N = 130 };
    float *z = filled(T * N, 1, 1), *dy = filled(T * N, 2, 1), *gain = filled(N, 3, 1), *bias = filled(N, 4, 1), *norm = check_floats(N);
    float want_y[T * N], want_dz[T * N], want_dm[N];
    for (int n = 0; n < N; n++) {
        double sum = 0;
        norm[n] = 1 + (float)n / 16;
        for (int t = 0; t < T; t++) {
            want_y[t * N + n] = 0.25f + 0.7f * (gain[n] * z[t * N + n] + bias[n]);
            want_dz[t * N + n] = 0.7f * gain[n] * dy[t * N + n];
            sum += (double)dy[t * N + n] * (double)z[t * N + n];
        }
        want_dm[n] = (float)(0.5 + 0.7 * sum / (double)norm[n]);
    }
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        ag_backend be = check_backend(ag_cpu_best_level(), n_threads);
        float *y = check_floats(T * N), *dm = check_floats(N);
        for (int i = 0; i < T * N; i++) y[i] = 0.25f;
        for (int n = 0; n < N; n++) dm[n] = 0.5f;
        assert_int_equal(AG_OK, ag_dora_fwd(&be, &(ag_dora_fwd_args){.y = ag_mat_f32(y, T, N), .z = ag_mat_f32(z, T, N), .gain = gain,
                                                                     .bias = bias, .scale = 0.7f, .accumulate = true}, &err));
        check_close(y, want_y, T * N, 1e-6, "y");
        assert_int_equal(AG_OK, ag_dora_bwd(&be, &(ag_dora_bwd_args){
            .dz = ag_mat_f32(y, T, N), .dmagnitude = ag_vec_f32(dm, N), .dy = ag_mat_f32(dy, T, N), .z = ag_mat_f32(z, T, N), .gain = gain,
            .norm = norm, .scale = 0.7f}, &err));
        check_close(y, want_dz, T * N, 1e-6, "dz");
        check_close(dm, want_dm, N, 1e-6, "dm");
        check_guards(y, T * N, "y");
        check_guards(dm, N, "dm");
        check_free(y);
        check_free(dm);
    }
    check_free(z);
    check_free(dy);
    check_free(gain);
    check_free(bias);
    check_free(norm);
}

static void a_pair_beside_the_embedding_adds_its_rows_and_gets_its_gradients(void **state)
{
    (void)state;
    ag_err err;
    enum { T = 5, C = 30, R = 3, V = 9 };
    float *a = filled(R * V, 1, 1), *b = filled(C * R, 2, 1), *dx = filled(T * C, 3, 1), want_x[T * C], want_da[R * V] = {0}, want_db[C * R] = {0};
    int32_t ids[T] = {8, 1, 1, 0, 8};
    for (int t = 0; t < T; t++)
        for (int c = 0; c < C; c++) {
            double sum = 0;
            for (int r = 0; r < R; r++) {
                sum += (double)a[r * V + ids[t]] * (double)b[c * R + r];
                want_da[r * V + ids[t]] += 0.6f * dx[t * C + c] * b[c * R + r];
                want_db[c * R + r] += 0.6f * dx[t * C + c] * a[r * V + ids[t]];
            }
            want_x[t * C + c] = (float)(1 + 0.6 * sum);
        }
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        ag_backend be = check_backend(ag_cpu_best_level(), n_threads);
        check_backend_scratch(&be, ag_embed_lora_scratch_bytes(T, R));
        float *x = check_floats(T * C), *da = check_floats(R * V), *db = check_floats(C * R);
        for (int i = 0; i < T * C; i++) x[i] = 1;
        memset(da, 0, R * V * sizeof *da);
        memset(db, 0, C * R * sizeof *db);
        ag_embed_lora_args args = {.x = ag_mat_f32(x, T, C), .ids = ag_vec_i32(ids, T), .a = ag_mat_f32(a, R, V), .b = ag_mat_f32(b, C, R),
                                   .da = ag_mat_f32(da, R, V), .db = ag_mat_f32(db, C, R), .scale = 0.6f};
        assert_int_equal(AG_OK, ag_embed_lora_fwd(&be, &args, &err));
        check_close(x, want_x, T * C, 1e-6, "x");
        args.x = ag_mat_f32(dx, T, C);
        assert_int_equal(AG_OK, ag_embed_lora_bwd(&be, &args, &err));
        check_close(da, want_da, R * V, 1e-6, "da");
        check_close(db, want_db, C * R, 1e-6, "db");
        check_guards(x, T * C, "x");
        check_guards(da, R * V, "da");
        check_guards(db, C * R, "db");
        check_free(x);
        check_free(da);
        check_free(db);
        check_backend_free(&be);
    }
    check_free(a);
    check_free(b);
    check_free(dx);
}

static void noise_is_uniform_within_its_bounds_and_follows_from_key_and_site(void **state)
{
    (void)state;
    ag_err err;
    enum { T = 200, C = 333 };
    float *x = check_floats(T * C), *again = check_floats(T * C), *other = check_floats(T * C);
    float *const out[] = {x, again, other};
    for (int i = 0; i < 3; i++) {
        ag_backend be = check_backend(ag_cpu_best_level(), 1 + i);
        memset(out[i], 0, T * C * sizeof(float));
        assert_int_equal(AG_OK, ag_embed_noise(&be, ag_mat_f32(out[i], T, C), 0.25f, 42, i == 2 ? 8 : 7, &err));
        check_guards(out[i], T * C, "x");
    }
    assert_memory_equal(x, again, T * C * sizeof(float));
    double sum = 0, squares = 0, product = 0;
    for (int i = 0; i < T * C; i++) {
        assert_true(x[i] >= -0.25f && x[i] < 0.25f);
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
        product += (double)x[i] * (double)other[i];
    }
    const double n = T * C, deviation = 0.25 / sqrt(3);
    assert_true(fabs(sum / n) < 5 * deviation / sqrt(n)); /* the mean's own deviation */
    assert_true(fabs(squares / n / (deviation * deviation) - 1) < 0.02);
    assert_true(fabs(product / n) < 5 * deviation * deviation / sqrt(n)); /* another site, unlike numbers */
    check_free(x);
    check_free(again);
    check_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_are_those_of_the_rows_of_the_sum),
        cmocka_unit_test(rows_are_scaled_forward_and_backward),
        cmocka_unit_test(a_pair_beside_the_embedding_adds_its_rows_and_gets_its_gradients),
        cmocka_unit_test(noise_is_uniform_within_its_bounds_and_follows_from_key_and_site),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
