#include "support/unit_test.h"

#include "base/arena.h"
#include "base/digest.h"
#include "base/fs.h"
#include "base/num.h"
#include "base/rng.h"
#include "golden/rng/rng_golden.h"

#define N_OF(a) (sizeof(a) / sizeof *(a))

/* kat_vectors of Random123 1.14 */
static void philox_gives_the_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t key, low, high;
        uint32_t want[4];
    } cases[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        ag_philox4 got = ag_philox(cases[i].key, cases[i].low, cases[i].high);
        for (int k = 0; k < 4; k++) assert_int_equal(cases[i].want[k], got.word[k]);
    }
}

static void streams_equal_torch(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(golden_streams); i++) {
        ag_mt19937 mt;
        ag_mt19937_seed(&mt, golden_streams[i].seed);
        for (int k = 0; k < 8; k++) assert_int_equal(golden_streams[i].low31[k], ag_mt19937_u32(&mt) & 0x7fffffff);
        ag_mt19937_seed(&mt, golden_streams[i].seed);
        for (int k = 0; k < 4; k++) assert_int_equal(golden_streams[i].low63[k], ag_mt19937_u64(&mt) & INT64_MAX);
        ag_mt19937_seed(&mt, golden_streams[i].seed);
        for (int k = 0; k < 8; k++) assert_int_equal(golden_streams[i].uniform_bits[k], ag_f32_bits(ag_mt19937_uniform_f32(&mt)));
    }
}

static void permutations_equal_torch(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_OF(golden_permutations); i++) {
        int64_t n = golden_permutations[i].n;
        int64_t *p = malloc((size_t)n * sizeof *p);
        assert_non_null(p);
        ag_mt19937 mt;
        ag_mt19937_seed(&mt, golden_permutations[i].seed);
        ag_mt19937_randperm(&mt, p, n);
        for (int64_t k = 0; k < n && k < 8; k++) assert_int_equal(golden_permutations[i].first[k], p[k]);
        assert_string_equal(golden_permutations[i].sha256, ag_sha256_bytes(p, (size_t)n * sizeof *p).hex);
        assert_int_equal(golden_permutations[i].low31_after, ag_mt19937_u32(&mt) & 0x7fffffff);
        free(p);
    }
}

static const unsigned char *golden_state(ag_arena *arena, const char *name)
{
    ag_err err;
    char *bytes;
    size_t n;
    must(ag_file_read(&bytes, &n, ag_path_join(arena, AGOGE_TESTS_DIR "/golden/rng", name), 1 << 20, arena, &err));
    assert_int_equal(AG_MT19937_SAVED_BYTES, n);
    return (const unsigned char *)bytes;
}

static void states_are_saved_as_torch_saves_them(void **state)
{
    (void)state;
    ag_arena arena = {0};
    unsigned char saved[AG_MT19937_SAVED_BYTES];
    ag_mt19937 mt;
    ag_mt19937_seed(&mt, 42);
    ag_mt19937_save(&mt, saved);
    assert_memory_equal(golden_state(&arena, "state_fresh.bin"), saved, sizeof saved);
    for (int i = 0; i < 700; i++) (void)ag_mt19937_u32(&mt);
    ag_mt19937_save(&mt, saved);
    assert_memory_equal(golden_state(&arena, "state_after_700.bin"), saved, sizeof saved);
    ag_arena_free(&arena);
}

static void states_of_torch_come_back_whole(void **state)
{
    (void)state;
    ag_arena arena = {0};
    ag_err err;
    ag_mt19937 mt, run;
    const char *const names[] = {"state_fresh.bin", "state_after_700.bin", "state_cached_normal.bin"};
    for (size_t i = 0; i < N_OF(names); i++) {
        const unsigned char *bytes = golden_state(&arena, names[i]);
        unsigned char saved[AG_MT19937_SAVED_BYTES];
        must(ag_mt19937_load(&mt, bytes, AG_MT19937_SAVED_BYTES, &err));
        ag_mt19937_save(&mt, saved);
        assert_memory_equal(bytes, saved, sizeof saved);
    }
    must(ag_mt19937_load(&mt, golden_state(&arena, "state_after_700.bin"), AG_MT19937_SAVED_BYTES, &err));
    ag_mt19937_seed(&run, 42);
    for (int i = 0; i < 700; i++) (void)ag_mt19937_u32(&run);
    for (int i = 0; i < 2000; i++) assert_int_equal(ag_mt19937_u32(&run), ag_mt19937_u32(&mt));
    ag_arena_free(&arena);
}

static void states_that_no_generator_saved_are_refused(void **state)
{
    (void)state;
    ag_err err;
    ag_mt19937 mt;
    unsigned char saved[AG_MT19937_SAVED_BYTES];
    ag_mt19937_seed(&mt, 1);
    must_fail(AG_E_FORMAT, "has 16 bytes", ag_mt19937_load(&mt, saved, 16, &err));
    ag_mt19937_save(&mt, saved);
    saved[16] = 200, saved[17] = 200; /* next far behind the words: would read outside */
    must_fail(AG_E_FORMAT, "next 51400", ag_mt19937_load(&mt, saved, sizeof saved, &err));
    ag_mt19937_save(&mt, saved);
    saved[8] = 0; /* nothing left: torch never saves that */
    must_fail(AG_E_FORMAT, "left 0", ag_mt19937_load(&mt, saved, sizeof saved, &err));
    ag_mt19937_save(&mt, saved);
    saved[8] = 100, saved[16] = 0x20, saved[17] = 0x02; /* 100 left from 544 on: past the end */
    must_fail(AG_E_FORMAT, "left 100", ag_mt19937_load(&mt, saved, sizeof saved, &err));
    ag_mt19937_save(&mt, saved);
    saved[24 + 8 * 5 + 4] = 1;
    must_fail(AG_E_FORMAT, "word 5", ag_mt19937_load(&mt, saved, sizeof saved, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(streams_equal_torch),
        cmocka_unit_test(permutations_equal_torch),
        cmocka_unit_test(states_are_saved_as_torch_saves_them),
        cmocka_unit_test(states_of_torch_come_back_whole),
        cmocka_unit_test(states_that_no_generator_saved_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
