#include "data/sampler.h"

#include "support/data_golden.h"

#include <math.h>

static ag_sampler *create(const ag_sampler_plan *plan)
{
    ag_sampler *s;
    ag_err err;
    if (ag_sampler_create(&s, plan, &err)) fail_msg("%s", err.text);
    return s;
}

static ag_sampler *of_case(const json_t *c)
{
    return create(&(ag_sampler_plan){.n_rows = int_of(c, "n"),
                                     .batch_size = int_of(c, "batch"),
                                     .accumulation = int_of(c, "accumulation"),
                                     .n_epochs = int_of(c, "epochs"),
                                     .max_steps = int_of(c, "max_steps"),
                                     .seed = (uint64_t)int_of(c, "seed")});
}

static void check_step(ag_sampler *s, int64_t step, const json_t *micros)
{
    assert_int_equal(ag_sampler_n_micro(s, step), json_array_size(micros));
    const json_t *rows;
    size_t m, i;
    json_array_foreach(micros, m, rows)
    {
        ag_row_span span = ag_sampler_micro(s, step, (int64_t)m);
        assert_int_equal(span.n, json_array_size(rows));
        for (i = 0; i < (size_t)span.n; i++) assert_int_equal(span.row[i], json_integer_value(json_array_get(rows, i)));
    }
}

static void order_and_steps_are_those_of_the_trainer(void **state)
{
    (void)state;
    json_t *golden = data_golden("sampler.json"), *c;
    size_t i;
    json_array_foreach(golden, i, c)
    {
        ag_sampler *s = of_case(c);
        const json_t *steps = json_object_get(c, "steps"), *epochs = json_object_get(c, "epoch_after");
        assert_int_equal(s->n_steps, json_array_size(steps));
        for (int64_t step = 0; step < s->n_steps; step++) {
            check_step(s, step, json_array_get(steps, (size_t)step));
            double got = ag_sampler_at(s, step + 1).epochs, want = json_number_value(json_array_get(epochs, (size_t)step));
            if (fabs(got - want) > 1e-12)
                fail_msg("case %zu: after step %lld epoch %.17g, want %.17g", i, (long long)step + 1, got, want);
        }
        ag_sampler_free(&s);
    }
    assert_true(i >= 6);
    ag_json_free(&golden);
}

static void a_resumed_run_sees_the_same_rows(void **state)
{
    (void)state;
    json_t *golden = data_golden("sampler.json"), *c;
    size_t i;
    json_array_foreach(golden, i, c)
    {
        const json_t *steps = json_object_get(c, "steps");
        for (int64_t from = 0; from < (int64_t)json_array_size(steps); from++) {
            ag_sampler *s = of_case(c); /* a new process: nothing of the steps before */
            check_step(s, from, json_array_get(steps, (size_t)from));
            ag_sampler_free(&s);
        }
    }
    ag_json_free(&golden);
}

static void a_position_says_how_far_a_run_is(void **state)
{
    (void)state;
    ag_sampler *s = create(
        &(ag_sampler_plan){.n_rows = 14, .batch_size = 2, .accumulation = 2, .n_epochs = 2, .max_steps = -1, .seed = 42});
    assert_int_equal(s->steps_per_epoch, 4);
    assert_int_equal(s->n_steps, 8);
    ag_sampler_position at = ag_sampler_at(s, 6);
    assert_int_equal(at.epoch, 1);
    assert_int_equal(at.in_epoch, 2);
    assert_int_equal(at.rows, 8);
    at = ag_sampler_at(s, 8);
    assert_int_equal(at.epoch, 2);
    assert_int_equal(at.rows, 0);
    assert_true(at.epochs == 2.0);
    ag_sampler_free(&s);
}

static void evaluation_goes_in_the_order_of_the_file(void **state)
{
    (void)state;
    ag_sampler *s =
        create(&(ag_sampler_plan){.n_rows = 5, .batch_size = 2, .accumulation = 1, .n_epochs = 1, .in_order = true});
    assert_int_equal(s->n_steps, 3);
    for (int64_t step = 0, row = 0; step < 3; step++) {
        ag_row_span span = ag_sampler_micro(s, step, 0);
        for (int64_t i = 0; i < span.n; i++) assert_int_equal(span.row[i], row++);
    }
    assert_int_equal(ag_sampler_micro(s, 2, 0).n, 1);
    ag_sampler_free(&s);
    ag_sampler_free(&s);
}

static void steps_beyond_counting_are_refused(void **state)
{
    (void)state;
    ag_sampler *s;
    ag_err err;
    ag_sampler_plan plan = {.n_rows = 1000, .batch_size = 1, .accumulation = 1, .n_epochs = INT64_MAX / 2, .max_steps = -1};
    assert_int_equal(ag_sampler_create(&s, &plan, &err), AG_E_DATA);
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_and_steps_are_those_of_the_trainer), cmocka_unit_test(a_resumed_run_sees_the_same_rows),
        cmocka_unit_test(a_position_says_how_far_a_run_is),         cmocka_unit_test(evaluation_goes_in_the_order_of_the_file),
        cmocka_unit_test(steps_beyond_counting_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
