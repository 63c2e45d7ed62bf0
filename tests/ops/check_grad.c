/* Gradients of the model's own tensors against the formulas in double, with any number of threads, at odd sizes. */
#include "ops/grad/grad.h"
#include "support/op_check.h"

static float *filled(int64_t n, uint32_t seed, float scale)
{
    float *p = check_floats(n);
    check_fill(p, n, seed, scale);
    return p;
}

/* Σ_t dy[t,n]·x[t,k]·s, added to 0.5. */
static void want_weight(float *want, const float *dy, const float *x, int64_t T, int64_t N, int64_t K, double scale)
{
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++) {
            double sum = 0;
            for (int64_t t = 0; t < T; t++) sum += (double)dy[t * N + n] * (double)x[t * K + k];
            want[n * K + k] = (float)(0.5 + scale * sum);
        }
}

static void fill_half(float *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) p[i] = 0.5f;
}

static void a_matrix_gets_the_outer_products_of_all_tokens(void **state)
{
    (void)state;
    ag_err err;
    static const struct {
        int64_t T, N, K;
    } sizes[] = {{1, 1, 1}, {3, 5, 7}, {33, 70, 65}, {130, 600, 31}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t T = sizes[i].T, N = sizes[i].N, K = sizes[i].K;
        float *dy = filled(T * N, 1, 1), *x = filled(T * K, 2, 1), *want = malloc((size_t)(N * K) * sizeof *want);
        want_weight(want, dy, x, T, N, K, 0.3);
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            float *dw = check_floats(N * K);
            fill_half(dw, N * K);
            ag_backend be = check_backend(ag_cpu_best_level(), n_threads);
            check_backend_scratch(&be, ag_grad_weight_scratch_bytes(&be, T, K, N));
            assert_int_equal(AG_OK, ag_grad_weight(&be, &(ag_grad_weight_args){.dw = ag_mat_f32(dw, N, K), .dy = ag_mat_f32(dy, T, N),
                                                                               .x = ag_mat_f32(x, T, K), .scale = 0.3f}, &err));
            check_close(dw, want, N * K, 3e-6, "dw");
            check_guards(dw, N * K, "dw");
            assert_int_equal(AG_E_SHAPE, ag_grad_weight(&be, &(ag_grad_weight_args){.dw = ag_mat_f32(dw, N, K), .dy = ag_mat_f32(dy, T, N + 1),
                                                                                    .x = ag_mat_f32(x, T, K), .scale = 1}, &err));
            check_backend_free(&be);
            check_free(dw);
        }
        free(want);
        check_free(dy);
        check_free(x);
    }
}

static void vectors_get_their_sums(void **state)
{
    (void)state;
    ag_err err;
    enum { T = 37, C = 131 };
    float *dy = filled(T * C, 1, 1), *x = filled(T * C, 2, 1), *r = filled(T, 3, 2), want_bias[C], want_norm[C];
    for (int c = 0; c < C; c++) {
        double bias = 0, norm = 0;
        for (int t = 0; t < T; t++) {
            bias += (double)dy[t * C + c];
            norm += (double)dy[t * C + c] * (double)x[t * C + c] * (double)r[t];
        }
        want_bias[c] = (float)(0.5 - 2 * bias);
        want_norm[c] = (float)(0.5 + norm);
    }
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        ag_backend be = check_backend(ag_cpu_best_level(), n_threads);
        float *got = check_floats(C);
        fill_half(got, C);
        assert_int_equal(AG_OK, ag_grad_bias(&be, ag_vec_f32(got, C), ag_mat_f32(dy, T, C), -2, &err));
        check_close(got, want_bias, C, 1e-6, "bias");
        fill_half(got, C);
        assert_int_equal(AG_OK, ag_grad_norm(&be, ag_vec_f32(got, C), ag_mat_f32(dy, T, C), ag_mat_f32(x, T, C), ag_vec_f32(r, T), &err));
        check_close(got, want_norm, C, 1e-6, "norm");
        check_guards(got, C, "vector");
        check_free(got);
    }
    check_free(dy);
    check_free(x);
    check_free(r);
}

