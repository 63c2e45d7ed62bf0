#include "ops/embed/embed.h"
#include "support/op_check.h"

enum { V = 11, C = 37, T = 21 };

static void rows_are_gathered_and_scaled_with_any_number_of_threads(void **state)
{
    (void)state;
    ag_err err;
    float *table = check_floats(V * C);
    check_fill(table, V * C, 3, 2);
    int32_t ids[T];
    for (int t = 0; t < T; t++) ids[t] = (t * 7) % V;
    const ag_weight w = {.type = AG_W_F32, .N = V, .K = C, .data = table};
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        ag_backend be = check_backend(ag_cpu_best_level(), n_threads);
        float *x = check_floats(T * C);
        assert_int_equal(AG_OK, ag_embed(&be, &(ag_embed_args){.x = ag_mat_f32(x, T, C), .ids = ag_vec_i32(ids, T), .w = &w,
                                                               .scale = 12}, &err));
        for (int t = 0; t < T; t++)
            for (int c = 0; c < C; c++) assert_true(x[t * C + c] == 12 * table[ids[t] * C + c]);
        check_guards(x, T * C, "x");
        check_free(x);
    }
    check_free(table);
}

static void an_id_outside_the_vocabulary_is_refused_before_anything_is_written(void **state)
{
    (void)state;
    ag_err err;
    float table[V * C] = {0}, x[2 * C] = {7};
    const ag_weight w = {.type = AG_W_F32, .N = V, .K = C, .data = table};
    ag_backend be = check_backend(AG_CPU_REF, 1);
    int32_t ids[2] = {3, V};
    ag_embed_args args = {.x = ag_mat_f32(x, 2, C), .ids = ag_vec_i32(ids, 2), .w = &w, .scale = 1};
    assert_int_equal(AG_E_DATA, ag_embed(&be, &args, &err));
    assert_string_equal("token 1 has the id 11, but the model's vocabulary has the ids 0 to 10", err.text);
    ids[1] = -1;
    assert_int_equal(AG_E_DATA, ag_embed(&be, &args, &err));
    assert_true(x[0] == 7);
    args.x.dim[1] = C - 1;
    assert_int_equal(AG_E_SHAPE, ag_embed(&be, &args, &err));
    assert_string_equal("embed: x must be [2,37] f32, the number of ids by the width of the table", err.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_gathered_and_scaled_with_any_number_of_threads),
        cmocka_unit_test(an_id_outside_the_vocabulary_is_refused_before_anything_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
