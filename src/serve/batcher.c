#define _GNU_SOURCE
#include "serve/batcher.h"

#include "base/arena.h"
#include "base/clock.h"
#include "model/generate.h"
#include "ops/linear/linear.h"
#include "serve/prefix_cache.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    BUSY_PREFILL_ROWS = 128, /* of prompts in a step while answers run: a longer step would make every reader wait */
    POLISH_ROWS = 64,        /* of work that nobody waits for: a request that comes meanwhile waits for so many rows */
    IDLE_MS = 30,            /* nothing to do for so long: now is the time for such work */
};

typedef enum { SEAT_FREE, SEAT_WAITING, SEAT_PROMPT, SEAT_ANSWER } seat_state;
typedef struct {
    seat_state state;
    ag_batcher_job *job;
    int64_t slot, n_done, n_new, n_reused; /* n_done: tokens in the cache */
    uint64_t order;
    int32_t next;                          /* the last id, not yet in the cache */
} seat;

struct ag_batcher {
    ag_batcher_options o;
    ag_decoder *decoder;
    ag_kv_cache *cache;
    ag_prefix_cache prefixes;
    ag_chooser *chooser;
    float *logits; /* [AG_LINEAR_FEW, V] */
    int32_t *ids;  /* [chunk] of a call */
    int64_t chunk;
    seat *seats;   /* [n_slots] */
    uint64_t order;
    ag_batcher_top top[AG_BATCHER_MAX_TOP];

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    ag_batcher_job *first, *last; /* waiting */
    int64_t n_waiting;
    bool stopping;
    ag_batcher_stats stats;
};

/* ---- tokens --------------------------------------------------------------------------------------------------------------- */
static void end_job(ag_batcher *e, ag_batcher_job *job, const ag_batcher_result *result)
{
    pthread_mutex_lock(&e->lock);
    e->stats.ended[result->end]++;
    pthread_mutex_unlock(&e->lock);
    job->request.on_end(job->request.user, result);
}

static void end_seat(ag_batcher *e, seat *s, ag_batcher_end end, const char *text)
{
    const ag_batcher_request *r = &s->job->request;
    if (s->state >= SEAT_PROMPT) ag_prefix_cache_give_back(&e->prefixes, s->slot, s->state == SEAT_ANSWER ? r->n_prompt + s->n_new : s->n_done);
    ag_batcher_job *job = s->job;
    const ag_batcher_result result = {.end = end, .n_new = s->n_new, .n_reused = s->n_reused, .text = text};
    *s = (seat){0};
    end_job(e, job, &result);
}

static bool ends_answer(const ag_description *d, int32_t id)
{
    for (int i = 0; i < d->n_eos_ids; i++)
        if (d->eos_ids[i] == id) return true;
    return false;
}

/* The likeliest ids by insertion: n_top is small. */
static int likeliest(ag_batcher_top *top, int n_top, const float *logits, int64_t V)
{
    int n = 0;
    for (int64_t v = 0; v < V; v++) {
        if (n == n_top && !(n > 0 && logits[v] > top[n - 1].logprob)) continue;
        int i = n < n_top ? n++ : n - 1;
        for (; i > 0 && logits[v] > top[i - 1].logprob; i--) top[i] = top[i - 1];
        top[i] = (ag_batcher_top){(int32_t)v, logits[v]};
    }
    return n;
}

static float log_sum_exp(const float *logits, int64_t V)
{
    float most = logits[0];
    for (int64_t v = 1; v < V; v++)
        if (logits[v] > most) most = logits[v];
    double sum = 0;
    for (int64_t v = 0; v < V; v++) sum += exp((double)logits[v] - (double)most);
    return most + (float)log(sum);
}

