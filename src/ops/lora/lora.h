/* A LoRA pair beside a linear layer (Hu et al. 2021), with PEFT's dropout on its input.
 *
 *     h[T,R] = drop(x)[T,K] · A[R,K]ᵀ          y[T,N] += s · h · B[N,R]ᵀ
 *
 * Backward:   dh = s·dy·B      dB += s·dyᵀ·h      dA += dhᵀ·drop(x)      dx += drop'(dh·A)
 * where drop keeps an element with probability 1-p and scales it by 1/(1-p), and drop' applies the same mask and scale.
 * The mask is not stored: it is a function of (dropout.key, dropout.site, element index t·K + k), so that backward and
 * recomputation see the same one. p = 0 is no dropout. p counts in steps of 1/65536 (an element has 16 random bits); the
 * scale belongs to the rounded p, so drop(x) has the mean x exactly.
 *
 * Sums over T run in an order that depends on T alone. Numbers as in linear.h: AG_COMPUTE_BF16 rounds the operands of each of
 * these products to bf16 and sums in f32; dA and dB are f32 either way. A row's bits in forward are the same alone and in a batch as
 * long as T is on the same side of AG_LORA_FEW. */
#ifndef AG_LORA_H
#define AG_LORA_H

#include "base/status.h"
#include "ops/linear/linear.h"
#include "ops/tensor.h"

enum { AG_LORA_MAX_R = 512, AG_LORA_FEW = 4 /* tokens up to which forward runs without packing, as in decoding */ };

typedef struct {
    float p;          /* 0 <= p < 1 */
    uint64_t key;     /* seed */
    uint64_t site;    /* which pair of which layer in which micro-batch of which step: unique for each mask */
} ag_dropout;

typedef struct {
    ag_tensor y; /* += [T,N] f32; not x */
    ag_tensor h; /* out [T,R] f32, kept for backward */
    ag_tensor x; /* in  [T,K] f32 */
    ag_tensor a; /* in  [R,K] f32 */
    ag_tensor b; /* in  [N,R] f32 */
    float scale; /* alpha/r, or alpha/sqrt(r) */
    ag_dropout dropout;
    ag_compute compute;
} ag_lora_fwd_args;

typedef struct {
    ag_tensor dx; /* += [T,K] f32; data NULL: not wanted; not x, not dy */
    ag_tensor da; /* += [R,K] f32 */
    ag_tensor db; /* += [N,R] f32 */
    ag_tensor dy; /* in [T,N] f32 */
    ag_tensor x;  /* in [T,K] f32, what forward read */
    ag_tensor h;  /* in [T,R] f32, what forward wrote */
    ag_tensor a;  /* in [R,K] f32 */
    ag_tensor b;  /* in [N,R] f32 */
    float scale;
    ag_dropout dropout;
    ag_compute compute;
} ag_lora_bwd_args;

/* Bytes of backend scratch that either call with at most T tokens needs. Grows with R·(K+N), not with T·K. */
size_t ag_lora_scratch_bytes(const struct ag_backend *be, int64_t T, int64_t K, int64_t N, int64_t R);

/* AG_E_SHAPE where tensors do not fit each other, AG_E_CONFIG where p is not in [0,1), AG_E_UNSUPPORTED where R is over
 * AG_LORA_MAX_R. Needs ag_lora_scratch_bytes of be->scratch (an assertion). */
AG_MUST_USE ag_status ag_lora_fwd(const struct ag_backend *be, const ag_lora_fwd_args *args, ag_err *err);
AG_MUST_USE ag_status ag_lora_bwd(const struct ag_backend *be, const ag_lora_bwd_args *args, ag_err *err);

/* Whether dropout keeps element `index`; the definition that the kernels' vector form answers to. */
bool ag_dropout_keeps(const ag_dropout *dropout, uint64_t index);
/* What a kept element is multiplied with: 1/(1-p), p rounded to 1/65536. */
float ag_dropout_scale(const ag_dropout *dropout);

#endif
