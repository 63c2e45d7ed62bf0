/* What bkl_kernel_bench runs: every op over the shapes of the two target models, how often a training step calls it, and what
 * it must compute and move at least. */
#ifndef BKL_KERNEL_CASES_H
#define BKL_KERNEL_CASES_H

#include "bkl.h"

typedef struct {
    const char *name;
    int64_t C, L, H, G, D, F, V;
} kernel_model;

extern const kernel_model KERNEL_MODELS[];
enum { N_KERNEL_MODELS = 2 };

typedef enum {
#define X(op) OP_##op,
    BKL_OPS(X)
#undef X
    N_OPS
} kernel_op;

/* A pointer inside an argument struct that needs `bytes` of device memory. */
typedef struct {
    size_t at, bytes;
} kernel_buffer;

enum { MAX_BUFFERS = 40, MAX_CASES = 64 };

typedef struct {
    kernel_op op;
    char shape[80];
    int per_step;         /* calls in a training step of one sequence with recomputed layers; 0: not part of it */
    double flops, bytes;  /* tensor work executed; bytes read and written at least once */
    bool tensor;          /* flops run on tensor cores */
    union {
#define X(op) bkl_##op##_args op;
        BKL_OPS(X)
#undef X
    } args;
    kernel_buffer buffer[MAX_BUFFERS];
    int n_buffers;
    int filled_with_T;    /* the buffer whose int32 are all T and not 0: lengths; -1: none */
    int32_t T;
} kernel_case;

const char *kernel_op_name(kernel_op op);
/* Fills cases (MAX_CASES of them) for T tokens and LoRA rank R; how many. */
int kernel_cases_make(kernel_case *cases, const kernel_model *m, int64_t T, int64_t R);

#endif
