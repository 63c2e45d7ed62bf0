/* Whole blocks of 64 in vectors; the code is the number of midpoints below the scaled weight, counted 15 at a time. The short
 * last block goes to the reference. Same bytes as the reference: the same products, and comparisons round nothing. */
#include "ops/simd.h"
#include "ops/weight/weight_blocks.h"

#include "base/num.h"

enum { VECTORS = AG_NF4_BLOCK / VF_LANES };
typedef uint64_t vpair __attribute__((vector_size(4 * VF_LANES)));      /* two neighbouring codes a lane */
typedef uint8_t vbytes __attribute__((vector_size(VF_LANES / 2)));

static inline void quantize_block(uint8_t *packed, float *absmax, const vf x[VECTORS])
{
    const vu magnitude = (vu){0} + 0x7fffffffu;
    vf largest = vf_zero();
    for (int i = 0; i < VECTORS; i++) {
        const vf a = (vf)((vu)x[i] & magnitude);
        largest = vf_max(a, largest); /* in this order a NaN leaves what was there, as in the reference */
    }
    *absmax = vf_max_lane(largest);
    const vf scale = vf_set1(1 / (*absmax > AG_NF4_ABSMAX_MIN ? *absmax : AG_NF4_ABSMAX_MIN));
    for (int i = 0; i < VECTORS; i++) {
        const vf scaled = x[i] * scale;
        vi code = {0};
        for (int m = 0; m < 15; m++) code -= (vi)(scaled > vf_set1(ag_nf4_midpoint[m]));
        const vpair two = (vpair)code;
        const vbytes bytes = __builtin_convertvector(two << 4 | two >> 32, vbytes);
        memcpy(packed + i * (VF_LANES / 2), &bytes, sizeof bytes);
    }
}

void AG_LEVEL(ag_nf4_quantize)(uint8_t *packed, float *absmax, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + AG_NF4_BLOCK <= n; i += AG_NF4_BLOCK) {
        vf v[VECTORS];
        for (int j = 0; j < VECTORS; j++) v[j] = vf_load(x + i + j * VF_LANES);
        quantize_block(packed + i / 2, absmax + i / AG_NF4_BLOCK, v);
    }
    ag_nf4_quantize_ref(packed + i / 2, absmax + i / AG_NF4_BLOCK, x + i, n - i);
}

void AG_LEVEL(ag_nf4_quantize_bf16)(uint8_t *packed, float *absmax, const void *x, int64_t n)
{
    typedef uint16_t vhalf __attribute__((vector_size(2 * VF_LANES)));
    int64_t i = 0;
    for (; i + AG_NF4_BLOCK <= n; i += AG_NF4_BLOCK) {
        vf v[VECTORS];
        for (int j = 0; j < VECTORS; j++) {
            vhalf h;
            memcpy(&h, (const char *)x + 2 * (i + j * VF_LANES), sizeof h);
            v[j] = (vf)(__builtin_convertvector(h, vu) << 16);
        }
        quantize_block(packed + i / 2, absmax + i / AG_NF4_BLOCK, v);
    }
    ag_nf4_quantize_bf16_ref(packed + i / 2, absmax + i / AG_NF4_BLOCK, (const char *)x + 2 * i, n - i);
}
