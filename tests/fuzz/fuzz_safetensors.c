/* Any bytes as a safetensors file: what is taken can be read to the last byte. */
#include "format/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_err err;
    ag_safetensors st;
    if (ag_safetensors_parse(&st, data, size, "fuzz", &err)) return 0;
    unsigned sum = 0;
    for (size_t i = 0; i < st.n_tensors; i++) {
        const ag_st_tensor *t = &st.tensors[i];
        if (ag_safetensors_find(&st, t->name) != t) abort();
        for (size_t j = 0; j < t->bytes; j++) sum += t->data[j];
        ag_arena arena = {0};
        sum += (unsigned char)ag_st_shape_text(&arena, t)[0];
        ag_arena_free(&arena);
    }
    for (size_t i = 0; i < st.n_metadata; i++)
        if (!ag_safetensors_meta(&st, st.metadata[i].key)) abort();
    ag_safetensors_close(&st);
    return sum == 0xffffffff;
}
