/* bkl: the kernel lab's device library, as a C ABI that is loaded by dlopen, so that one program runs with and without a GPU.
 *
 *     void *library = dlopen("libbkl.so", RTLD_NOW | RTLD_LOCAL);          libbkl_emu.so: the same kernels, emulated on the CPU
 *     bkl_api_get_fn *get = (bkl_api_get_fn *)dlsym(library, "bkl_api_get");
 *     const bkl_api *bkl = get(BKL_ABI_VERSION, sentence, sizeof sentence);    NULL: another version, and which
 *     bkl_context *context;
 *     if (bkl->context_create(&context, 0, sentence, sizeof sentence)) …
 *     bkl_stream *stream;
 *     bkl->stream_create(context, &stream);
 *     float *x;
 *     bkl->alloc(context, (void **)&x, bytes);
 *     bkl->copy_in(stream, x, host, bytes);
 *     bkl_rmsnorm_fwd_args args = {…};
 *     size_t bytes = bkl->rmsnorm_fwd_workspace(&args);                    asked before use; 0 for most
 *     bkl->rmsnorm_fwd(stream, &args, workspace, bytes);
 *     bkl->synchronize(stream);
 *
 * Every pointer in an argument struct points to device memory; the library owns nothing but what alloc gave. Calls are put on
 * their stream and return at once; an error of an earlier kernel comes with a later call or with synchronize. One context is
 * used by one thread at a time.
 *
 * Numbers: activations are bf16, sums f32, adapters and optimizer state f32. Shapes use agoge's alphabet: T tokens, C width,
 * H query heads, G key/value heads, D head dim, F feed-forward width, V vocabulary, R adapter rank, M,N,K of a GEMM. Gradients
 * are d + name; `=` overwrites, `+=` accumulates. Rows of bf16 are a multiple of 8 values and 16-byte aligned where a struct
 * says [·,C]. Results have the same bits in every run: no sum depends on the order in which blocks run. */
#ifndef BKL_H
#define BKL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BKL_ABI_VERSION 1u

typedef uint16_t bkl_bf16;

/*    code                text */
#define BKL_STATUSES(X)                                                   \
    X(BKL_OK,             "ok")                                           \
    X(BKL_E_SHAPE,        "shapes do not fit")                            \
    X(BKL_E_UNSUPPORTED,  "not supported")                                \
    X(BKL_E_WORKSPACE,    "the workspace is too small")                   \
    X(BKL_E_MEMORY,       "not enough device memory")                     \
    X(BKL_E_NO_DEVICE,    "no usable device")                             \
    X(BKL_E_DEVICE,       "the device failed")

typedef enum {
#define X(code, text) code,
    BKL_STATUSES(X)
#undef X
} bkl_status;

typedef struct bkl_context bkl_context;
typedef struct bkl_stream bkl_stream;
typedef struct bkl_graph bkl_graph; /* a captured sequence of calls, replayed by one launch */
typedef struct bkl_event bkl_event;

typedef struct {
    char name[256];
    int major, minor;           /* compute capability */
    int n_sm;
    int clock_khz, memory_clock_khz, memory_bus_bits;
    size_t memory_total, memory_free;
    size_t shared_per_block;    /* bytes, with leave */
    int driver_version, runtime_version;
    bool emulated;
} bkl_device_info;

/* ---- the ops ------------------------------------------------------------------------------------------------------------ */
/* y = s·r·w with s = x + residual and r = (mean s² + eps)^(-1/2) */
typedef struct {
    bkl_bf16 *y;               /* out [T,C] */
    bkl_bf16 *sum;             /* out [T,C] s; may be x or residual; NULL where there is no residual */
    float *r;                  /* out [T], kept for backward */
    const bkl_bf16 *x;         /* in [T,C] */
    const bkl_bf16 *residual;  /* in [T,C] or NULL */
    const float *w;            /* in [C] */
    int64_t T, C;
    float eps;
} bkl_rmsnorm_fwd_args;

/* dx = dresidual + r·g - s·r³·mean(g·s) with g = dy·w */
typedef struct {
    bkl_bf16 *dx;               /* out [T,C]; may be dresidual */
    const bkl_bf16 *dresidual;  /* in [T,C] or NULL (0): what came along the residual stream */
    const bkl_bf16 *dy, *x;     /* in [T,C]; x is what was normalized (s) */
    const float *w, *r;         /* in [C], [T] */
    int64_t T, C;
} bkl_rmsnorm_bwd_args;