/* The next id of an answer from its logits; the seat is free afterwards if that was the last. */
static void choose(ag_batcher *e, seat *s, float *logits)
{
    const ag_description *d = &e->o.model->d;
    const ag_batcher_request *r = &s->job->request;
    const int64_t V = d->V;
    ag_batcher_token token = {.index = s->n_new};
    float total = 0;
    if (r->n_top >= 0) {
        total = log_sum_exp(logits, V);
        token.n_top = likeliest(e->top, r->n_top, logits, V);
        for (int i = 0; i < token.n_top; i++) e->top[i].logprob -= total;
        token.top = e->top;
    }
    int32_t *ids = e->prefixes.slots[s->slot].ids;
    /* Only one logit is wanted again, but which one is not known before the choice. */
    float *raw = r->n_top >= 0 ? malloc((size_t)V * sizeof *raw) : NULL;
    if (raw) memcpy(raw, logits, (size_t)V * sizeof *raw);
    if (r->on_logits) r->on_logits(r->user, logits);
    token.id = ag_sample(e->chooser, &r->sampling, logits, ids, r->n_prompt + s->n_new, (uint64_t)s->n_new);
    token.logprob = raw ? raw[token.id] - total : 0;
    free(raw);
    if (!r->ignore_eos && ends_answer(d, token.id)) {
        end_seat(e, s, AG_END_STOP, NULL);
        return;
    }
    ids[r->n_prompt + s->n_new] = s->next = token.id;
    s->n_new++;
    pthread_mutex_lock(&e->lock);
    e->stats.new_tokens++;
    pthread_mutex_unlock(&e->lock);
    if (!r->on_token(r->user, &token)) end_seat(e, s, AG_END_CALLER, NULL);
    else if (s->n_new == r->max_new_tokens) end_seat(e, s, AG_END_LENGTH, NULL);
}

static const ag_layer_lora *lora_of(const ag_batcher *e, const seat *s)
{
    const int adapter = s->job->request.adapter;
    return adapter < 0 ? NULL : e->o.adapters[adapter];
}

/* ---- prompts ---------------------------------------------------------------------------------------------------------------- */
static bool begin_prompt(ag_batcher *e, seat *s)
{
    const ag_batcher_request *r = &s->job->request;
    if (ag_prefix_cache_coming(&e->prefixes, r->adapter, r->prompt, r->n_prompt) > 0) return false;
    s->slot = ag_prefix_cache_take(&e->prefixes, r->adapter, r->prompt, r->n_prompt, &s->n_reused);
    s->n_done = s->n_reused;
    s->state = SEAT_PROMPT;
    pthread_mutex_lock(&e->lock);
    e->stats.prefix_queries++;
    e->stats.prefix_hits += s->n_reused > 0;
    e->stats.prompt_tokens += (uint64_t)r->n_prompt;
    e->stats.reused_tokens += (uint64_t)s->n_reused;
    pthread_mutex_unlock(&e->lock);
    return true;
}

typedef struct {
    seat *seats[AG_LINEAR_FEW];
    ag_decoder_run runs[AG_LINEAR_FEW];
    int64_t n, T;
    bool any_last;
} prompt_batch;

/* Adds the next piece of a prompt where it fits. Pieces of few rows go with their like only. */
static void add_piece(ag_batcher *e, prompt_batch *b, seat *s, int64_t room)
{
    const int64_t n = s->job->request.n_prompt;
    int64_t end = ag_prefix_piece_end(&e->prefixes, n, s->n_done, room - b->T);
    if (end == s->n_done && b->n == 0) end = ag_prefix_piece_end(&e->prefixes, n, s->n_done, e->chunk);
    const int64_t rows = end - s->n_done;
    if (rows <= 0) return;
    if (b->n > 0 && rows <= AG_LINEAR_FEW && (b->T > AG_LINEAR_FEW || b->T + rows > AG_LINEAR_FEW)) return;
    if (b->n > 0 && rows > AG_LINEAR_FEW && b->T <= AG_LINEAR_FEW) return;
    b->seats[b->n] = s;
    b->runs[b->n++] = (ag_decoder_run){.slot = s->slot, .n_new = rows, .lora = lora_of(e, s)};
    memcpy(e->ids + b->T, s->job->request.prompt + s->n_done, (size_t)rows * sizeof *e->ids);
    b->T += rows;
    b->any_last |= end == n;
}

