/* LoRA over pairs of bf16, for AG_COMPUTE_BF16 on AVX512-BF16 and on AMX: what packs and walks is one file, and each of the two
 * brings three products. A pair is two bf16 that a multiplication takes together, the first in the low half of a word. */
#ifndef AG_LORA_PAIRS_H
#define AG_LORA_PAIRS_H

#include "ops/lora/lora_slots.h"

/* Everything is in whole panels (LORA_ROWS × LORA_PANEL), what pads is zero. Rq is R filled up to 32, the depth of a tile. `first`:
 * out = …, else out += …. `ahead`, rows ld apart, is what the next panel will be read from: a product asks the memory for it while
 * it computes; NULL: nothing to ask for. */
typedef struct {
    void (*begin)(void); /* around all products of a call in a thread */
    void (*end)(void);
    /* out[32,Rp] f32 += rows[32,64] · p, pairs along the 64: p[32][Rp] */
    void (*reduce)(float *out, bool first, int64_t Rp, const uint16_t *rows, const uint32_t *p, const float *ahead, int64_t ld);
    /* out[Rp,64] f32 += ct[Rp,32] · pairs, pairs along the 32 rows: pairs[16][64][2] */
    void (*accumulate)(float *out, bool first, int64_t Rp, const uint16_t *ct, const uint16_t *pairs, const float *ahead, int64_t ld);
    /* out[32,64] f32 = c[32,Rq] · p, pairs along the ranks: p[Rq/2][64], of which the first n_pairs are not all zero */
    void (*expand)(float *out, const uint16_t *c, int64_t Rq, int64_t n_pairs, const uint32_t *p);
} lora_products;

ag_lora_pack_fn ag_lora_pairs_pack;
void ag_lora_pairs_forward(const lora_products *products, const ag_lora_plan *plan, int64_t t0, int64_t t1);
void ag_lora_pairs_backward(const lora_products *products, const ag_lora_plan *plan, int64_t group);

#endif