/* Rotates halves of each head, in place; backward by the negative angle. */
typedef struct {
    bkl_bf16 *x;               /* in and out: token t, head h at x + t·pitch + h·D */
    const int32_t *positions;  /* in [T], each below the rows of the table */
    const float *cos, *sin;    /* in [positions, D/2] */
    int64_t T, H, D, pitch;    /* D a multiple of 16 */
    bool backward;
} bkl_rope_args;

/* y = silu(gate)·up */
typedef struct {
    bkl_bf16 *y;               /* out [n] */
    const bkl_bf16 *gate, *up; /* in [n], n a multiple of 8 */
    int64_t n;
} bkl_swiglu_fwd_args;

typedef struct {
    bkl_bf16 *dgate, *dup;          /* out [n]; may be gate, up */
    bkl_bf16 *y;                    /* out [n] the forward's, recomputed; NULL: not wanted; may be dy */
    const bkl_bf16 *gate, *up, *dy; /* in [n] */
    int64_t n;
} bkl_swiglu_bwd_args;

/* y (= or +=) scale·a·bᵀ + bias */
typedef struct {
    void *y;                   /* out or += [M,N] bf16, or f32 */
    const bkl_bf16 *a;         /* in [M,K] */
    const bkl_bf16 *b;         /* in [N,K]; or [K,N], then y = a·b */
    const float *bias;         /* in [N] or NULL */
    int64_t M, N, K;           /* N and K multiples of 8 */
    int64_t y_pitch, a_pitch, b_pitch; /* values from row to row */
    float scale;
    bool b_is_kn, y_is_f32, accumulate;
} bkl_gemm_args;

/* A frozen weight [N,K] in NF4 as bitsandbytes packs it: two codes a byte, the high half first; blocks of 64 along K (a
 * multiple of 64). Scales: absmax, or map[absmax_q]·nested_absmax[block/256] + offset. */
typedef struct {
    const uint8_t *packed;
    const float *absmax;        /* [N·K/64], or NULL: */
    const uint8_t *absmax_q;    /* [N·K/64] */
    const float *nested_absmax; /* [⌈N·K/64/256⌉] */
    const float *map;           /* [256] the signed dynamic map */
    float offset;
    int64_t N, K;
} bkl_nf4_weight;

enum { BKL_NF4_MAX = 3 };

/* LoRA's dropout: a mask that is a function of the element's index t·K + k (below 2^33) and of `words`, which are those of
 * agoge's ops/lora/dropout_hash.h for (key, site). An element whose 16 bits are below `drop` is 0, others are multiplied by
 * `scale`. */
typedef struct {
    uint32_t drop;             /* 0: no dropout */
    float scale;
    uint64_t words;
} bkl_dropout;

/* y (= or +=) scale·(x·Wᵀ + h·Bᵀ) + bias */
typedef struct {
    bkl_bf16 *y;               /* out or += [T,N] */
    const bkl_bf16 *x;         /* in [T,K] */
    bkl_nf4_weight w;
    const bkl_bf16 *lora_h;    /* in [T,R] or NULL: no adapter */
    const bkl_bf16 *lora_b;    /* in [N,R] */
    const float *bias;         /* in [N] or NULL */
    int64_t T, R, y_pitch, x_pitch;
    float scale;
    bool accumulate;
} bkl_nf4_fwd_args;

/* dx (= or +=) scale·Σ_i (dy_i·W_i + drop'_i(dh_i·A_i)): the weights that share an input */
typedef struct {
    bkl_bf16 *dx;                            /* out or += [T,K] */
    int n;                                   /* 1..BKL_NF4_MAX */
    const bkl_bf16 *dy[BKL_NF4_MAX];         /* in [T,N_i] */
    bkl_nf4_weight w[BKL_NF4_MAX];           /* [N_i,K] */
    const bkl_bf16 *lora_dh[BKL_NF4_MAX];    /* in [T,R] or NULL */
    const bkl_bf16 *lora_a[BKL_NF4_MAX];     /* in [R,K] */
    bkl_dropout lora_dropout[BKL_NF4_MAX];   /* of the adapters' input, by its index in [T,K] */
    int64_t T, R, dx_pitch, dy_pitch[BKL_NF4_MAX];
    float scale;
    bool accumulate;
} bkl_nf4_bwd_args;

