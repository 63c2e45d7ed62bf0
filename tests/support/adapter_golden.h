/* An adapter that PEFT made, on its base, against what PEFT computed: vectors.safetensors beside the adapter's files holds ids_i and labels_i
 * (here or beside the base's config.json), logits_i, merged_logits_i, and grad.<tensor name> of the mean loss over all rows.
 *
 * tests/model/test_adapter_kinds.c does so with the small ones in the tree, tests/conformance/conform_adapters.c with any folder. */
#ifndef AG_TEST_ADAPTER_GOLDEN_H
#define AG_TEST_ADAPTER_GOLDEN_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    double logits, merged; /* largest distance; merged: of the model exported as an f32 GGUF; -1 where there is none to compare with */
    double attached_merged; /* merged against attached, both ours */
    double gradient;       /* largest distance over the tensor's largest entry, of the worst tensor; -1: no gradients in the file */
    size_t n_gradients, n_tensors;
    bool unties;           /* a pair beside a tied embedding: PEFT merges it into the head, too, so its merged logits are not compared */
} adapter_distances;

/* scratch: a folder for the exported file; NULL: nothing is merged. */
AG_MUST_USE ag_status adapter_golden_compare(adapter_distances *out, const char *base, const char *adapter, const char *scratch, ag_err *err);

#endif
