#include "data/batch.h"

#include "support/cmocka_all.h"

/* Three rows of 3, 2 and 4 tokens; targets are given by letter in `targets`: 'x' is one. */
static int32_t ids[] = {10, 11, 12, 20, 21, 30, 31, 32, 33};
static int64_t offset[] = {0, 3, 5, 9};

static ag_examples examples_with(const char *targets, uint64_t *bits)
{
    ag_examples x = {.ids = ids, .offset = offset, .target_bits = bits, .n = 3, .n_tokens = 9, .longest = 4, .shortest = 2};
    for (int t = 0; t < 9; t++)
        if (targets[t] == 'x') *bits |= UINT64_C(1) << t;
    return x;
}

static ag_batch init(const ag_examples *x, const ag_packing *p, int64_t batch_size)
{
    ag_batch b;
    ag_err err;
    if (ag_batch_init(&b, x, p, batch_size, &err)) fail_msg("%s", err.text);
    return b;
}

static void check_ints(const int32_t *got, const int32_t *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++) assert_int_equal(got[i], want[i]);
}

static void rows_are_joined_without_padding(void **state)
{
    (void)state;
    uint64_t bits = 0;
    ag_examples x = examples_with("-xx-x--xx", &bits);
    ag_batch b = init(&x, NULL, 2);
    assert_int_equal(b.max_T, 7);
    assert_int_equal(b.max_M, 4);
    assert_int_equal(b.max_spans, 2);
    ag_batch_fill(&b, (ag_row_span){(int64_t[]){2, 0}, 2});
    assert_int_equal(b.T, 7);
    check_ints(b.ids, (int32_t[]){30, 31, 32, 33, 10, 11, 12}, 7);
    check_ints(b.positions, (int32_t[]){0, 1, 2, 3, 0, 1, 2}, 7);
    check_ints(b.targets, (int32_t[]){-1, 32, 33, -1, 11, 12, -1}, 7);
    assert_int_equal(b.M, 4);
    check_ints(b.target_row, (int32_t[]){1, 2, 4, 5}, 4);
    check_ints(b.target_id, (int32_t[]){32, 33, 11, 12}, 4);
    assert_int_equal(b.n_spans, 2);
    assert_int_equal(b.longest, 4);
    assert_int_equal(b.span[1].q0, 4);
    assert_int_equal(b.span[1].n_q, 3);
    assert_int_equal(b.span[1].kv0, 4);
    assert_int_equal(b.span[1].n_kv, 3);
    assert_int_equal(ag_batch_count_targets(&b, (ag_row_span){(int64_t[]){2, 1}, 2}), 3);

    ag_batch_fill(&b, (ag_row_span){(int64_t[]){1}, 1}); /* nothing of the batch before stays */
    assert_int_equal(b.T, 2);
    assert_int_equal(b.M, 1);
    assert_int_equal(b.n_spans, 1);
    assert_int_equal(b.longest, 2);
    check_ints(b.targets, (int32_t[]){21, -1}, 2);
    ag_batch_deinit(&b);
}

static void packed_documents_are_their_own_spans(void **state)
{
    (void)state;
    uint64_t bits = 0;
    ag_examples x = examples_with("-xx-x-xxx", &bits);
    ag_packing p;
    ag_err err;
    if (ag_packing_make(&p, offset, 3, 6, &err)) fail_msg("%s", err.text);
    assert_int_equal(p.n, 2); /* 4 + 2, 3 */
    ag_batch b = init(&x, &p, 1);
    assert_int_equal(b.max_T, 6);
    assert_int_equal(b.max_spans, 2);
    ag_batch_fill(&b, (ag_row_span){(int64_t[]){0}, 1});
    assert_int_equal(b.T, 6);
    check_ints(b.ids, (int32_t[]){30, 31, 32, 33, 20, 21}, 6);
    check_ints(b.positions, (int32_t[]){0, 1, 2, 3, 0, 1}, 6);
    check_ints(b.targets, (int32_t[]){31, 32, 33, -1, 21, -1}, 6); /* the last of one predicts nothing of the next */
    assert_int_equal(b.n_spans, 2);
    assert_int_equal(b.span[1].q0, 4);
    assert_int_equal(ag_batch_count_targets(&b, (ag_row_span){(int64_t[]){0, 1}, 2}), 6);
    ag_batch_deinit(&b);
    ag_packing_free(&p);
}

static void a_batch_larger_than_the_dataset_has_room_for_all_of_it(void **state)
{
    (void)state;
    uint64_t bits = 0;
    ag_examples x = examples_with("-xx-x-xxx", &bits);
    ag_batch b = init(&x, NULL, 100);
    assert_int_equal(b.max_T, 9);
    ag_batch_fill(&b, (ag_row_span){(int64_t[]){0, 1, 2}, 3});
    assert_int_equal(b.T, 9);
    ag_batch_deinit(&b);
    ag_batch_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_joined_without_padding),
        cmocka_unit_test(packed_documents_are_their_own_spans),
        cmocka_unit_test(a_batch_larger_than_the_dataset_has_room_for_all_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
