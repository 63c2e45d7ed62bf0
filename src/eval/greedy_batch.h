/* Many prompts answered greedily at once. Each answer is to the token what ag_generate gives for its prompt alone, whatever the
 * others are and however many run side by side: at most AG_LINEAR_FEW answers are decoded in one call, and prompts are computed
 * in the same chunks (see ag_decoder_infer, "Bits"). A slot whose answer has ended takes the next prompt at once. */
#ifndef AG_GREEDY_BATCH_H
#define AG_GREEDY_BATCH_H

#include "model/generate.h"

#include <signal.h>
#include <stddef.h>

typedef struct {
    const int32_t *ids;
    int64_t n; /* at least 1 */
} ag_prompt;

typedef struct {
    ag_decoder_options decoder; /* model, backend, adapter and compute; sizes are set here */
    const ag_prompt *prompt;
    size_t n;
    int64_t max_new_tokens;
    int batch; /* answers side by side, 1 … AG_LINEAR_FEW */
    /* Called with each finished answer, in the order in which they end; a failure ends the whole. */
    ag_status (*on_answer)(void *user, size_t i, const int32_t *ids, int64_t n_ids, ag_finish finish, ag_err *err);
    void *user;
    const volatile sig_atomic_t *stop; /* a signal's number: AG_E_INTERRUPTED or AG_E_TERMINATED. NULL: none */
} ag_greedy_batch;

AG_MUST_USE ag_status ag_greedy_batch_run(const ag_greedy_batch *b, ag_err *err);

#endif
