/* Encoders of the GGUF block types: from f32 weights to blocks whose decoded values are near them.
 *
 * What is minimised over a block is Σ w·(x − decoded)² with w = rms + |x| (rms of the weights that share a scale; large weights count
 * more), by the encoder's own decoder: scales as they are stored, in f16 or as small integers times an f16. For given codes the best
 * scale (and offset) solves linear equations; for given scales the best codes are the nearest ones. The search starts from a fan of
 * scales around the one that spans the block, goes on between those two steps until nothing gets better, then chooses the integers of
 * sub-blocks among neighbours and fits the f16 factors once more. Last, the factors grow by the little that least squares take off a
 * block (weight_encode_body.h: whole_share). q8_0 alone is ggml's own rule to the bit.
 *
 *     type  block  codes      value
 *     q4_0    32   -8..7      d·q
 *     q5_0    32   -16..15    d·q
 *     q5_1    32   0..31      d·q + m
 *     q8_0    32   -128..127  d·q
 *     q4_k   256   0..15      d·scale·q − dmin·min   a 6-bit scale and min for 32 weights
 *     q5_k   256   0..31      the same
 *     q6_k   256   -32..31    d·scale·q              an 8-bit scale for 16 weights
 *
 * One source serves all vector levels and the plain one; its vectors have 16 lanes everywhere and nothing is contracted, so the bytes
 * are the same on all. Input must be finite, of at most AG_LARGEST_ENCODED in magnitude. */
#ifndef AG_WEIGHT_ENCODE_H
#define AG_WEIGHT_ENCODE_H

#include "ops/cpu_level.h"
#include "ops/weight/weight.h"

static const float AG_LARGEST_ENCODED = 65504; /* f16's largest number: no scale can then be beyond f16 */

/* One block of the type's weights from x into its bytes. */
typedef void ag_weight_encode_fn(uint8_t *block, const float *x);
/* The encoder of the best level there is, or of a given one (AG_CPU_REF: plain C); NULL where the type has none here (f32, f16, bf16,
 * q8_0, and what is only read). */
ag_weight_encode_fn *ag_weight_encoder(ag_weight_type type);
ag_weight_encode_fn *ag_weight_encoder_of(ag_weight_type type, ag_cpu_level level);

ag_weight_encode_fn ag_q4_0_encode_ref, ag_q5_0_encode_ref, ag_q5_1_encode_ref, ag_q4_k_encode_ref, ag_q5_k_encode_ref, ag_q6_k_encode_ref;
ag_weight_encode_fn ag_q4_0_encode_avx2, ag_q5_0_encode_avx2, ag_q5_1_encode_avx2, ag_q4_k_encode_avx2, ag_q5_k_encode_avx2, ag_q6_k_encode_avx2;
ag_weight_encode_fn ag_q4_0_encode_avx512, ag_q5_0_encode_avx512, ag_q5_1_encode_avx512, ag_q4_k_encode_avx512, ag_q5_k_encode_avx512,
    ag_q6_k_encode_avx512;
ag_weight_encode_fn ag_q4_0_encode_neon, ag_q5_0_encode_neon, ag_q5_1_encode_neon, ag_q4_k_encode_neon, ag_q5_k_encode_neon, ag_q6_k_encode_neon;

#endif
