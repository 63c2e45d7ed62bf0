#include "support/unit_test.h"

#include "base/log.h"

typedef struct {
    int n;
    ag_log_level level;
    char text[64];
} heard;

static void hear(void *user, ag_log_level level, const char *text)
{
    heard *h = user;
    h->n++;
    h->level = level;
    snprintf(h->text, sizeof h->text, "%s", text);
}

static void words_reach_the_sink_that_was_set(void **state)
{
    (void)state;
    heard h = {0};
    ag_log(AG_LOG_WARN, "nobody hears %d", 1);
    ag_log_set_sink(hear, &h);
    ag_log(AG_LOG_WARN, "step %d is skipped", 3);
    assert_int_equal(1, h.n);
    assert_int_equal(AG_LOG_WARN, h.level);
    assert_string_equal("step 3 is skipped", h.text);
    ag_log_set_sink(NULL, NULL);
    ag_log(AG_LOG_INFO, "nobody hears");
    assert_int_equal(1, h.n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(words_reach_the_sink_that_was_set)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
