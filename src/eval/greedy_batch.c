#include "eval/greedy_batch.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    bool is_used;
    size_t prompt;   /* which */
    int64_t n_done;  /* ids of the prompt that are in the cache */
    int32_t *answer; /* [max_new_tokens] */
    int64_t n_new;
    int32_t next; /* chosen, not in the cache yet */
} slot;

typedef struct {
    const ag_greedy_batch *b;
    ag_decoder *decoder;
    ag_kv_cache *cache;
    slot slots[AG_LINEAR_FEW];
    size_t n_started;
    int64_t rows;  /* of the largest call */
    int32_t *ids;  /* [rows] of one call */
    float *logits; /* [batch, V] */
    ag_chooser *chooser;
} work;

static bool ends(const ag_description *d, int32_t id)
{
    for (int i = 0; i < d->n_eos_ids; i++)
        if (d->eos_ids[i] == id) return true;
    return false;
}

/* The slot's next id from its logits; a slot whose answer has ended is free again. */
static ag_status choose(work *w, int s, float *logits, ag_err *err)
{
    slot *at = &w->slots[s];
    const ag_sampling greedy = ag_sampling_greedy();
    const int32_t id = ag_sample(w->chooser, &greedy, logits, NULL, 0, (uint64_t)at->n_new);
    const bool stops = ends(&w->b->decoder.model->d, id);
    if (!stops) at->answer[at->n_new++] = at->next = id;
    if (!stops && at->n_new < w->b->max_new_tokens) return AG_OK;
    at->is_used = false;
    ag_kv_cache_truncate(w->cache, s, 0);
    return w->b->on_answer(w->b->user, at->prompt, at->answer, at->n_new, stops ? AG_FINISH_STOP : AG_FINISH_LENGTH, err);
}

static int64_t chunk_of(const work *w, const slot *at)
{
    const int64_t left = w->b->prompt[at->prompt].n - at->n_done;
    return left < AG_PREFILL_ROWS ? left : AG_PREFILL_ROWS;
}

/* The next chunks of prompts that are not in the cache yet, as many as fit one call. A chunk of few tokens goes alone, so that
 * its bits are those that it has alone. False where there is none. */
static ag_status prefill_some(work *w, bool *any, ag_err *err)
{
    ag_decoder_run runs[AG_LINEAR_FEW];
    int which[AG_LINEAR_FEW], n = 0;
    int64_t T = 0;
    for (int s = 0; s < w->b->batch; s++) {
        slot *at = &w->slots[s];
        const int64_t chunk = at->is_used ? chunk_of(w, at) : 0;
        if (chunk == 0 || T + chunk > w->rows || (n > 0 && chunk <= AG_LINEAR_FEW)) continue;
        memcpy(w->ids + T, w->b->prompt[at->prompt].ids + at->n_done, (size_t)chunk * sizeof *w->ids);
        runs[n] = (ag_decoder_run){.slot = s, .n_new = chunk};
        which[n++] = s;
        T += chunk;
        if (chunk <= AG_LINEAR_FEW) break;
    }
    *any = n > 0;
    if (n == 0) return AG_OK;
    AG_TRY(ag_decoder_infer(w->decoder, w->cache, runs, n, w->ids, w->logits, err));
    const int64_t V = w->b->decoder.model->d.V;
    for (int i = 0; i < n; i++) {
        slot *at = &w->slots[which[i]];
        at->n_done += runs[i].n_new;
        if (at->n_done == w->b->prompt[at->prompt].n) AG_TRY(choose(w, which[i], w->logits + i * V, err));
    }
    return AG_OK;
}

static void start_new(work *w)
{
    for (int s = 0; s < w->b->batch && w->n_started < w->b->n; s++) {
        slot *at = &w->slots[s];
        if (at->is_used) continue;
        *at = (slot){.is_used = true, .prompt = w->n_started++, .answer = at->answer};
        AG_ASSERT(w->b->prompt[at->prompt].n >= 1);
    }
}

static ag_status decode_all(work *w, ag_err *err)
{
    ag_decoder_run runs[AG_LINEAR_FEW];
    int n = 0;
    for (int s = 0; s < w->b->batch; s++) {
        if (!w->slots[s].is_used) continue;
        w->ids[n] = w->slots[s].next;
        runs[n++] = (ag_decoder_run){.slot = s, .n_new = 1};
    }
    if (n == 0) return AG_OK;
    AG_TRY(ag_decoder_infer(w->decoder, w->cache, runs, n, w->ids, w->logits, err));
    const int64_t V = w->b->decoder.model->d.V;
    for (int i = 0; i < n; i++) AG_TRY(choose(w, (int)runs[i].slot, w->logits + i * V, err));
    return AG_OK;
}

static bool is_busy(const work *w)
{
    bool busy = w->n_started < w->b->n;
    for (int s = 0; s < w->b->batch; s++) busy |= w->slots[s].is_used;
    return busy;
}

static ag_status answer_all(work *w, ag_err *err)
{
    while (is_busy(w)) {
        const int signal = w->b->stop ? *w->b->stop : 0;
        if (signal)
            return ag_fail(err, signal == SIGTERM ? AG_E_TERMINATED : AG_E_INTERRUPTED,
                           "stopped by a signal; the same command goes on where it was");
        bool any;
        start_new(w);
        do AG_TRY(prefill_some(w, &any, err));
        while (any);
        AG_TRY(decode_all(w, err));
    }
    return AG_OK;
}

static ag_status open_work(work *w, ag_err *err)
{
    const ag_greedy_batch *b = w->b;
    int64_t longest = 1;
    for (size_t i = 0; i < b->n; i++)
        if (b->prompt[i].n > longest) longest = b->prompt[i].n;
    const int64_t capacity = longest + b->max_new_tokens;
    ag_decoder_options o = b->decoder;
    w->rows = AG_PREFILL_ROWS;
    o.max_tokens = w->rows;
    o.max_targets = b->batch;
    o.max_positions = o.longest_span = capacity > w->rows ? capacity : w->rows;
    AG_TRY(ag_decoder_create(&w->decoder, &o, err));
    AG_TRY(ag_kv_cache_create(&w->cache, o.model, b->batch, capacity, err));
    w->ids = malloc((size_t)w->rows * sizeof *w->ids);
    w->logits = malloc((size_t)(b->batch * o.model->d.V) * sizeof *w->logits);
    if (!w->ids || !w->logits) ag_out_of_memory((size_t)(b->batch * o.model->d.V) * sizeof *w->logits);
    for (int s = 0; s < b->batch; s++) {
        w->slots[s].answer = malloc((size_t)b->max_new_tokens * sizeof(int32_t));
        if (!w->slots[s].answer) ag_out_of_memory((size_t)b->max_new_tokens * sizeof(int32_t));
    }
    w->chooser = ag_chooser_create(o.model->d.V);
    return AG_OK;
}

ag_status ag_greedy_batch_run(const ag_greedy_batch *b, ag_err *err)
{
    AG_ASSERT(b->batch >= 1 && b->batch <= AG_LINEAR_FEW && b->max_new_tokens >= 1);
    work w = {.b = b};
    ag_status status = b->n ? open_work(&w, err) : AG_OK;
    if (!status) status = answer_all(&w, err);
    for (int s = 0; s < b->batch; s++) free(w.slots[s].answer);
    ag_chooser_free(&w.chooser);
    free(w.logits);
    free(w.ids);
    ag_kv_cache_free(&w.cache);
    ag_decoder_free(&w.decoder);
    return status;
}