static void the_embedding_collects_a_token_that_stands_twice(void **state)
{
    (void)state;
    ag_err err;
    enum { T = 3, C = 70, V = 4 };
    float *dx = filled(T * C, 1, 1), *dw = check_floats(V * C);
    int32_t ids[T] = {3, 0, 3};
    ag_backend be = check_backend(ag_cpu_best_level(), 2);
    fill_half(dw, V * C);
    assert_int_equal(AG_OK, ag_grad_embed(&be, ag_mat_f32(dw, V, C), ag_mat_f32(dx, T, C), ag_vec_i32(ids, T), 12, &err));
    for (int c = 0; c < C; c++) {
        assert_true(dw[c] == 0.5f + 12 * dx[C + c] && dw[C + c] == 0.5f && dw[2 * C + c] == 0.5f);
        assert_true(dw[3 * C + c] == 0.5f + 12 * dx[c] + 12 * dx[2 * C + c]);
    }
    check_guards(dw, V * C, "dw");
    check_free(dx);
    check_free(dw);
}

/* dloss · scale · (softmax - onehot)ᵀ · x, in double. */
static void check_head(double softcap)
{
    ag_err err;
    enum { M = 9, C = 24, V = 1100 };
    float *x = filled(M * C, 1, 1), *w = filled(V * C, 2, 1), nll[M], *want = malloc(V * C * sizeof *want);
    int32_t targets[M];
    double *p = malloc(M * V * sizeof *p), slope[V];
    for (int m = 0; m < M; m++) {
        double sum = 0;
        targets[m] = (int32_t)(m * 137 % V);
        for (int v = 0; v < V; v++) {
            double logit = 0;
            for (int c = 0; c < C; c++) logit += (double)x[m * C + c] * (double)w[v * C + c];
            logit *= 0.7;
            slope[v] = 1;
            if (softcap > 0) {
                slope[v] = 1 - pow(tanh(logit / softcap), 2);
                logit = softcap * tanh(logit / softcap);
            }
            p[m * V + v] = exp(logit);
            sum += p[m * V + v];
        }
        for (int v = 0; v < V; v++) p[m * V + v] /= sum;
        nll[m] = (float)-log(p[m * V + targets[m]]);
        p[m * V + targets[m]] -= 1;
        for (int v = 0; v < V; v++) p[m * V + v] *= slope[v];
    }
    for (int v = 0; v < V; v++)
        for (int c = 0; c < C; c++) {
            double sum = 0;
            for (int m = 0; m < M; m++) sum += p[m * V + v] * (double)x[m * C + c];
            want[v * C + c] = (float)(0.25 * 0.7 * sum);
        }
    const ag_weight head = {.type = AG_W_F32, .N = V, .K = C, .data = w};
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        ag_backend be = check_backend(ag_cpu_best_level(), n_threads);
        check_backend_scratch(&be, ag_grad_head_scratch_bytes(&be, M, C, V));
        float *dw = check_floats(V * C);
        memset(dw, 0, V * C * sizeof *dw);
        assert_int_equal(AG_OK, ag_grad_head(&be, &(ag_grad_head_args){
            .dw = ag_mat_f32(dw, V, C), .x = ag_mat_f32(x, M, C), .targets = ag_vec_i32(targets, M), .nll = ag_vec_f32(nll, M), .w = &head,
            .logit_scale = 0.7f, .softcap = (float)softcap, .dloss = 0.25f}, &err));
        check_close(dw, want, V * C, 5e-6, "dw");
        check_guards(dw, V * C, "dw");
        check_free(dw);
        check_backend_free(&be);
    }
    free(p);
    free(want);
    check_free(x);
    check_free(w);
}

static void the_head_gets_the_gradient_of_the_cross_entropy(void **state)
{
    (void)state;
    check_head(0);
    check_head(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_matrix_gets_the_outer_products_of_all_tokens),
        cmocka_unit_test(vectors_get_their_sums),
        cmocka_unit_test(the_embedding_collects_a_token_that_stands_twice),
        cmocka_unit_test(the_head_gets_the_gradient_of_the_cross_entropy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
