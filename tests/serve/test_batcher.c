/* A full batch with mixed adapters, shared prefixes and second turns answers what ag_generate answers, to the token, and what the
 * batcher answers to one request alone, to the bit. */
#include "model/generate.h"
#include "serve/batcher.h"
#include "support/op_check.h"
#include "support/tiny_model.h"

#include <pthread.h>
#include <time.h>

enum { CONTEXT = 1200, N = 14, MAX_NEW = 40, MAX_PROMPT = 1100, N_ADAPTERS = 2 };

typedef struct {
    int32_t prompt[MAX_PROMPT];
    int64_t n_prompt, max_new;
    int adapter;
} question;

typedef struct {
    int32_t ids[MAX_NEW];
    int64_t n;
    uint64_t bits; /* of all logits */
    ag_batcher_result result;
    bool over;
    int64_t V;
    ag_batcher_job job;
} answer;

static tiny_model base, lender;
static ag_backend backend;
static const ag_layer_lora *adapters[N_ADAPTERS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

static int set_up(void **state)
{
    (void)state;
    base = tiny_model_create_wide(1, 3, 4);
    lender = tiny_model_create_wide(9, 3, 7);
    adapters[0] = base.lora;
    adapters[1] = lender.lora;
    backend = check_backend(ag_cpu_best_level(), 2);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tiny_model_free(&base);
    tiny_model_free(&lender);
    return 0;
}

/* Lengths on all sides of the chunk (512), of few rows (8) and of blocks (64 queries; the last one or two of a chunk are computed in
 * another way); the first 300 ids are the same for most. */
static void make_questions(question *q)
{
    static const int64_t lengths[N] = {40, 5, 300, 1, 9, 321, 511, 512, 513, 520, 577, 700, 1030, 365};
    for (int i = 0; i < N; i++) {
        q[i] = (question){.n_prompt = lengths[i], .max_new = 10 + i * 2, .adapter = i % 3 - 1};
        for (int64_t k = 0; k < lengths[i]; k++) q[i].prompt[k] = (int32_t)(k < 300 && i != 3 ? (k * k * 7 + k) % 53 : (k * 3 + i * 11 + k * k) % 53);
    }
    q[13].adapter = q[5].adapter;
    q[8].adapter = q[9].adapter = q[7].adapter;
}

static int64_t generate(const question *q, int32_t *out)
{
    ag_err err;
    ag_decoder *dec;
    ag_kv_cache *cache;
    ag_generate_result result;
    if (ag_decoder_create(&dec, &(ag_decoder_options){.model = &base.model, .backend = &backend, .lora = q->adapter < 0 ? NULL : adapters[q->adapter],
                                .max_tokens = AG_PREFILL_ROWS, .max_targets = 1, .max_positions = CONTEXT, .longest_span = CONTEXT}, &err) ||
        ag_kv_cache_create(&cache, &base.model, 1, CONTEXT, &err) ||
        ag_generate(dec, cache, q->prompt, q->n_prompt, 0, &(ag_generate_options){.sampling = ag_sampling_greedy(), .max_new_tokens = q->max_new}, out,
                    &result, &err))
        fail_msg("%s", err.text);
    ag_kv_cache_free(&cache);
    ag_decoder_free(&dec);
    return result.n_new;
}

static void on_logits(void *user, float *logits)
{
    answer *a = user;
    for (int64_t v = 0; v < a->V; v++) {
        uint32_t bits;
        memcpy(&bits, &logits[v], sizeof bits);
        a->bits = (a->bits ^ bits) * 0x100000001b3u;
    }
}

static bool on_token(void *user, const ag_batcher_token *token)
{
    answer *a = user;
    assert_int_equal(token->index, a->n);
    a->ids[a->n++] = token->id;
    return true;
}

static void on_end(void *user, const ag_batcher_result *result)
{
    answer *a = user;
    pthread_mutex_lock(&lock);
    a->result = *result;
    a->over = true;
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&lock);
}

static ag_batcher *batcher(int64_t n_slots, int64_t n_kept, int64_t max_waiting)
{
    ag_err err;
    ag_batcher *b;
    if (ag_batcher_create(&b, &(ag_batcher_options){.model = &base.model, .backend = &backend, .adapters = adapters, .n_adapters = N_ADAPTERS, .max_rank = 7,
                                .context = CONTEXT, .n_slots = n_slots, .n_kept = n_kept, .max_waiting = max_waiting}, &err))
        fail_msg("%s", err.text);
    return b;
}

static void begin(ag_batcher *b, const question *q, answer *a)
{
    ag_err err;
    *a = (answer){.V = base.model.d.V, .bits = 0xcbf29ce484222325u};
    a->job.request = (ag_batcher_request){.prompt = q->prompt, .n_prompt = q->n_prompt, .adapter = q->adapter, .max_new_tokens = q->max_new,
                                          .sampling = ag_sampling_greedy(), .n_top = -1, .on_logits = on_logits, .on_token = on_token,
                                          .on_end = on_end, .user = a};
    ag_batcher_job *job = &a->job;
    if (ag_batcher_submit(b, &job, 1, &err)) fail_msg("%s", err.text);
}

