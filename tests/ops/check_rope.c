/* Proof of rope: the reference by complex rotation and by being orthogonal, every level by the reference, over one list of
 * cases. */
#include "ops/rope/rope_cases.h"
#include "support/op_check.h"
#include "golden/rope/llama.h"
#include "support/tolerance.h"

enum { N_POSITIONS = 700 };

typedef struct {
    int64_t T, H, D;
    float *x, *cos, *sin;
    double *freq;
    int32_t *positions;
} problem;

static problem problem_create(int64_t T, int64_t H, int64_t D, double mscale)
{
    problem p = {T, H, D, check_floats(T * H * D), check_floats(N_POSITIONS * D / 2), check_floats(N_POSITIONS * D / 2),
                 malloc((size_t)(D / 2) * sizeof(double)), malloc((size_t)T * sizeof(int32_t))};
    check_fill(p.x, T * H * D, (uint32_t)(T * 31 + D), 3);
    for (int64_t i = 0; i < D / 2; i++) p.freq[i] = pow(10000, -2.0 * (double)i / (double)D);
    for (int64_t t = 0; t < T; t++) p.positions[t] = (int32_t)((t * 37 + 5) % N_POSITIONS);
    ag_rope_table(p.cos, p.sin, p.freq, N_POSITIONS, D, mscale);
    check_guards(p.cos, N_POSITIONS * D / 2, "cos");
    check_guards(p.sin, N_POSITIONS * D / 2, "sin");
    return p;
}

static void problem_free(problem *p)
{
    check_free(p->x);
    check_free(p->cos);
    check_free(p->sin);
    free(p->freq);
    free(p->positions);
}

static ag_rope_args args_of(problem *p, bool backward)
{
    return (ag_rope_args){.x = ag_cube_f32(p->x, p->T, p->H, p->D), .positions = ag_vec_i32(p->positions, p->T),
                          .cos = p->cos, .sin = p->sin, .n_positions = N_POSITIONS, .backward = backward};
}

static void rotate(problem *p, ag_cpu_level level, int n_threads, bool backward)
{
    ag_err err;
    ag_backend be = check_backend(level, n_threads);
    ag_rope_args args = args_of(p, backward);
    assert_int_equal(AG_OK, ag_rope(&be, &args, &err));
}

static void check_case(ag_cpu_level level, int n_threads, bool backward, int64_t T, int64_t H, int64_t D)
{
    problem want = problem_create(T, H, D, 1.25), got = problem_create(T, H, D, 1.25);
    rotate(&want, AG_CPU_REF, 1, backward);
    rotate(&got, level, n_threads, backward);
    check_close(got.x, want.x, T * H * D, tolerance_f32_sum(2), "x");
    check_guards(got.x, T * H * D, "x");
    problem_free(&want);
    problem_free(&got);
}

/* The first 48 of 64 dimensions rotate as heads of 48 do, the others stay. */
static void a_part_of_the_head_may_rotate(void **state)
{
    (void)state;
    enum { T = 17, H = 3, D = 64, R = 48 };
    const ag_cpu_level *level = check_levels();
    do {
        ag_err err;
        ag_backend be = check_backend(*level, 2);
        problem whole = problem_create(T, H, R, 1.25), part = problem_create(T, H, D, 1.25);
        float before[T * H * D];
        memcpy(before, part.x, sizeof before);
        for (int i = 0; i < T * H; i++) memcpy(whole.x + i * R, part.x + i * D, R * sizeof(float));
        ag_rope_args args = args_of(&part, false);
        args.cos = whole.cos;
        args.sin = whole.sin;
        args.n_rotated = R;
        assert_int_equal(AG_OK, ag_rope(&be, &args, &err));
        rotate(&whole, *level, 1, false);
        for (int i = 0; i < T * H; i++) {
            assert_memory_equal(part.x + i * D, whole.x + i * R, R * sizeof(float));
            assert_memory_equal(part.x + i * D + R, before + i * D + R, (D - R) * sizeof(float));
        }
        check_guards(part.x, T * H * D, "x");
        args.n_rotated = 33;
        assert_int_equal(AG_E_SHAPE, ag_rope(&be, &args, &err));
        problem_free(&whole);
        problem_free(&part);
    } while (*level++ != AG_CPU_REF);
}

static void every_level_equals_the_reference(void **state)
{
    (void)state;
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++)
        for (int n_threads = 1; n_threads <= 3; n_threads++)
            for (int backward = 0; backward <= 1; backward++) {
#define X(T, H, D) check_case(*level, n_threads, backward, T, H, D);
                AG_ROPE_CASES(X)
#undef X
            }
}

