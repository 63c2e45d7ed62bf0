#include "train/schedule.h"

#include "support/data_golden.h"

#include <math.h>

static void rates_are_those_of_transformers_to_the_bit(void **state)
{
    (void)state;
    static const char *const kinds[] = {"linear", "cosine", "constant", "constant_with_warmup"};
    json_t *golden = data_golden("schedule.json");
    const json_t *cases = json_object_get(golden, "cases"), *c;
    size_t i, n_rates = 0;
    json_array_foreach(cases, i, c)
    {
        const char *kind = json_string_value(json_object_get(c, "kind"));
        ag_train_config config = {.learning_rate = json_number_value(json_object_get(c, "peak")),
                                  .warmup_steps = int_of(c, "warmup")};
        for (int k = 0; k < 4; k++)
            if (strcmp(kinds[k], kind) == 0) config.lr_scheduler_type = (ag_lr_schedule)k;
        ag_schedule s = ag_schedule_plan(&config, int_of(c, "steps"));
        const json_t *rates = json_object_get(c, "rates"), *rate;
        size_t step;
        json_array_foreach(rates, step, rate)
        {
            double got = ag_schedule_rate(&s, (int64_t)step), want = json_number_value(rate);
            /* cos may differ in its last bit between C libraries */
            double tolerance = config.lr_scheduler_type == AG_LR_SCHEDULE_COSINE ? 1e-15 * config.learning_rate : 0;
            if (!(fabs(got - want) <= tolerance))
                fail_msg("%s, case %zu, step %zu: %.17g, want %.17g", kind, i, step, got, want);
            n_rates++;
        }
    }
    assert_true(n_rates > 400);
    ag_json_free(&golden);
}

static void a_warm_up_ratio_is_rounded_up_and_gives_way_to_steps(void **state)
{
    (void)state;
    json_t *golden = data_golden("schedule.json");
    const json_t *ratios = json_object_get(golden, "ratios"), *c;
    size_t i;
    json_array_foreach(ratios, i, c)
    {
        ag_train_config config = {.warmup_ratio = json_number_value(json_object_get(c, "ratio"))};
        assert_int_equal(ag_schedule_plan(&config, int_of(c, "steps")).n_warmup, int_of(c, "warmup"));
        config.warmup_steps = 5;
        assert_int_equal(ag_schedule_plan(&config, int_of(c, "steps")).n_warmup, 5);
    }
    assert_true(i > 0);
    ag_json_free(&golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_those_of_transformers_to_the_bit),
        cmocka_unit_test(a_warm_up_ratio_is_rounded_up_and_gives_way_to_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