static void wait_for(answer *a)
{
    pthread_mutex_lock(&lock);
    while (!a->over) pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
}

static void a_full_batch_answers_what_generate_answers(void **state)
{
    (void)state;
    question *q = calloc(N, sizeof *q);
    answer *a = calloc(N, sizeof *a), *alone = calloc(N, sizeof *alone);
    make_questions(q);
    for (int i = 0; i < N; i++) {
        ag_batcher *one = batcher(1, 0, 1);
        begin(one, &q[i], &alone[i]);
        wait_for(&alone[i]);
        ag_batcher_free(&one);
    }
    ag_batcher *b = batcher(9, 2, N);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) begin(b, &q[i], &a[i]);
        for (int i = 0; i < N; i++) {
            int32_t want[MAX_NEW];
            wait_for(&a[i]);
            assert_int_equal(generate(&q[i], want), a[i].n);
            assert_memory_equal(want, a[i].ids, (size_t)a[i].n * sizeof *want);
            if (a[i].bits != alone[i].bits)
                fail_msg("round %d: answer %d (%d ids, %d reused) has other bits than alone", round, i, (int)q[i].n_prompt, (int)a[i].result.n_reused);
        }
    }
    ag_batcher_stats stats;
    ag_batcher_read_stats(b, &stats);
    assert_true(stats.prefix_hits >= N / 2 && stats.reused_tokens > 2000);
    assert_true(stats.step_tokens > 3 * stats.steps); /* they really ran together */
    ag_batcher_free(&b);
    free(q);
    free(a);
    free(alone);
}

static void a_second_turn_finds_the_first_and_answers_the_same(void **state)
{
    (void)state;
    question *q = calloc(2, sizeof *q);
    answer *a = calloc(3, sizeof *a);
    q[0] = (question){.n_prompt = 600, .max_new = MAX_NEW, .adapter = 1};
    for (int64_t k = 0; k < MAX_PROMPT; k++) q[0].prompt[k] = (int32_t)((k * k * 5 + 3 * k) % 53);
    ag_batcher *b = batcher(2, 2, 4);
    begin(b, &q[0], &a[0]);
    wait_for(&a[0]);
    nanosleep(&(struct timespec){.tv_nsec = 300 * 1000 * 1000}, NULL); /* idle work */
    q[1] = q[0];
    memcpy(q[1].prompt + 600, a[0].ids, (size_t)a[0].n * sizeof *a[0].ids);
    q[1].n_prompt = 600 + a[0].n + 20;
    begin(b, &q[1], &a[1]);
    wait_for(&a[1]);
    assert_true(a[1].result.n_reused >= 600); /* of the answer, too: computed again while nobody waited */
    ag_batcher *fresh = batcher(1, 0, 1);
    begin(fresh, &q[1], &a[2]);
    wait_for(&a[2]);
    assert_int_equal(a[2].result.n_reused, 0);
    assert_true(a[1].bits == a[2].bits);
    ag_batcher_free(&fresh);
    ag_batcher_free(&b);
    free(q);
    free(a);
}

static void what_does_not_fit_is_refused_with_numbers(void **state)
{
    (void)state;
    ag_err err;
    ag_batcher *b = batcher(1, 0, 1);
    question *q = calloc(1, sizeof *q);
    q->n_prompt = MAX_PROMPT;
    answer *a = calloc(4, sizeof *a);
    a[0].job.request = (ag_batcher_request){.prompt = q->prompt, .n_prompt = MAX_PROMPT, .adapter = -1, .max_new_tokens = 200, .sampling = ag_sampling_greedy(),
                                            .n_top = -1, .on_token = on_token, .on_end = on_end};
    ag_batcher_job *job = &a[0].job;
    assert_int_equal(AG_E_DATA, ag_batcher_submit(b, &job, 1, &err));
    assert_non_null(strstr(err.text, "1200"));
    assert_non_null(strstr(err.text, "1100"));
    assert_non_null(strstr(err.text, "200"));
    q->prompt[0] = 53;
    a[0].job.request.max_new_tokens = 1;
    assert_int_equal(AG_E_DATA, ag_batcher_submit(b, &job, 1, &err));
    q->prompt[0] = 0;

    /* One runs, one waits, the next is too many. */
    q->max_new = MAX_NEW;
    begin(b, q, &a[1]);
    begin(b, q, &a[2]);
    ag_batcher_job *third = &a[3].job;
    a[3].job.request = a[2].job.request;
    assert_int_equal(AG_E_BUSY, ag_batcher_submit(b, &third, 1, &err));
    ag_batcher_cancel(b, &a[2].job);
    wait_for(&a[1]);
    wait_for(&a[2]);
    assert_int_equal(a[1].result.end, AG_END_LENGTH);
    assert_int_equal(a[2].result.end, AG_END_CANCELLED);
    ag_batcher_free(&b);
    free(q);
    free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_batch_answers_what_generate_answers),
        cmocka_unit_test(a_second_turn_finds_the_first_and_answers_the_same),
        cmocka_unit_test(what_does_not_fit_is_refused_with_numbers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