static void the_reference_rotates_halves_by_position_times_frequency(void **state)
{
    (void)state;
    problem p = problem_create(5, 2, 6, 1.5), x = problem_create(5, 2, 6, 1.5);
    rotate(&p, AG_CPU_REF, 1, false);
    for (int64_t row = 0; row < 5 * 2; row++)
        for (int64_t i = 0; i < 3; i++) {
            /* (lower + i·upper)·mscale·e^(iθ), with polar coordinates instead of the op's cos and sin */
            const float *in = x.x + row * 6;
            double radius = 1.5 * hypot(in[i], in[i + 3]), angle = atan2(in[i + 3], in[i]) + p.positions[row / 2] * p.freq[i];
            assert_true(fabs(radius * cos(angle) - p.x[row * 6 + i]) < 2e-6);
            assert_true(fabs(radius * sin(angle) - p.x[row * 6 + i + 3]) < 2e-6);
        }
    problem_free(&p);
    problem_free(&x);
}

static void every_level_gives_what_transformers_gives(void **state)
{
    (void)state;
    double freq[GOLDEN_D / 2];
    float *cos = check_floats(N_POSITIONS * GOLDEN_D / 2), *sin = check_floats(N_POSITIONS * GOLDEN_D / 2);
    for (int i = 0; i < GOLDEN_D / 2; i++) freq[i] = pow(GOLDEN_BASE, -2.0 * i / GOLDEN_D);
    ag_rope_table(cos, sin, freq, N_POSITIONS, GOLDEN_D, 1);
    const int64_t n = GOLDEN_T * GOLDEN_H * GOLDEN_D;
    ag_cpu_level levels[AG_N_CPU_LEVELS] = {AG_CPU_REF};
    int n_levels = 1;
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++) levels[n_levels++] = *level;
    for (int i = 0; i < n_levels; i++) {
        ag_err err;
        ag_backend be = check_backend(levels[i], 1);
        float *x = check_floats(n);
        int32_t positions[GOLDEN_T];
        memcpy(x, golden_x, sizeof golden_x);
        memcpy(positions, golden_positions, sizeof positions);
        assert_int_equal(AG_OK, ag_rope(&be, &(ag_rope_args){
            .x = ag_cube_f32(x, GOLDEN_T, GOLDEN_H, GOLDEN_D), .positions = ag_vec_i32(positions, GOLDEN_T), .cos = cos, .sin = sin,
            .n_positions = N_POSITIONS}, &err));
        check_close(x, golden_y, n, 511 * 6e-8, "x"); /* theirs multiplies position by frequency in float: half an ulp of 511 */
        check_free(x);
    }
    check_free(cos);
    check_free(sin);
}

static void backward_is_the_transpose_of_forward(void **state)
{
    (void)state;
    /* <rotate(x), y> = <x, rotate_back(y)> for any x, y. */
    problem x = problem_create(17, 3, 34, 1.5), y = problem_create(17, 3, 34, 1.5);
    int64_t n = 17 * 3 * 34;
    check_fill(y.x, n, 77, 1);
    double forward = 0, backward = 0, *x0 = malloc((size_t)n * sizeof *x0), *y0 = malloc((size_t)n * sizeof *y0);
    for (int64_t i = 0; i < n; i++) {
        x0[i] = x.x[i];
        y0[i] = y.x[i];
    }
    rotate(&x, AG_CPU_REF, 1, false);
    rotate(&y, AG_CPU_REF, 1, true);
    for (int64_t i = 0; i < n; i++) {
        forward += x.x[i] * y0[i];
        backward += x0[i] * y.x[i];
    }
    assert_true(fabs(forward - backward) < 1e-5 * fabs(forward));
    free(x0);
    free(y0);
    problem_free(&x);
    problem_free(&y);
}

static void wrong_shapes_and_positions_are_refused_with_a_sentence(void **state)
{
    (void)state;
    ag_err err;
    ag_backend ref = check_backend(AG_CPU_REF, 1);
    problem p = problem_create(3, 2, 6, 1);
    ag_rope_args a = args_of(&p, false);
    a.positions.dim[0] = 2;
    assert_int_equal(AG_E_SHAPE, ag_rope(&ref, &a, &err));
    assert_string_equal("rope: positions must be 3 i32 values, one for each row of x", err.text);
    a = args_of(&p, false);
    a.x = ag_cube_f32(p.x, 3, 4, 3);
    assert_int_equal(AG_E_SHAPE, ag_rope(&ref, &a, &err));
    a = args_of(&p, false);
    a.n_positions = 50;
    assert_int_equal(AG_E_DATA, ag_rope(&ref, &a, &err));
    assert_string_equal("rope: row 2 has position 79, the table has positions 0 to 49", err.text);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_rotates_halves_by_position_times_frequency),
        cmocka_unit_test(every_level_gives_what_transformers_gives),
        cmocka_unit_test(backward_is_the_transpose_of_forward),
        cmocka_unit_test(a_part_of_the_head_may_rotate),
        cmocka_unit_test(every_level_equals_the_reference),
        cmocka_unit_test(wrong_shapes_and_positions_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
