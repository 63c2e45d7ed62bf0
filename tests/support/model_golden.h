/* A model, bare or with an adapter, against logits and gradients of another program.
 *
 * A golden holds rows ids_i (I64), labels_i (I64, -100: no target) and logits_i [T,V] (F32), i from 0; an adapter's own golden
 * has logits_i for the same rows and, where gradients were made, grad.<tensor of the adapter>: d(Σ cross-entropy over all rows
 * / targets). */
#ifndef AG_TEST_MODEL_GOLDEN_H
#define AG_TEST_MODEL_GOLDEN_H

#include "adapter/adapter.h"
#include "model/decoder.h"
#include "support/golden.h"

typedef struct {
    double decoded;   /* largest |difference| of logits, token after token through the cache */
    double prefilled; /* of the last token's logits, all tokens at once, and in two parts */
    double loss;      /* of mean cross-entropies, from ag_decoder_score */
    double gradient;  /* of the adapter's gradients, as a part of the tensor's largest; 0 where the golden has none */
    double largest;   /* |logit| of the golden */
} model_difference;

/* `adapter` (or NULL) is bound, and attached where it is not plain; `rows` has ids and labels, `want` the logits (the same
 * golden where there is no adapter). */
model_difference model_compare(const ag_model *m, ag_adapter *adapter, const golden *rows, const golden *want,
                               ag_cpu_level level);

#endif
