/* Answers for many at once over one model: continuous batching in one thread, which is the only one that computes.
 *
 *     ag_batcher *e;
 *     AG_TRY(ag_batcher_create(&e, &(ag_batcher_options){.model = m, .backend = &be, .context = 4096, .n_slots = 8, …}, err));
 *     job->request = (ag_batcher_request){.prompt = ids, .n_prompt = n, .adapter = -1, .on_token = …, .on_end = …};
 *     AG_TRY(ag_batcher_submit(e, &job, 1, err));      // from any thread; on_end is called once for what was taken
 *     ag_batcher_stop(e);                          // what is running ends, what waits is sent away
 *     ag_batcher_free(&e);
 *
 * Every step computes a piece of the prompts that wait (at most AG_PREFILL_ROWS tokens) and one token of every answer that runs.
 * A greedy answer is that of ag_generate to the bit, whatever else is in the batch: see ag_decoder_infer for what that takes (few
 * rows and many rows are never mixed), and prefix_cache.h for what of an earlier prompt may be used again.
 *
 * Ids and numbers only: texts, templates, stop words, JSON are the caller's. */
#ifndef AG_BATCHER_H
#define AG_BATCHER_H

#include "model/decoder.h"
#include "model/sampling.h"

#include <stdatomic.h>

typedef struct {
    const ag_model *model;
    const ag_backend *backend;
    ag_compute compute;
    const ag_layer_lora *const *adapters; /* [n_adapters] of [L]; borrowed */
    int64_t n_adapters, max_rank;
    int64_t context;                      /* tokens of a prompt and its answer */
    int64_t n_slots;                      /* answers at once */
    int64_t n_kept;                       /* finished conversations whose keys and values stay for the next turn, besides */
    int64_t max_waiting;                  /* requests that wait for a slot */
} ag_batcher_options;
enum { AG_BATCHER_MAX_SLOTS = 128, AG_BATCHER_MAX_TOP = 20 };

typedef struct {
    int32_t id;
    float logprob;
} ag_batcher_top;
typedef struct {
    int32_t id;
    int64_t index;            /* 0, 1, … of the answer */
    float logprob;            /* natural, of the model's own distribution: before temperature, penalties, constraint */
    const ag_batcher_top *top; /* the likeliest, best first */
    int n_top;
} ag_batcher_token;

typedef enum { AG_END_STOP, AG_END_LENGTH, AG_END_CALLER, AG_END_CANCELLED, AG_END_STOPPING, AG_END_FAILED } ag_batcher_end;
typedef struct {
    ag_batcher_end end;          /* an end id · a limit · on_token said so · ag_batcher_cancel · ag_batcher_stop · failed: text */
    int64_t n_new, n_reused;    /* ids of the answer; ids of the prompt whose keys and values were there already */
    const char *text;
} ag_batcher_result;

typedef struct {
    const int32_t *prompt;      /* read until on_end has returned */
    int64_t n_prompt;
    int adapter;                /* -1: the base */
    int64_t max_new_tokens;
    ag_sampling sampling;
    bool ignore_eos;
    int n_top;                  /* alternatives with each token, at most AG_BATCHER_MAX_TOP; -1: no log-probabilities at all */
    /* All on the engine's thread; none may block. on_logits may change the logits [V] of the next id (NULL: nothing to change);
     * on_token gets each id but the one that ends the answer, and ends it by returning false. */
    void (*on_logits)(void *user, float *logits);
    bool (*on_token)(void *user, const ag_batcher_token *token);
    void (*on_end)(void *user, const ag_batcher_result *result);
    void *user;
} ag_batcher_request;

/* Belongs to the caller, who keeps it until on_end was called. */
typedef struct ag_batcher_job {
    ag_batcher_request request;
    struct ag_batcher_job *next; /* the engine's */
    atomic_bool cancelled;
} ag_batcher_job;

typedef struct ag_batcher ag_batcher;
/* Takes the memory and starts the thread. AG_E_MEMORY where the cache of keys and values does not fit. */
AG_MUST_USE ag_status ag_batcher_create(ag_batcher **out, const ag_batcher_options *options, ag_err *err);
size_t ag_batcher_bytes(const ag_batcher_options *options); /* what that takes: activations and the cache */
void ag_batcher_stop(ag_batcher *engine);                   /* returns when the thread has ended; ag_batcher_free does it, too */
void ag_batcher_free(ag_batcher **engine);

/* All of the n jobs or none. AG_E_DATA where a prompt is empty, has an id that the model lacks, or does not fit the context together
 * with max_new_tokens (with the numbers); AG_E_BUSY where the queue is full or the engine is stopping. */
AG_MUST_USE ag_status ag_batcher_submit(ag_batcher *engine, ag_batcher_job *const *jobs, int64_t n, ag_err *err);
/* The job ends soon, with AG_END_CANCELLED unless it was over before. Not after on_end. */
void ag_batcher_cancel(ag_batcher *engine, ag_batcher_job *job);

typedef struct {
    int64_t n_running, n_waiting;
    uint64_t prompt_tokens, reused_tokens, new_tokens; /* reused: of the prompt tokens, those not computed */
    uint64_t prefix_queries, prefix_hits;              /* prompts, and those that found a prefix */
    uint64_t steps, step_tokens;                       /* decoding: calls and the tokens in them */
    uint64_t prefill_ns, decode_ns;
    uint64_t ended[AG_END_FAILED + 1];
    size_t kv_tokens, kv_capacity;                     /* tokens that the cache can hand on, and in all */
} ag_batcher_stats;
void ag_batcher_read_stats(ag_batcher *engine, ag_batcher_stats *stats);

#endif