/* o = softmax(scale·q·kᵀ)·v; query t sees the keys [first_key[t], t + S - T], and of those at most the last `window` */
typedef struct {
    bkl_bf16 *o;               /* out [T,H,D]; a query that sees no key gets 0 */
    float *lse;                /* out [T,H] log of the sum of e^score (-inf without keys), or NULL */
    const bkl_bf16 *q, *k, *v; /* in [T,H,D], [S,G,D], [S,G,D]; query head h reads key head h/(H/G) */
    const int32_t *first_key;  /* in [T] where its document begins, -1: it sees nothing (padding); NULL: 0 */
    int64_t T, S, H, G, D;     /* D a multiple of 16, 128 at most */
    int64_t q_pitch, kv_pitch, o_pitch;
    int64_t window;            /* 0: all */
    float scale;
} bkl_attention_fwd_args;

typedef struct {
    bkl_bf16 *dq, *dk, *dv;              /* out; not q, k, v */
    const bkl_bf16 *d_o, *o, *q, *k, *v; /* in, as in forward; d_o has o's pitch */
    const float *lse;                    /* in [T,H], what forward wrote */
    const int32_t *first_key;            /* in [T] as in forward */
    const int32_t *last_query;           /* in [S] the last query of key s's document, any for padding; NULL with first_key */
    int64_t T, S, H, G, D;
    int64_t q_pitch, kv_pitch, o_pitch, dq_pitch, dkv_pitch;
    int64_t window;
    float scale;
} bkl_attention_bwd_args;

/* The thin products of LoRA pairs, up to BKL_LORA_MAX at once: out = scale·drop(left)·right. Forward h' = s·x·Aᵀ, backward dh =
 * s·dy·B. */
enum { BKL_LORA_MAX = 6 };
typedef struct {
    bkl_bf16 *out;         /* out [T,R] */
    const bkl_bf16 *left;  /* in [T,K] */
    const bkl_bf16 *right; /* in [R,K]; or [K,R] (right_is_kn) */
    int64_t K, left_pitch;
    float scale;
    bool right_is_kn;
    bkl_dropout dropout;   /* of left (forward) */
} bkl_lora_down_item;
typedef struct {
    int n;
    bkl_lora_down_item item[BKL_LORA_MAX];
    int64_t T, R; /* R a multiple of 8 */
} bkl_lora_down_args;

/* The gradients of LoRA pairs: dA[R,W] (= or +=) leftᵀ·drop(wide) with left = dh, wide = x; dB[W,R] (transposed) with left =
 * h', wide = dy. */
typedef struct {
    float *out;            /* [R,W], or [W,R] (transposed) */
    const bkl_bf16 *left;  /* in [T,R] */
    const bkl_bf16 *wide;  /* in [T,W] */
    int64_t W, wide_pitch;
    bool transposed;
    bkl_dropout dropout;   /* of wide (dA) */
} bkl_lora_grad_item;
typedef struct {
    int n;
    bkl_lora_grad_item item[BKL_LORA_MAX];
    int64_t T, R;
    bool accumulate;
} bkl_lora_grad_args;

/* x[t] = scale·W[ids[t]] */
typedef struct {
    bkl_bf16 *x;           /* out [T,C] */
    const int32_t *ids;    /* in [T], each in the table (the caller has checked) */
    const bkl_bf16 *w;     /* in [V,C] */
    int64_t T, C;
    float scale;
} bkl_embed_args;

/* Head and cross-entropy of the M rows that have a target. */
typedef struct {
    float *nll;               /* out [M] */
    int32_t *best;            /* out [M] the id with the largest logit, the lowest of equals; NULL: not wanted */
    bkl_bf16 *dx;             /* out [M,C]; NULL: forward only */
    const bkl_bf16 *x;        /* in [M,C] */
    const int32_t *targets;   /* in [M], each in the vocabulary (the caller has checked) */
    const bkl_bf16 *w;        /* in [V,C] */
    int64_t M, C, V;
    float logit_scale, dloss; /* dloss: 1 / number of targets of the optimizer step */
} bkl_head_ce_args;

