/* Choosing the next token from logits.
 *
 * Order, as transformers applies it: repetition penalty, temperature, top-k, top-p, min-p, then one draw. Temperature 0 is greedy:
 * the largest logit after the penalty, the lowest id of equals. The draw depends on (seed, index) alone, so a generation can be
 * repeated, and one request of a batch does not disturb another. */
#ifndef AG_SAMPLING_H
#define AG_SAMPLING_H

#include "base/status.h"

#include <stdint.h>

typedef struct {
    float temperature;    /* 0: greedy */
    int64_t top_k;        /* 0: all */
    float top_p;          /* 1: all; the smallest set whose probability reaches top_p */
    float min_p;          /* 0: all; of the largest probability */
    float repeat_penalty; /* 1: none; logits of ids that were seen are divided (if > 0) or multiplied by it */
    uint64_t seed;
} ag_sampling;

/* temperature 0 and nothing else. */
ag_sampling ag_sampling_greedy(void);
/* AG_E_USAGE naming the value that is out of its range. */
AG_MUST_USE ag_status ag_sampling_check(const ag_sampling *sampling, ag_err *err);

/* Memory for one choice over V ids, reused from choice to choice. */
typedef struct ag_chooser ag_chooser;
ag_chooser *ag_chooser_create(int64_t V);
void ag_chooser_free(ag_chooser **chooser);

/* The next id. logits [V] are changed. `seen` are the ids of prompt and answer so far (for the penalty); index counts the draws of
 * this generation. */
int32_t ag_sample(ag_chooser *chooser, const ag_sampling *sampling, float *logits, const int32_t *seen, int64_t n_seen, uint64_t index);

#endif
