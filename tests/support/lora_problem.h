/* A LoRA pair with its inputs and outputs, run and compared: for the checks of lora. */
#ifndef AG_TEST_LORA_PROBLEM_H
#define AG_TEST_LORA_PROBLEM_H

#include "support/op_check.h"
#include "support/tolerance.h"

typedef struct {
    int64_t T, K, N, R;
    float scale;
    ag_dropout dropout;
    ag_compute compute;
    float *x, *a, *b, *dy, *y, *h, *dx, *da, *db;
} problem;

static inline problem problem_create(int64_t T, int64_t K, int64_t N, int64_t R, float p, ag_compute compute)
{
    problem q = {T, K, N, R, 1.7f, {p, 42, 7}, compute, check_floats(T * K), check_floats(R * K), check_floats(N * R),
                 check_floats(T * N), check_floats(T * N), check_floats(T * R), check_floats(T * K), check_floats(R * K),
                 check_floats(N * R)};
    const uint32_t seed = (uint32_t)(T * 31 + K * 7 + N * 3 + R);
    check_fill(q.x, T * K, seed, 1);
    check_fill(q.a, R * K, seed + 1, 1);
    check_fill(q.b, N * R, seed + 2, 1);
    check_fill(q.dy, T * N, seed + 3, 1);
    check_fill(q.y, T * N, seed + 4, 1);
    check_fill(q.dx, T * K, seed + 5, 1);
    check_fill(q.da, R * K, seed + 6, 1);
    check_fill(q.db, N * R, seed + 7, 1);
    return q;
}

static inline void problem_free(problem *q)
{
    float *all[] = {q->x, q->a, q->b, q->dy, q->y, q->h, q->dx, q->da, q->db};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_free(all[i]);
}

static inline void run_forward(problem *q, ag_backend *be)
{
    ag_err err;
    check_backend_scratch(be, ag_lora_scratch_bytes(be, q->T, q->K, q->N, q->R));
    if (ag_lora_fwd(be, &(ag_lora_fwd_args){
            .y = ag_mat_f32(q->y, q->T, q->N), .h = ag_mat_f32(q->h, q->T, q->R), .x = ag_mat_f32(q->x, q->T, q->K),
            .a = ag_mat_f32(q->a, q->R, q->K), .b = ag_mat_f32(q->b, q->N, q->R), .scale = q->scale, .dropout = q->dropout,
            .compute = q->compute}, &err))
        fail_msg("%s", err.text);
}

static inline void run_backward(problem *q, ag_backend *be)
{
    ag_err err;
    check_backend_scratch(be, ag_lora_scratch_bytes(be, q->T, q->K, q->N, q->R));
    if (ag_lora_bwd(be, &(ag_lora_bwd_args){
            .dx = ag_mat_f32(q->dx, q->T, q->K), .da = ag_mat_f32(q->da, q->R, q->K), .db = ag_mat_f32(q->db, q->N, q->R),
            .dy = ag_mat_f32(q->dy, q->T, q->N), .x = ag_mat_f32(q->x, q->T, q->K), .h = ag_mat_f32(q->h, q->T, q->R),
            .a = ag_mat_f32(q->a, q->R, q->K), .b = ag_mat_f32(q->b, q->N, q->R), .scale = q->scale, .dropout = q->dropout,
            .compute = q->compute}, &err))
        fail_msg("%s", err.text);
}

static inline void run(problem *q, ag_backend *be)
{
    run_forward(q, be);
    run_backward(q, be);
}

/* Under bf16 a sum that differs in its last bits may round the other way when it becomes an operand (h, dh): 2^-8 of it. */
static inline double tolerance(const problem *q, int64_t longest)
{
    return q->compute == AG_COMPUTE_BF16 ? 0x1p-8 : tolerance_f32_sum((double)longest);
}

static inline void compare(const problem *got, const problem *want)
{
    const int64_t T = got->T, K = got->K, N = got->N, R = got->R;
    check_close(got->h, want->h, T * R, tolerance_f32_sum((double)K), "h");
    check_close(got->y, want->y, T * N, tolerance(got, K + R), "y");
    check_close(got->dx, want->dx, T * K, tolerance(got, N + R), "dx");
    check_close(got->da, want->da, R * K, tolerance(got, N + T), "da");
    check_close(got->db, want->db, N * R, tolerance(got, K + T), "db");
    check_guards(got->h, T * R, "h");
    check_guards(got->y, T * N, "y");
    check_guards(got->dx, T * K, "dx");
    check_guards(got->da, R * K, "da");
    check_guards(got->db, N * R, "db");
}

static inline void same_bits(const problem *a, const problem *b)
{
    assert_memory_equal(a->h, b->h, (size_t)(a->T * a->R) * sizeof(float));
    assert_memory_equal(a->y, b->y, (size_t)(a->T * a->N) * sizeof(float));
    assert_memory_equal(a->dx, b->dx, (size_t)(a->T * a->K) * sizeof(float));
    assert_memory_equal(a->da, b->da, (size_t)(a->R * a->K) * sizeof(float));
    assert_memory_equal(a->db, b->db, (size_t)(a->N * a->R) * sizeof(float));
}

#endif