/* What an AdamW step multiplies with; lies in device memory, so that a graph sees each step's own. */
typedef struct {
    float decay;                            /* 1 - lr·wd */
    float beta2, one_minus_beta1, one_minus_beta2;
    float root_correction2;                 /* sqrt(1-β2^t) */
    float eps;
    float step_size;                        /* lr / (1-β1^t) */
} bkl_adamw_coefficients;

typedef struct {
    float *p, *m, *v;                       /* in and out [n] */
    bkl_bf16 *p_bf16;                       /* out [n] the new p, rounded; NULL: not wanted */
    const float *g;                         /* in [n] */
    const float *grad_scale;                /* in [1], grad_norm's out + 1; NULL: 1 */
    const bkl_adamw_coefficients *coefficients;
    int64_t n;
} bkl_adamw_args;

/* The same with moments of 8 bits, blocks of 256 elements. */
typedef struct {
    float *p;                               /* in and out [n] */
    uint8_t *m, *v;                         /* in and out [n] codes */
    float *m_scale, *v_scale;               /* in and out [⌈n/256⌉]; zeros at first */
    const float *signed_map, *unsigned_map; /* in [256] ascending, of m and of v */
    bkl_bf16 *p_bf16;                       /* out [n] or NULL */
    const float *g, *grad_scale;
    const bkl_adamw_coefficients *coefficients;
    int64_t n;
} bkl_adamw8_args;

typedef struct {
    float *out;            /* out [2]: the norm; what to multiply gradients with so that it is at most max_norm */
    const float *g;        /* in [n] */
    int64_t n;
    float max_norm;        /* 0: no limit */
} bkl_grad_norm_args;

typedef struct {
    uint8_t *packed;       /* out [n/2], 4-byte aligned */
    float *absmax;         /* out [n/64] */
    const bkl_bf16 *x;     /* in [n], n a multiple of 64 */
    int64_t n;
} bkl_nf4_quantize_args;

typedef struct {
    bkl_bf16 *y;           /* out [N,K] */
    bkl_nf4_weight w;
} bkl_nf4_dequantize_args;

/* One new token for each of B sequences, whose cached keys and values (its own included) are [S,G,D] each, sequence_pitch
 * apart. */
typedef struct {
    bkl_bf16 *o;              /* out [B,H,D] */
    const bkl_bf16 *q;        /* in [B,H,D] */
    const bkl_bf16 *k, *v;    /* in: sequence b, key j, head g at b·sequence_pitch + j·kv_pitch + g·D */
    const int32_t *lengths;   /* in [B] keys of each sequence, at most S; 0 gives 0 */
    int64_t B, S, H, G, D;    /* D a multiple of 8, 128 at most */
    int64_t kv_pitch, sequence_pitch;
    int64_t window;           /* 0: all */
    float scale;
} bkl_attention_decode_args;

/* Chooses a token for each row: penalty, temperature, top-k, top-p, min-p, one draw. */
typedef struct {
    int32_t *out;             /* out [n_rows] */
    const float *logits;      /* in [n_rows,V], finite */
    const double *uniform;    /* in [n_rows] the draws, 0 <= u < 1; unused at temperature 0 */
    const int32_t *seen;      /* in [n_rows,n_seen] ids so far, -1 for none */
    int64_t n_rows, V, n_seen;
    float temperature;        /* 0: the largest logit, the lowest id of equals */
    int64_t top_k;            /* 0: all */
    float top_p, min_p;       /* 1: all; 0: all */
    float repeat_penalty;     /* 1: none */
} bkl_sample_args;

/* Research, compute capability 12.0 alone: y = scale·a·bᵀ of FP8 (e4m3, a scale a row) or NVFP4 (e2m1, low half of a byte
 * first; an e4m3 scale for 16 values) operands. */
typedef struct {
    bkl_bf16 *y;                                  /* out [M,N] */
    const uint8_t *a, *b;                         /* in [M,K], [N,K] codes */
    const float *a_row_scale, *b_row_scale;       /* in [M], [N] (FP8) */
    const uint8_t *a_block_scale, *b_block_scale; /* in [M,K/16], [N,K/16] (NVFP4) */
    int64_t M, N, K;                              /* N a multiple of 8, K of 64 (FP8) or 256 (NVFP4) */
    float scale;
    bool is_fp4;
} bkl_low_bit_gemm_args;

