/* Answers side by side are, to the token, the answers of ag_generate to each prompt alone. */
#include "support/op_check.h"
#include "support/tiny_model.h"

#include "eval/greedy_batch.h"

#include <stdlib.h>
#include <string.h>

enum { N = 21, NEW = 24, LONGEST = 1100 };

typedef struct {
    int32_t ids[N][NEW];
    int64_t n[N];
    ag_finish finish[N];
    int n_answers, fail_behind;
} answers;

static ag_status on_answer(void *user, size_t i, const int32_t *ids, int64_t n, ag_finish finish, ag_err *err)
{
    answers *a = user;
    if (a->n_answers++ == a->fail_behind) return ag_fail(err, AG_E_NO_SPACE, "the disk is full");
    memcpy(a->ids[i], ids, (size_t)n * sizeof *ids);
    a->n[i] = n;
    a->finish[i] = finish;
    return AG_OK;
}

/* Lengths on both sides of what counts as few, and over one chunk of a prompt, with few behind it. */
static int64_t length_of(int i)
{
    static const int64_t lengths[] = {1, 8, 9, 30, 7, 64, 3, 513, 17, 518, 2, 1100, 40};
    return lengths[(size_t)i % (sizeof lengths / sizeof *lengths)];
}

static void alone(answers *out, const ag_decoder_options *o, const ag_prompt *prompts)
{
    for (int i = 0; i < N; i++) { /* sized as `agoge generate` does it */
        const int64_t capacity = prompts[i].n + NEW;
        ag_err err;
        ag_decoder *dec;
        ag_kv_cache *cache;
        ag_generate_result result;
        ag_decoder_options own = *o;
        own.max_tokens = capacity < AG_PREFILL_ROWS ? capacity : AG_PREFILL_ROWS;
        own.max_targets = 1;
        own.max_positions = own.longest_span = capacity;
        if (ag_decoder_create(&dec, &own, &err) || ag_kv_cache_create(&cache, o->model, 1, capacity, &err) ||
            ag_generate(dec, cache, prompts[i].ids, prompts[i].n, 0,
                        &(ag_generate_options){.sampling = ag_sampling_greedy(), .max_new_tokens = NEW}, out->ids[i], &result,
                        &err))
            fail_msg("%s", err.text);
        out->n[i] = result.n_new;
        out->finish[i] = result.finish;
        ag_kv_cache_free(&cache);
        ag_decoder_free(&dec);
    }
}

static void check(ag_cpu_level level, ag_compute compute, bool with_adapter)
{
    tiny_model tiny = tiny_model_create(5, 3, 4);
    static int32_t ids[LONGEST + N];
    static answers want, got;
    ag_prompt prompts[N];
    const ag_backend be = check_backend(level, 2);
    tiny.model.d.eos_ids[0] = 11; /* often enough */
    tiny.model.d.n_eos_ids = 1;
    for (int i = 0; i < LONGEST + N; i++) ids[i] = (i * i * 7 + i * 3) % 53;
    for (int i = 0; i < N; i++) prompts[i] = (ag_prompt){ids + i, length_of(i)};
    const ag_decoder_options o = {
        .model = &tiny.model, .backend = &be, .lora = with_adapter ? tiny.lora : NULL, .compute = compute};
    alone(&want, &o, prompts);
    for (int batch = 1; batch <= AG_LINEAR_FEW; batch += batch < 3 ? 1 : 5) {
        ag_err err;
        memset(&got, 0, sizeof got);
        got.fail_behind = -1;
        if (ag_greedy_batch_run(&(ag_greedy_batch){.decoder = o,
                                                   .prompt = prompts,
                                                   .n = N,
                                                   .max_new_tokens = NEW,
                                                   .batch = batch,
                                                   .on_answer = on_answer,
                                                   .user = &got},
                                &err))
            fail_msg("%s", err.text);
        assert_int_equal(N, got.n_answers);
        for (int i = 0; i < N; i++) {
            assert_int_equal(want.n[i], got.n[i]);
            assert_int_equal(want.finish[i], got.finish[i]);
            assert_memory_equal(want.ids[i], got.ids[i], (size_t)want.n[i] * sizeof(int32_t));
        }
    }
    tiny_model_free(&tiny);
}

static void answers_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    check(AG_CPU_REF, AG_COMPUTE_F32, true);
    check(ag_cpu_best_level(), AG_COMPUTE_F32, true);
    check(ag_cpu_best_level(), AG_COMPUTE_F32, false);
    check(ag_cpu_best_level(), AG_COMPUTE_BF16, true);
}

static void a_failure_or_a_signal_ends_the_whole(void **state)
{
    (void)state;
    tiny_model tiny = tiny_model_create(5, 2, 0);
    const ag_backend be = check_backend(ag_cpu_best_level(), 1);
    static const int32_t ids[] = {1, 2, 3};
    const ag_prompt prompts[] = {{ids, 3}, {ids, 2}, {ids, 1}};
    static answers got;
    ag_err err;
    volatile sig_atomic_t stop = SIGTERM;
    ag_greedy_batch b = {.decoder = {.model = &tiny.model, .backend = &be},
                         .prompt = prompts,
                         .n = 3,
                         .max_new_tokens = 4,
                         .batch = 2,
                         .on_answer = on_answer,
                         .user = &got};
    got.fail_behind = 1;
    assert_int_equal(AG_E_NO_SPACE, ag_greedy_batch_run(&b, &err));
    b.stop = &stop;
    assert_int_equal(AG_E_TERMINATED, ag_greedy_batch_run(&b, &err));
    assert_non_null(strstr(err.text, "the same command goes on"));
    b.n = 0; /* nothing to do is no failure */
    assert_int_equal(AG_OK, ag_greedy_batch_run(&b, &err));
    tiny_model_free(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_do_not_depend_on_the_batch),
        cmocka_unit_test(a_failure_or_a_signal_ends_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
