#define _GNU_SOURCE
#include "support/unit_test.h"

#include "base/clock.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

static void the_monotonic_clock_runs_in_nanoseconds(void **state)
{
    (void)state;
    uint64_t before = ag_clock_ns();
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    uint64_t passed = ag_clock_ns() - before;
    assert_true(passed >= 2000000 && passed < 60000000000u);
}

static void utc_is_written_in_both_forms(void **state)
{
    (void)state;
    char text[32], stamp[32];
    time_t before = time(NULL);
    ag_clock_utc(text);
    ag_clock_utc_stamp(stamp);
    struct tm parts = {0};
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    assert_true(end && *end == 0);
    time_t said = timegm(&parts);
    assert_true(said >= before && said <= time(NULL));
    assert_int_equal(22, strlen(stamp));
    assert_int_equal('Z', stamp[21]);
    assert_int_equal(8, strspn(stamp, "0123456789"));
    assert_int_equal('T', stamp[8]);
    assert_int_equal(12, strspn(stamp + 9, "0123456789"));
}

static void memory_figures_are_bytes_of_this_machine(void **state)
{
    (void)state;
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t available = ag_memory_available(), before = ag_process_peak_rss();
    assert_true(available > 1 << 20 && available <= total);
    assert_true(before > 100 << 10 && before < total);
    size_t n = 64 << 20;
    char *block = malloc(n);
    assert_non_null(block);
    memset(block, 1, n);
    assert_true(block[n / 3] == 1 && ag_process_peak_rss() >= (uint64_t)n);
    free(block);
}

static void cores_are_no_more_than_the_process_may_use(void **state)
{
    (void)state;
    cpu_set_t set, one;
    CPU_ZERO(&set);
    CPU_ZERO(&one);
    assert_int_equal(0, sched_getaffinity(0, sizeof set, &set));
    int n = ag_physical_cores(), first = 0;
    assert_true(n >= 1 && n <= CPU_COUNT(&set));
    while (!CPU_ISSET(first, &set)) first++;
    CPU_SET(first, &one);
    assert_int_equal(0, sched_setaffinity(0, sizeof one, &one));
    assert_int_equal(1, ag_physical_cores());
    assert_int_equal(0, sched_setaffinity(0, sizeof set, &set));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_monotonic_clock_runs_in_nanoseconds),
        cmocka_unit_test(utc_is_written_in_both_forms),
        cmocka_unit_test(memory_figures_are_bytes_of_this_machine),
        cmocka_unit_test(cores_are_no_more_than_the_process_may_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
