/* A model, or a model with an adapter, against the logits and gradients that another program wrote.
 *
 *     conform_model MODEL VECTORS.safetensors [ADAPTER ADAPTER_VECTORS.safetensors]
 *
 * VECTORS has ids_i, labels_i and logits_i (tests/support/model_golden.h). Prints the largest differences in one line, as
 * "decoded prefilled loss gradient largest_logit"; fails with a sentence where the model or the adapter is refused. */
#include "adapter/peft_io.h"
#include "support/model_golden.h"
#include "support/op_check.h"

#include <stdio.h>

static int refuse(const ag_err *err)
{
    printf("refused: %s\n", err->text);
    return 2;
}

int main(int argc, char **argv)
{
    ag_err err;
    ag_model *m;
    ag_peft *adapter = NULL;
    if (argc != 3 && argc != 5) {
        fprintf(stderr, "usage: %s MODEL VECTORS.safetensors [ADAPTER ADAPTER_VECTORS.safetensors]\n", argv[0]);
        return 1;
    }
    if (ag_model_open(&m, argv[1], NULL, &err)) return refuse(&err);
    if (argc == 5 && ag_peft_open_on(&adapter, argv[3], m, NULL, &err)) return refuse(&err);
    golden rows = golden_open_path(argv[2]), want = golden_open_path(argv[argc - 1]);
    const model_difference d = model_compare(m, adapter ? &adapter->adapter : NULL, &rows, &want, ag_cpu_best_level());
    printf("%.3g %.3g %.3g %.3g %.3g\n", d.decoded, d.prefilled, d.loss, d.gradient, d.largest);
    golden_close(&rows);
    golden_close(&want);
    ag_peft_close(&adapter);
    ag_model_close(&m);
    return 0;
}
