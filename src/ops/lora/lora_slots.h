#ifndef AG_LORA_SLOTS_H
#define AG_LORA_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/lora/dropout_hash.h"
#include "ops/lora/lora.h"

/* T is walked in blocks of rows; a group of blocks has partial sums of its own for dA and dB. At most LORA_GROUPS groups, so
 * that partial sums take the same room for any T. Columns (of K and N) go by panels of LORA_PANEL, padded with zeros, and R is
 * padded to a multiple of LORA_RANKS. */
enum { LORA_ROWS = 32, LORA_GROUPS = 16, LORA_PANEL = 64, LORA_RANKS = 16 };

/* A checked call and where its pieces of scratch lie. */
typedef struct {
    const ag_lora_fwd_args *fwd; /* one of these two */
    const ag_lora_bwd_args *bwd;
    int64_t T, K, N, R;
    int64_t Kp, Np, Rp;          /* padded */
    int64_t rows_per_group, n_groups;
    bool bf16;
    dropout_plan dropout;
    float *a, *b;                /* A and B as the level packs them: Kp·Rp and Np·Rp floats */
    float *dh;                   /* [T padded to LORA_ROWS, Rp] (backward) */
    float *da_part, *db_part;    /* [n_groups, Kp/panel, Rp, panel], and so of Np (backward) */
} ag_lora_plan;

/* Packs columns [k0,k1) of A and [n0,n1) of B; multiples of LORA_PANEL, or the end. */
typedef void ag_lora_pack_fn(const ag_lora_plan *plan, int64_t k0, int64_t k1, int64_t n0, int64_t n1);
/* Forward of rows [t0,t1); backward of one group: dh and dx of its rows, its partial sums. */
typedef void ag_lora_rows_fn(const ag_lora_plan *plan, int64_t t0, int64_t t1);
typedef void ag_lora_group_fn(const ag_lora_plan *plan, int64_t group);
/* Forward of at most AG_LORA_FEW rows by one thread, without packing; plan->a has room for the rows' operands. */
typedef void ag_lora_few_fn(const ag_lora_plan *plan);
/* dA's columns [k0,k1) and dB's rows [n0,n1), when all groups are done. */
typedef void ag_lora_sums_fn(const ag_lora_plan *plan, int64_t k0, int64_t k1, int64_t n0, int64_t n1);

typedef struct {
    ag_lora_pack_fn *pack;
    ag_lora_rows_fn *fwd;
    ag_lora_group_fn *bwd;
    ag_lora_sums_fn *sums;
    ag_lora_few_fn *few; /* NULL: as many */
} ag_lora_kernel;

typedef struct {
    const ag_lora_kernel *kernel[2]; /* by ag_compute */
} ag_lora_slots;

void ag_lora_use(ag_lora_slots *slots, ag_cpu_level level);

extern const ag_lora_kernel ag_lora_kernel_ref, ag_lora_kernel_neon, ag_lora_kernel_avx2, ag_lora_kernel_avx512;
extern const ag_lora_kernel ag_lora_kernel_avx512bf16, ag_lora_kernel_amx; /* AG_COMPUTE_BF16 only */
ag_lora_sums_fn ag_lora_sums_neon, ag_lora_sums_avx2, ag_lora_sums_avx512; /* kernels of one processor share them */
ag_lora_few_fn ag_lora_few_neon, ag_lora_few_avx2, ag_lora_few_avx512;

#endif