static void piece_done(ag_batcher *e, prompt_batch *b, int64_t i)
{
    seat *s = b->seats[i];
    const int64_t n = s->job->request.n_prompt;
    s->n_done += b->runs[i].n_new;
    e->prefixes.slots[s->slot].n_exact = s->n_done < n ? s->n_done : ag_prefix_exact(&e->prefixes, n);
    if (s->n_done < n) return;
    s->state = SEAT_ANSWER;
    choose(e, s, e->logits + i * e->o.model->d.V);
}

/* Seats in the order in which their requests came. */
static int64_t seats_in_order(ag_batcher *e, seat **out, seat_state from, seat_state to)
{
    int64_t n = 0;
    for (int64_t i = 0; i < e->o.n_slots; i++) {
        seat *s = &e->seats[i];
        if (s->state < from || s->state > to) continue;
        int64_t j = n++;
        for (; j > 0 && out[j - 1]->order > s->order; j--) out[j] = out[j - 1];
        out[j] = s;
    }
    return n;
}

static void fail_batch(ag_batcher *e, seat **seats, int64_t n, const ag_err *err)
{
    for (int64_t i = 0; i < n; i++) end_seat(e, seats[i], AG_END_FAILED, err->text);
}

/* One call's worth of prompts; false: there was nothing to do. */
static bool prompt_step(ag_batcher *e, bool answers_run)
{
    seat *order[AG_BATCHER_MAX_SLOTS];
    const int64_t n = seats_in_order(e, order, SEAT_WAITING, SEAT_PROMPT);
    const int64_t room = answers_run && BUSY_PREFILL_ROWS < e->chunk ? BUSY_PREFILL_ROWS : e->chunk;
    prompt_batch b = {0};
    for (int64_t i = 0; i < n && b.n < AG_LINEAR_FEW && b.T < room; i++)
        if (order[i]->state == SEAT_PROMPT || begin_prompt(e, order[i])) add_piece(e, &b, order[i], room);
    if (b.n == 0) return false;
    ag_err err;
    const uint64_t start = ag_clock_ns();
    ag_status status = ag_decoder_infer(e->decoder, e->cache, b.runs, b.n, e->ids, b.any_last ? e->logits : NULL, &err);
    pthread_mutex_lock(&e->lock);
    e->stats.prefill_ns += ag_clock_ns() - start;
    pthread_mutex_unlock(&e->lock);
    if (status) fail_batch(e, b.seats, b.n, &err);
    else
        for (int64_t i = 0; i < b.n; i++) piece_done(e, &b, i);
    return true;
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------- */
static int by_adapter(const void *a, const void *b)
{
    const seat *const *x = a, *const *y = b;
    const int p = (*x)->job->request.adapter, q = (*y)->job->request.adapter;
    if (p != q) return p < q ? -1 : 1;
    return (*x)->order < (*y)->order ? -1 : 1;
}

static void answer_call(ag_batcher *e, seat **seats, int64_t n)
{
    ag_decoder_run runs[AG_LINEAR_FEW];
    for (int64_t i = 0; i < n; i++) {
        runs[i] = (ag_decoder_run){.slot = seats[i]->slot, .n_new = 1, .lora = lora_of(e, seats[i])};
        e->ids[i] = seats[i]->next;
    }
    ag_err err;
    const uint64_t start = ag_clock_ns();
    ag_status status = ag_decoder_infer(e->decoder, e->cache, runs, n, e->ids, e->logits, &err);
    pthread_mutex_lock(&e->lock);
    e->stats.decode_ns += ag_clock_ns() - start;
    e->stats.steps++;
    e->stats.step_tokens += (uint64_t)n;
    pthread_mutex_unlock(&e->lock);
    if (status) fail_batch(e, seats, n, &err);
    else
        for (int64_t i = 0; i < n; i++) choose(e, seats[i], e->logits + i * e->o.model->d.V);
}

static bool answer_step(ag_batcher *e)
{
    seat *seats[AG_BATCHER_MAX_SLOTS];
    const int64_t n = seats_in_order(e, seats, SEAT_ANSWER, SEAT_ANSWER);
    qsort(seats, (size_t)n, sizeof *seats, by_adapter);
    for (int64_t at = 0; at < n; at += AG_LINEAR_FEW) answer_call(e, seats + at, n - at < AG_LINEAR_FEW ? n - at : AG_LINEAR_FEW);
    return n > 0;
}

static int64_t polish_rows(const ag_batcher *e)
{
    const int64_t rows = POLISH_ROWS > e->prefixes.granule ? POLISH_ROWS : e->prefixes.granule;
    return rows < e->chunk ? rows : e->chunk;
}

/* Computes a piece of a finished conversation as its next turn's prompt would, so that the turn finds it. */
static void polish_step(ag_batcher *e)
{
    int64_t slot, from, to;
    if (!ag_prefix_cache_unpolished(&e->prefixes, polish_rows(e), &slot, &from, &to)) return;
    ag_prefix_slot *s = &e->prefixes.slots[slot];
    ag_kv_cache_truncate(e->cache, slot, from);
    ag_err err;
    const ag_decoder_run run = {.slot = slot, .n_new = to - from, .lora = s->adapter < 0 ? NULL : e->o.adapters[s->adapter]};
    if (ag_decoder_infer(e->decoder, e->cache, &run, 1, s->ids + from, NULL, &err)) s->n_ids = s->n_exact; /* then not */
    else s->n_exact = to;
}

/* ---- the thread ---------------------------------------------------------------------------------------------------------------- */
static ag_batcher_job *pop_waiting(ag_batcher *e)
{
    ag_batcher_job *job = e->first;
    if (!job) return NULL;
    e->first = job->next;
    if (!e->first) e->last = NULL;
    e->n_waiting--;
    return job;
}

/* Waiting jobs to free seats. Returns those that were given up meanwhile, linked; with the lock held. */
static ag_batcher_job *admit(ag_batcher *e)
{
    ag_batcher_job *gone = NULL, *kept = NULL, **kept_end = &kept;
    for (ag_batcher_job *job; (job = pop_waiting(e));) {
        if (e->stopping || atomic_load(&job->cancelled)) {
            job->next = gone;
            gone = job;
            continue;
        }
        seat *s = NULL;
        for (int64_t i = 0; i < e->o.n_slots && !s; i++)
            if (e->seats[i].state == SEAT_FREE) s = &e->seats[i];
        if (s) *s = (seat){.state = SEAT_WAITING, .job = job, .order = ++e->order};
        else {
            job->next = NULL;
            *kept_end = job;
            kept_end = &job->next;
        }
    }
    e->n_waiting = 0;
    for (e->first = kept, e->last = NULL; kept; kept = kept->next) e->last = kept, e->n_waiting++;
    return gone;
}

static int64_t n_running(const ag_batcher *e)
{
    int64_t n = 0;
    for (int64_t i = 0; i < e->o.n_slots; i++) n += e->seats[i].state != SEAT_FREE;
    return n;
}

/* Waits until there is something to do. *idle: nothing but work that nobody waits for. */
static ag_batcher_job *wait_for_work(ag_batcher *e, bool *idle, bool *stopping)
{
    pthread_mutex_lock(&e->lock);
    *idle = false;
    while (!e->first && !e->stopping && n_running(e) == 0) {
        e->stats.n_running = 0;
        e->stats.kv_tokens = 0;
        for (int64_t i = 0; i < e->prefixes.n_slots; i++) e->stats.kv_tokens += (size_t)e->prefixes.slots[i].n_exact;
        int64_t slot, from, to;
        if (!ag_prefix_cache_unpolished(&e->prefixes, polish_rows(e), &slot, &from, &to)) {
            pthread_cond_wait(&e->wake, &e->lock);
            continue;
        }
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += IDLE_MS * 1000000L;
        if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
        if (pthread_cond_timedwait(&e->wake, &e->lock, &until) == ETIMEDOUT && !e->first && !e->stopping) {
            *idle = true;
            break;
        }
    }
    *stopping = e->stopping;
    ag_batcher_job *gone = admit(e);
    e->stats.n_running = n_running(e);
    pthread_mutex_unlock(&e->lock);
    return gone;
}

static void *engine_main(void *user)
{
    ag_batcher *e = user;
    pthread_setname_np(pthread_self(), "agoge-engine");
    for (;;) {
        bool idle, stopping;
        for (ag_batcher_job *job = wait_for_work(e, &idle, &stopping), *next; job; job = next) {
            next = job->next;
            const bool was_cancelled = atomic_load(&job->cancelled);
            end_job(e, job, &(ag_batcher_result){.end = was_cancelled ? AG_END_CANCELLED : AG_END_STOPPING});
        }
        if (idle) {
            polish_step(e);
            continue;
        }
        for (int64_t i = 0; i < e->o.n_slots; i++)
            if (e->seats[i].state != SEAT_FREE && atomic_load(&e->seats[i].job->cancelled)) end_seat(e, &e->seats[i], AG_END_CANCELLED, NULL);
        if (stopping && n_running(e) == 0) return NULL;
        const bool answered = answer_step(e);
        prompt_step(e, answered);
    }
}

/* ---- outside ---------------------------------------------------------------------------------------------------------------------- */
static ag_decoder_options decoder_options(const ag_batcher_options *o)
{
    return (ag_decoder_options){.model = o->model, .backend = o->backend, .compute = o->compute, .max_run_rank = o->max_rank,
                                .max_tokens = o->context < AG_PREFILL_ROWS ? o->context : AG_PREFILL_ROWS, .max_targets = AG_LINEAR_FEW,
                                .max_positions = o->context, .longest_span = o->context};
}

size_t ag_batcher_bytes(const ag_batcher_options *o)
{
    const ag_decoder_options options = decoder_options(o);
    ag_decoder_bytes bytes;
    ag_decoder_plan(&bytes, &options);
    return bytes.activations + bytes.workspace + ag_kv_cache_bytes(o->model, o->n_slots + o->n_kept, o->context);
}

ag_status ag_batcher_create(ag_batcher **out, const ag_batcher_options *o, ag_err *err)
{
    *out = NULL;
    AG_ASSERT(o->n_slots >= 1 && o->n_slots <= AG_BATCHER_MAX_SLOTS && o->n_kept >= 0 && o->context >= 2);
    ag_batcher *e = calloc(1, sizeof *e);
    if (!e) ag_out_of_memory(sizeof *e);
    e->o = *o;
    const ag_decoder_options options = decoder_options(o);
    e->chunk = options.max_tokens;
    const int64_t n_kv = o->n_slots + o->n_kept, V = o->model->d.V;
    ag_status status = ag_decoder_create(&e->decoder, &options, err);
    if (!status) status = ag_kv_cache_create(&e->cache, o->model, n_kv, o->context, err);
    if (status) {
        ag_decoder_free(&e->decoder);
        free(e);
        return status;
    }
    ag_prefix_cache_init(&e->prefixes, e->cache, n_kv, o->context, ag_decoder_granule(e->decoder), e->chunk);
    e->stats.kv_capacity = (size_t)(n_kv * o->context);
    e->chooser = ag_chooser_create(V);
    e->logits = malloc((size_t)(AG_LINEAR_FEW * V) * sizeof *e->logits);
    e->ids = malloc((size_t)(e->chunk + AG_LINEAR_FEW) * sizeof *e->ids);
    e->seats = calloc((size_t)o->n_slots, sizeof *e->seats);
    if (!e->logits || !e->ids || !e->seats) ag_out_of_memory((size_t)(AG_LINEAR_FEW * V) * sizeof *e->logits);
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &clock);
    pthread_condattr_destroy(&clock);
    const int failed = pthread_create(&e->thread, NULL, engine_main, e);
    e->has_thread = !failed;
    *out = e;
    if (!failed) return AG_OK;
    ag_batcher_free(out);
    return ag_fail_errno(err, failed, "the engine's thread cannot be started");
}