typedef struct {
    uint8_t *codes;        /* out [M,K], or [M,K/2] (NVFP4) */
    float *row_scale;      /* out [M] (FP8) */
    uint8_t *block_scale;  /* out [M,K/16] (NVFP4), in units of `scale` */
    const bkl_bf16 *x;     /* in [M,K], K a multiple of 16 */
    int64_t M, K;
    float scale;           /* NVFP4: what block scales are in units of */
    bool is_fp4;
} bkl_low_bit_quantize_args;

/* ---- the list: every op once -------------------------------------------------------------------------------------------- */
#define BKL_OPS(X)  \
    X(rmsnorm_fwd)  \
    X(rmsnorm_bwd)  \
    X(rope)         \
    X(swiglu_fwd)   \
    X(swiglu_bwd)   \
    X(gemm)         \
    X(nf4_fwd)      \
    X(nf4_bwd)      \
    X(attention_fwd) \
    X(attention_bwd) \
    X(lora_down)    \
    X(lora_grad)    \
    X(embed)        \
    X(head_ce)      \
    X(adamw)        \
    X(adamw8)       \
    X(grad_norm)    \
    X(nf4_quantize) \
    X(nf4_dequantize) \
    X(attention_decode) \
    X(sample)       \
    X(low_bit_gemm) \
    X(low_bit_quantize)

/* ---- the table ---------------------------------------------------------------------------------------------------------- */
typedef struct {
    uint32_t abi_version;
    uint32_t bytes; /* of this struct */

    const char *(*status_text)(bkl_status status);
    /* Device `index`. On failure *out is NULL and the sentence says why. */
    bkl_status (*context_create)(bkl_context **out, int index, char *sentence, size_t sentence_bytes);
    void (*context_free)(bkl_context **context);
    /* The sentence of the last failure of a call with this context or its streams; "" before the first. */
    const char *(*error)(const bkl_context *context);
    bkl_status (*device_info)(bkl_context *context, bkl_device_info *out);

    bkl_status (*alloc)(bkl_context *context, void **out, size_t bytes); /* 256-byte aligned; of unknown content */
    bkl_status (*free)(bkl_context *context, void **p);                  /* takes NULL; nulls it */
    bkl_status (*alloc_host)(bkl_context *context, void **out,
                             size_t bytes); /* page-locked, so that copies run in the background */
    bkl_status (*free_host)(bkl_context *context, void **p);

    bkl_status (*stream_create)(bkl_context *context, bkl_stream **out);
    void (*stream_free)(bkl_stream **stream);
    bkl_status (*synchronize)(bkl_stream *stream);
    bkl_status (*copy_in)(bkl_stream *stream, void *device, const void *host, size_t bytes);
    bkl_status (*copy_out)(bkl_stream *stream, void *host, const void *device, size_t bytes);
    bkl_status (*copy)(bkl_stream *stream, void *to, const void *from, size_t bytes); /* on the device */
    bkl_status (*fill)(bkl_stream *stream, void *device, uint8_t byte, size_t bytes);

    bkl_status (*event_create)(bkl_context *context, bkl_event **out);
    void (*event_free)(bkl_event **event);
    bkl_status (*event_record)(bkl_stream *stream, bkl_event *event);
    bkl_status (*event_ms)(bkl_event *from, bkl_event *to, float *ms); /* waits for `to` */

    /* Calls between begin and end are recorded and not run. */
    bkl_status (*capture_begin)(bkl_stream *stream);
    bkl_status (*capture_end)(bkl_stream *stream, bkl_graph **out);
    bkl_status (*graph_launch)(bkl_stream *stream, bkl_graph *graph);
    void (*graph_free)(bkl_graph **graph);

    /* Each op: BKL_E_SHAPE or BKL_E_UNSUPPORTED before anything runs, BKL_E_WORKSPACE where bytes is below the op's need. */
#define X(op)                                                                                                  \
    bkl_status (*op)(bkl_stream *stream, const bkl_##op##_args *args, void *workspace, size_t workspace_bytes); \
    size_t (*op##_workspace)(const bkl_##op##_args *args);
    BKL_OPS(X)
#undef X
} bkl_api;

/* The library's one symbol. */
typedef const bkl_api *bkl_api_get_fn(uint32_t abi_version, char *sentence, size_t sentence_bytes);
bkl_api_get_fn bkl_api_get;

#ifdef __cplusplus
}
#endif
#endif
