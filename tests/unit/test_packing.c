#include "data/packing.h"

#include "support/data_golden.h"

static void packed_rows_are_those_of_trl(void **state)
{
    (void)state;
    json_t *golden = data_golden("packing.json"), *c;
    size_t i;
    json_array_foreach(golden, i, c)
    {
        const json_t *lengths = json_object_get(c, "lengths"), *bins = json_object_get(c, "bins");
        int64_t n = (int64_t)json_array_size(lengths), *offset = calloc((size_t)n + 1, sizeof *offset), longest = 0;
        for (int64_t r = 0; r < n; r++) offset[r + 1] = offset[r] + json_integer_value(json_array_get(lengths, (size_t)r));
        ag_packing p;
        ag_err err;
        if (ag_packing_make(&p, offset, n, int_of(c, "capacity"), &err)) fail_msg("%s", err.text);
        assert_int_equal(p.n, json_array_size(bins));
        for (int64_t b = 0; b < p.n; b++) {
            const json_t *bin = json_array_get(bins, (size_t)b);
            int64_t tokens = 0;
            assert_int_equal(p.offset[b + 1] - p.offset[b], json_array_size(bin));
            for (int64_t r = p.offset[b]; r < p.offset[b + 1]; r++) {
                assert_int_equal(p.row[r], json_integer_value(json_array_get(bin, (size_t)(r - p.offset[b]))));
                tokens += offset[p.row[r] + 1] - offset[p.row[r]];
            }
            assert_true(tokens <= int_of(c, "capacity"));
            longest = tokens > longest ? tokens : longest;
            assert_true(p.most_rows >= p.offset[b + 1] - p.offset[b]);
        }
        assert_int_equal(p.longest_tokens, longest);
        ag_packing_free(&p);
        free(offset);
    }
    assert_true(i >= 6);
    ag_json_free(&golden);
}

static void a_row_that_fits_nowhere_is_refused(void **state)
{
    (void)state;
    ag_packing p;
    ag_err err;
    assert_int_equal(ag_packing_make(&p, (int64_t[]){0, 3, 9}, 2, 5, &err), AG_E_DATA);
    assert_string_equal(err.text, "row 2 has 6 tokens and cannot be packed into 5");
    assert_int_equal(ag_packing_make(&p, (int64_t[]){0, 3, 3}, 2, 5, &err), AG_E_DATA);
    ag_packing_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_rows_are_those_of_trl),
        cmocka_unit_test(a_row_that_fits_nowhere_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