void ag_batcher_stop(ag_batcher *e)
{
    pthread_mutex_lock(&e->lock);
    e->stopping = true;
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
    if (e->has_thread) pthread_join(e->thread, NULL);
    e->has_thread = false;
}

void ag_batcher_free(ag_batcher **engine)
{
    if (!engine || !*engine) return;
    ag_batcher *e = *engine;
    ag_batcher_stop(e);
    ag_prefix_cache_deinit(&e->prefixes);
    ag_kv_cache_free(&e->cache);
    ag_decoder_free(&e->decoder);
    ag_chooser_free(&e->chooser);
    free(e->logits);
    free(e->ids);
    free(e->seats);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
    free(e);
    *engine = NULL;
}

static ag_status check_request(const ag_batcher *e, const ag_batcher_request *r, ag_err *err)
{
    AG_ASSERT(r->on_token && r->on_end && r->adapter >= -1 && r->adapter < e->o.n_adapters && r->n_top <= AG_BATCHER_MAX_TOP);
    AG_TRY(ag_sampling_check(&r->sampling, err));
    if (r->n_prompt < 1) return ag_fail(err, AG_E_DATA, "the prompt has no token; give a text");
    for (int64_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= e->o.model->d.V)
            return ag_fail(err, AG_E_DATA, "the prompt has the token id %ld; this model's are below %lld", (long)r->prompt[i], (long long)e->o.model->d.V);
    if (r->max_new_tokens < 1) return ag_fail(err, AG_E_DATA, "an answer of %lld tokens is none; ask for one at least", (long long)r->max_new_tokens);
    if (r->n_prompt > e->o.context - r->max_new_tokens)
        return ag_fail(err, AG_E_DATA, "this server's context has %lld tokens, the prompt has %lld and %lld are asked for the answer; shorten "
                       "the prompt, ask for less, or start the server with a larger --ctx", (long long)e->o.context, (long long)r->n_prompt,
                       (long long)r->max_new_tokens);
    return AG_OK;
}

