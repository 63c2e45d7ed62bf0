/* NF4's sixteen values, and a weight's scale. */
#ifndef BKL_NF4_CODE_H
#define BKL_NF4_CODE_H

#include "device.h"

BKL_TABLE(float, nf4_codes, [16]) = {-1.0f,
                                     -0.6961928009986877f,
                                     -0.5250730514526367f,
                                     -0.39491748809814453f,
                                     -0.28444138169288635f,
                                     -0.18477343022823334f,
                                     -0.09105003625154495f,
                                     0.0f,
                                     0.07958029955625534f,
                                     0.16093020141124725f,
                                     0.24611230194568634f,
                                     0.33791524171829224f,
                                     0.44070982933044434f,
                                     0.5626170039176941f,
                                     0.7229568362236023f,
                                     1.0f};

BKL_FN float nf4_scale(const bkl_nf4_weight *w, int64_t block)
{
    return w->absmax ? w->absmax[block] : mul_add_unfused(w->map[w->absmax_q[block]], w->nested_absmax[block / 256], w->offset);
}

/* Eight codes of a word, the first in the high half of the lowest byte, as bf16. `code` in shared memory. */
BKL_FN uint4 nf4_dequantize8(uint32_t word, float scale, const float *code)
{
    uint4 v;
    v.x = bf16_pair(code[word >> 4 & 15] * scale, code[word & 15] * scale);
    v.y = bf16_pair(code[word >> 12 & 15] * scale, code[word >> 8 & 15] * scale);
    v.z = bf16_pair(code[word >> 20 & 15] * scale, code[word >> 16 & 15] * scale);
    v.w = bf16_pair(code[word >> 28] * scale, code[word >> 24 & 15] * scale);
    return v;
}

#endif
