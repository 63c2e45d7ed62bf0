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
 * so leaving them out of the sort changes nothing. */
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

static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* How many of the sorted candidates stay; probabilities are over those that the step before left. */
static int64_t cut(const candidate *c, int64_t n, const ag_sampling *s)
{
    if (s->top_k > 0 && s->top_k < n) n = s->top_k;
    if (s->top_p < 1) {
        double sum = 0, part = 0;
        for (int64_t i = 0; i < n; i++) sum += exp((double)c[i].logit - (double)c[0].logit);
        int64_t i = 0;
        while (i < n && part < (double)s->top_p * sum) part += exp((double)c[i++].logit - (double)c[0].logit);
        n = i > 0 ? i : 1;
    }
    if (s->min_p > 0) {
        int64_t i = 1;
        while (i < n && exp((double)c[i].logit - (double)c[0].logit) >= (double)s->min_p) i++;
        n = i;
    }
    return n;
}

int32_t ag_sample(ag_chooser *chooser, const ag_sampling *s, float *logits, const int32_t *seen, int64_t n_seen, uint64_t index)
{
    const int64_t V = chooser->V;
    penalize(chooser, s->repeat_penalty, logits, seen, n_seen);
    if (s->temperature == 0) return largest(logits, V);

    candidate *c = chooser->candidates;
    const float inverse = 1 / s->temperature;
    const float floor = (logits[largest(logits, V)]) * inverse - NEGLIGIBLE;
    int64_t n = 0;
    for (int64_t v = 0; v < V; v++)
        if (logits[v] * inverse >= floor) c[n++] = (candidate){logits[v] * inverse, (int32_t)v};
    qsort(c, (size_t)n, sizeof *c, by_logit);
    n = cut(c, n, s);

    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)c[i].logit - (double)c[0].logit);
    const ag_philox4 random = ag_philox(s->seed, index, 0);
    double left = ((double)random.word[0] + (double)random.word[1] * 0x1p-32) * 0x1p-32 * sum;
    for (int64_t i = 0; i < n; i++) {
        left -= exp((double)c[i].logit - (double)c[0].logit);
        if (left < 0) return c[i].id;
    }
    return c[n - 1].id;
}