ag_status ag_batcher_submit(ag_batcher *e, ag_batcher_job *const *jobs, int64_t n, ag_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        AG_TRY(check_request(e, &jobs[i]->request, err));
        jobs[i]->next = NULL;
        atomic_store(&jobs[i]->cancelled, false);
    }
    pthread_mutex_lock(&e->lock);
    /* What waits is to be taken up yet; free seats count as room. */
    const bool is_full = e->n_waiting + n > e->o.max_waiting + e->o.n_slots - e->stats.n_running, stopping = e->stopping;
    for (int64_t i = 0; i < n && !is_full && !stopping; i++) {
        *(e->last ? &e->last->next : &e->first) = jobs[i];
        e->last = jobs[i];
        e->n_waiting++;
    }
    pthread_cond_signal(&e->wake);
    const int64_t n_waiting = e->n_waiting;
    pthread_mutex_unlock(&e->lock);
    if (stopping) return ag_fail(err, AG_E_BUSY, "the server is shutting down");
    if (is_full)
        return ag_fail(err, AG_E_BUSY, "all %lld slots are taken and %lld answers are waiting already (%lld may); try again later",
                       (long long)e->o.n_slots, (long long)n_waiting, (long long)e->o.max_waiting);
    return AG_OK;
}

void ag_batcher_cancel(ag_batcher *e, ag_batcher_job *job)
{
    atomic_store(&job->cancelled, true);
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

void ag_batcher_read_stats(ag_batcher *e, ag_batcher_stats *stats)
{
    pthread_mutex_lock(&e->lock);
    *stats = e->stats;
    stats->n_waiting = e->n_waiting;
    pthread_mutex_unlock(&e->lock);
}
