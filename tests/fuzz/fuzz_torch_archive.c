/* Torch archives: the ZIP around (its CRCs keep a fuzzer from the pickle inside, which fuzz_torch_pickle.c takes alone). What was accepted is
 * walked: every byte that a tensor reaches is read. */
#include "fuzz/torch_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static volatile unsigned sink;
    ag_err err;
    ag_torch_archive a;
    int left = 100000;
    if (ag_torch_parse(&a, data, size, "fuzz", AG_TORCH_NUMPY, &err) == AG_OK) {
        sink += torch_walk(a.root, 1, &left);
        ag_torch_close(&a);
    }
    return 0;
}
