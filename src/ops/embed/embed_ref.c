/* The decoder's own row, times the scale in f32, as transformers multiplies. */
#include "ops/embed/embed_slots.h"

void ag_embed_fwd_ref(const ag_embed_args *a, int64_t t0, int64_t t1)
{
    const int64_t C = a->w->K;
    const int32_t *ids = a->ids.data;
    for (int64_t t = t0; t < t1; t++) {
        float *x = (float *)a->x.data + t * C;
        ag_weight_row(x, a->w, ids[t], 0, C);
        if (a->scale != 1)
            for (int64_t c = 0; c < C; c++) x[c] *= a->scale;
    }
}
