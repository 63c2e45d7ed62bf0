#include "model/sampling.h"

#include "base/arena.h"
#include "base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    float logit;
    int32_t id;
} candidate;

struct ag_chooser {
    int64_t V;
    candidate *candidates; /* [V] */
    bool *is_seen;         /* [V] */
};

/* A logit so far below the largest has a probability under e^-60: all of a vocabulary's together vanish in the rounding of the sum,
 * so leaving them out changes nothing. */
static const float NEGLIGIBLE = 60;

ag_sampling ag_sampling_greedy(void) { return (ag_sampling){.top_p = 1, .repeat_penalty = 1}; }

ag_status ag_sampling_check(const ag_sampling *s, ag_err *err)
{
    if (!(s->temperature >= 0) || !isfinite(s->temperature))
        return ag_fail(err, AG_E_USAGE, "temperature is %g; give 0 (greedy) or a positive number", (double)s->temperature);
    if (s->top_k < 0) return ag_fail(err, AG_E_USAGE, "top-k is %lld; give 0 (all) or a positive number", (long long)s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1)) return ag_fail(err, AG_E_USAGE, "top-p is %g; give a number above 0, at most 1", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1)) return ag_fail(err, AG_E_USAGE, "min-p is %g; give a number from 0 to 1", (double)s->min_p);
    if (!(s->repeat_penalty > 0) || !isfinite(s->repeat_penalty))
        return ag_fail(err, AG_E_USAGE, "repeat-penalty is %g; give a positive number, 1 for none", (double)s->repeat_penalty);
    return AG_OK;
}

ag_chooser *ag_chooser_create(int64_t V)
{
    ag_chooser *chooser = calloc(1, sizeof *chooser);
    if (!chooser) ag_out_of_memory(sizeof *chooser);
    *chooser = (ag_chooser){V, calloc((size_t)V, sizeof(candidate)), calloc((size_t)V, sizeof(bool))};
    if (!chooser->candidates || !chooser->is_seen) ag_out_of_memory((size_t)V * sizeof(candidate));
    return chooser;
}

void ag_chooser_free(ag_chooser **chooser)
{
    if (!chooser || !*chooser) return;
    free((*chooser)->candidates);
    free((*chooser)->is_seen);
    free(*chooser);
    *chooser = NULL;
}

static void penalize(ag_chooser *chooser, float penalty, float *logits, const int32_t *seen, int64_t n_seen)
{
    if (penalty == 1) return;
    for (int64_t i = 0; i < n_seen; i++) {
        const int32_t id = seen[i];
        if (id < 0 || id >= chooser->V || chooser->is_seen[id]) continue;
        chooser->is_seen[id] = true;
        logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
    for (int64_t i = 0; i < n_seen; i++)
        if (seen[i] >= 0 && seen[i] < chooser->V) chooser->is_seen[seen[i]] = false;
}

static int32_t largest(const float *logits, int64_t V)
{
    int64_t best = 0;
    for (int64_t v = 1; v < V; v++)
        if (logits[v] > logits[best]) best = v;
    return (int32_t)best;
}

/* Candidates in the order of their logits, the largest first, the lowest id of equals: a heap, of which as many are taken out as are
 * looked at. Few are, and sorting a whole vocabulary costs more than computing a token of a small model. */
typedef struct {
    candidate *heap; /* [n]; those taken out lie at its end, backward */
    int64_t n, n_taken;
} order;

static bool comes_first(const candidate *x, const candidate *y) { return x->logit != y->logit ? x->logit > y->logit : x->id < y->id; }

static void sink(candidate *heap, int64_t n, int64_t i)
{
    const candidate c = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && comes_first(&heap[child + 1], &heap[child])) child++;
        if (!comes_first(&heap[child], &c)) break;
        heap[i] = heap[child];
    }
    heap[i] = c;
}

static candidate nth(order *o, int64_t i)
{
    while (o->n_taken <= i) {
        const int64_t last = o->n - 1 - o->n_taken++;
        const candidate first = o->heap[0];
        o->heap[0] = o->heap[last];
        o->heap[last] = first;
        if (last > 0) sink(o->heap, last, 0);
    }
    return o->heap[o->n - 1 - i];
}

/* Relative to the largest. */
static double weight(order *o, int64_t i) { return exp((double)nth(o, i).logit - (double)nth(o, 0).logit); }

/* How many of the candidates stay, and the sum of their weights; probabilities are over those that the step before left. */
static int64_t cut(order *o, const ag_sampling *s, double *sum)
{
    int64_t n = o->n;
    *sum = 0;
    if (s->top_k > 0 && s->top_k < n) {
        n = s->top_k;
        for (int64_t i = 0; i < n; i++) *sum += weight(o, i);
    } else {
        const float largest_logit = nth(o, 0).logit;
        for (int64_t i = 0; i < n; i++) *sum += exp((double)o->heap[i].logit - (double)largest_logit);
    }
    if (s->top_p < 1) {
        double part = 0;
        int64_t i = 0;
        while (i < n && part < (double)s->top_p * *sum) part += weight(o, i++);
        n = i > 0 ? i : 1;
        *sum = i > 0 ? part : 1;
    }
    if (s->min_p > 0) {
        int64_t i = 1;
        double part = 1;
        for (double w; i < n && (w = weight(o, i)) >= (double)s->min_p; i++) part += w;
        n = i;
        *sum = part;
    }
    return n;
}

int32_t ag_sample(ag_chooser *chooser, const ag_sampling *s, float *logits, const int32_t *seen, int64_t n_seen, uint64_t index)
{
    const int64_t V = chooser->V;
    penalize(chooser, s->repeat_penalty, logits, seen, n_seen);
    if (s->temperature == 0) return largest(logits, V);

    order o = {.heap = chooser->candidates};
    const float inverse = 1 / s->temperature;
    const float floor = (logits[largest(logits, V)]) * inverse - NEGLIGIBLE;
    for (int64_t v = 0; v < V; v++)
        if (logits[v] * inverse >= floor) o.heap[o.n++] = (candidate){logits[v] * inverse, (int32_t)v};
    if (o.n == 0) return largest(logits, V); /* no number is left to compare with */
    for (int64_t i = o.n / 2 - 1; i >= 0; i--) sink(o.heap, o.n, i);

    double sum;
    const int64_t n = cut(&o, s, &sum);
    const ag_philox4 random = ag_philox(s->seed, index, 0);
    double left = ((double)random.word[0] + (double)random.word[1] * 0x1p-32) * 0x1p-32 * sum;
    for (int64_t i = 0; i < n; i++) {
        left -= weight(&o, i);
        if (left < 0) return nth(&o, i).id;
    }
    return nth(&o, n - 1).id;
}
