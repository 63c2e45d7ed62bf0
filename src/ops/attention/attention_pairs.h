/* Attention with products of bf16 pairs (AG_COMPUTE_BF16): one algorithm for every unit that multiplies pairs and sums in f32.
 * AVX512-BF16's VDPBF16PS is one; AMX, in attention_amx.c, is the other. */
#ifndef AG_ATTENTION_PAIRS_H
#define AG_ATTENTION_PAIRS_H

#include "ops/attention/attention_slots.h"

enum { AG_PAIRS_TILE = 32 /* rows and columns of a product, and bf16 in a step of its sum */ };

/* c[32][32] = (or +=) Σ over n_steps of a[32][32 bf16] · b[16 pairs of rows][32][2 bf16].
 * Pitches and steps count floats in c and bf16 in a and b; a step is the way to the next 32 of the sum. */
typedef void ag_attention_product_fn(float *c, int64_t c_pitch, const uint16_t *a, int64_t a_pitch, int64_t a_step,
                                     const uint16_t *b, int64_t b_pitch, int64_t b_step, int64_t n_steps, bool add);

typedef struct {
    void (*begin)(void); /* the thread's state for products, at the start of a kernel */
    void (*end)(void);
    ag_attention_product_fn *product;
} ag_attention_pairs_unit;

void ag_attention_pairs_fwd(const ag_attention_pairs_unit *unit, const ag_attention_fwd_args *args, const ag_attention_unit *u,
                            void *scratch);
void ag_attention_pairs_bwd(const ag_attention_pairs_unit *unit, const ag_attention_bwd_args *args, const ag_attention_unit *u,
                            float *dk, float *dv, int64_t pitch, void *scratch);

#endif
