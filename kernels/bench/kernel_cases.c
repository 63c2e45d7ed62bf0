#include "kernel_cases.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

const kernel_model KERNEL_MODELS[N_KERNEL_MODELS] = {
    {"minicpm5-1b", 1536, 24, 16, 2, 128, 4608, 130560},
    {"granite-4.1-3b", 2560, 40, 40, 8, 64, 8192, 100352},
};

const char *kernel_op_name(kernel_op op)
{
    static const char *const names[] = {
#define X(op) #op,
        BKL_OPS(X)
#undef X
    };
    return names[op];
}

/* ---- making a case --------------------------------------------------------------------------------------------------------
 */
static kernel_case *begin(kernel_case *cases, int *n, kernel_op op, int64_t per_step)
{
    assert(*n < MAX_CASES);
    kernel_case *c = &cases[(*n)++];
    memset(c, 0, sizeof *c);
    c->op = op, c->per_step = (int)per_step, c->filled_with_T = -1;
    return c;
}

/* The pointer at `field` needs bytes; counted as moved `times` times. */
static void need(kernel_case *c, const void *field, double bytes, int times)
{
    assert(c->n_buffers < MAX_BUFFERS);
    c->buffer[c->n_buffers++] = (kernel_buffer){(size_t)((const char *)field - (const char *)&c->args), (size_t)bytes};
    c->bytes += times * bytes;
}

enum { F32 = 4, BF16 = 2 };

static void need_nf4(kernel_case *c, bkl_nf4_weight *w, int64_t N, int64_t K)
{
    w->N = N, w->K = K;
    need(c, &w->packed, (double)(N * K) / 2, 1);
    need(c, &w->absmax_q, (double)(N * K) / 64, 1);
    need(c, &w->nested_absmax, (double)((N * K / 64 + 255) / 256) * F32, 1);
    need(c, &w->map, 256 * F32, 1);
}

typedef struct {
    kernel_case *cases;
    int n;
    const kernel_model *m;
    int64_t T, R;
} maker;

static void rmsnorm(maker *k)
{
    const int64_t T = k->T, C = k->m->C;
    kernel_case *c =
        begin(k->cases, &k->n, OP_rmsnorm_fwd, 4 * k->m->L + 1); /* two a layer, forward and recomputed; the last */
    bkl_rmsnorm_fwd_args *f = &c->args.rmsnorm_fwd;
    f->T = T, f->C = C, f->eps = 1e-5f;
    need(c, &f->y, (double)(T * C * BF16), 1), need(c, &f->sum, (double)(T * C * BF16), 1),
        need(c, &f->r, (double)(T * F32), 1);
    need(c, &f->x, (double)(T * C * BF16), 1), need(c, &f->residual, (double)(T * C * BF16), 1),
        need(c, &f->w, (double)(C * F32), 1);
    snprintf(c->shape, sizeof c->shape, "T %lld, C %lld, with residual", (long long)T, (long long)C);
    c = begin(k->cases, &k->n, OP_rmsnorm_bwd, 2 * k->m->L + 1);
    bkl_rmsnorm_bwd_args *b = &c->args.rmsnorm_bwd;
    b->T = T, b->C = C;
    need(c, &b->dx, (double)(T * C * BF16), 1), need(c, &b->dresidual, (double)(T * C * BF16), 1),
        need(c, &b->dy, (double)(T * C * BF16), 1);
    need(c, &b->x, (double)(T * C * BF16), 1), need(c, &b->w, (double)(C * F32), 1), need(c, &b->r, (double)(T * F32), 1);
    snprintf(c->shape, sizeof c->shape, "T %lld, C %lld, with residual", (long long)T, (long long)C);
}

static void rope(maker *k, int64_t heads)
{
    kernel_case *c = begin(k->cases, &k->n, OP_rope, 3 * k->m->L); /* forward, recomputed, backward */
    bkl_rope_args *a = &c->args.rope;
    a->T = k->T, a->H = heads, a->D = k->m->D, a->pitch = heads * a->D;
    need(c, &a->x, (double)(k->T * a->pitch * BF16), 2), need(c, &a->positions, (double)(k->T * F32), 1);
    need(c, &a->cos, (double)(k->T * a->D / 2 * F32), 1), need(c, &a->sin, (double)(k->T * a->D / 2 * F32), 1);
    snprintf(c->shape, sizeof c->shape, "T %lld, %lld heads of %lld", (long long)k->T, (long long)heads, (long long)a->D);
}

static void swiglu(maker *k)
{
    const int64_t n = k->T * k->m->F;
    kernel_case *c = begin(k->cases, &k->n, OP_swiglu_fwd, 2 * k->m->L);
    bkl_swiglu_fwd_args *f = &c->args.swiglu_fwd;
    f->n = n;
    need(c, &f->y, (double)(n * BF16), 1), need(c, &f->gate, (double)(n * BF16), 1), need(c, &f->up, (double)(n * BF16), 1);
    snprintf(c->shape, sizeof c->shape, "T %lld, F %lld", (long long)k->T, (long long)k->m->F);
    c = begin(k->cases, &k->n, OP_swiglu_bwd, k->m->L);
    bkl_swiglu_bwd_args *b = &c->args.swiglu_bwd;
    b->n = n;
    need(c, &b->dgate, (double)(n * BF16), 1), need(c, &b->dup, (double)(n * BF16), 1),
        need(c, &b->gate, (double)(n * BF16), 1);
    need(c, &b->up, (double)(n * BF16), 1), need(c, &b->dy, (double)(n * BF16), 1);
    snprintf(c->shape, sizeof c->shape, "T %lld, F %lld", (long long)k->T, (long long)k->m->F);
}

static void gemm(maker *k)
{
    const int64_t M = 256, N = k->m->V, K = k->m->C;
    kernel_case *c = begin(k->cases, &k->n, OP_gemm, 0); /* head_ce counts it */
    bkl_gemm_args *a = &c->args.gemm;
    a->M = M, a->N = N, a->K = K, a->y_pitch = N, a->a_pitch = a->b_pitch = K, a->scale = 1, a->y_is_f32 = true;
    need(c, &a->y, (double)(M * N * F32), 1), need(c, &a->a, (double)(M * K * BF16), 1),
        need(c, &a->b, (double)(N * K) * BF16, 1);
    c->flops = 2.0 * (double)M * (double)N * (double)K, c->tensor = true;
    snprintf(c->shape, sizeof c->shape, "logits of %lld rows, N %lld, K %lld", (long long)M, (long long)N, (long long)K);
}

/* A projection with its adapter: forward, and recomputed unless nothing after it needs it. */
static void nf4_fwd(maker *k, const char *which, int64_t N, int64_t K, int64_t per_layer)
{
    kernel_case *c = begin(k->cases, &k->n, OP_nf4_fwd, per_layer * k->m->L);
    bkl_nf4_fwd_args *a = &c->args.nf4_fwd;
    a->T = k->T, a->R = k->R, a->y_pitch = N, a->x_pitch = K, a->scale = 1;
    need(c, &a->y, (double)(k->T * N * BF16), 1), need(c, &a->x, (double)(k->T * K * BF16), 1), need_nf4(c, &a->w, N, K);
    need(c, &a->lora_h, (double)(k->T * k->R * BF16), 1), need(c, &a->lora_b, (double)(N * k->R * BF16), 1);
    c->flops = 2.0 * (double)k->T * (double)N * (double)(K + k->R), c->tensor = true;
    snprintf(c->shape, sizeof c->shape, "%s: T %lld, N %lld, K %lld, R %lld", which, (long long)k->T, (long long)N,
             (long long)K, (long long)k->R);
}

static void nf4_bwd(maker *k, const char *which, int n, const int64_t N[], int64_t K)
{
    kernel_case *c = begin(k->cases, &k->n, OP_nf4_bwd, k->m->L);
    bkl_nf4_bwd_args *a = &c->args.nf4_bwd;
    a->n = n, a->T = k->T, a->R = k->R, a->dx_pitch = K, a->scale = 1;
    need(c, &a->dx, (double)(k->T * K * BF16), 1);
    c->tensor = true;
    for (int i = 0; i < n; i++) {
        need(c, &a->dy[i], (double)(k->T * N[i] * BF16), 1), need_nf4(c, &a->w[i], N[i], K);
        need(c, &a->lora_dh[i], (double)(k->T * k->R * BF16), 1), need(c, &a->lora_a[i], (double)(k->R * K * BF16), 1);
        a->dy_pitch[i] = N[i];
        c->flops += 2.0 * (double)k->T * (double)K * (double)(N[i] + k->R);
    }
    snprintf(c->shape, sizeof c->shape, "%s: T %lld, K %lld, R %lld", which, (long long)k->T, (long long)K, (long long)k->R);
}

static void attention(maker *k)
{
    const int64_t T = k->T, H = k->m->H, G = k->m->G, D = k->m->D;
    const double q = (double)(T * H * D * BF16), kv = (double)(T * G * D * BF16),
                 pair = (double)T * (double)T / 2 * (double)(H * D) * 2; /* one product, the causal half */
    kernel_case *c = begin(k->cases, &k->n, OP_attention_fwd, 2 * k->m->L);
    bkl_attention_fwd_args *f = &c->args.attention_fwd;
    f->T = f->S = T, f->H = H, f->G = G, f->D = D, f->q_pitch = f->o_pitch = H * D, f->kv_pitch = G * D, f->scale = 0.1f;
    need(c, &f->o, q, 1), need(c, &f->lse, (double)(T * H * F32), 1), need(c, &f->q, q, 1), need(c, &f->k, kv, 1),
        need(c, &f->v, kv, 1);
    c->flops = 2 * pair, c->tensor = true;
    snprintf(c->shape, sizeof c->shape, "T %lld, H %lld, G %lld, D %lld", (long long)T, (long long)H, (long long)G,
             (long long)D);
    c = begin(k->cases, &k->n, OP_attention_bwd, k->m->L);
    bkl_attention_bwd_args *b = &c->args.attention_bwd;
    b->T = b->S = T, b->H = H, b->G = G, b->D = D, b->q_pitch = b->o_pitch = b->dq_pitch = H * D,
    b->kv_pitch = b->dkv_pitch = G * D, b->scale = 0.1f;
    need(c, &b->dq, q, 1), need(c, &b->dk, kv, 1), need(c, &b->dv, kv, 1), need(c, &b->d_o, q, 1), need(c, &b->o, q, 1),
        need(c, &b->q, q, 1);
    need(c, &b->k, kv, 1), need(c, &b->v, kv, 1), need(c, &b->lse, (double)(T * H * F32), 1);
    c->flops = 7 * pair, c->tensor = true; /* scores and their gradients twice */
    snprintf(c->shape, sizeof c->shape, "T %lld, H %lld, G %lld, D %lld", (long long)T, (long long)H, (long long)G,
             (long long)D);
}

static void lora_down(maker *k, const char *which, int n, const int64_t K[], bool backward, int64_t per_layer)
{
    kernel_case *c = begin(k->cases, &k->n, OP_lora_down, per_layer * k->m->L);
    bkl_lora_down_args *a = &c->args.lora_down;
    a->n = n, a->T = k->T, a->R = k->R;
    c->tensor = true;
    for (int i = 0; i < n; i++) {
        bkl_lora_down_item *item = &a->item[i];
        item->K = item->left_pitch = K[i], item->scale = 1, item->right_is_kn = backward;
        need(c, &item->out, (double)(k->T * k->R * BF16), 1), need(c, &item->left, (double)(k->T * K[i] * BF16), 1);
        need(c, &item->right, (double)(k->R * K[i] * BF16), 1);
        c->flops += 2.0 * (double)k->T * (double)K[i] * (double)k->R;
    }
    snprintf(c->shape, sizeof c->shape, "%s%s: T %lld, R %lld", which, backward ? ", backward" : "", (long long)k->T,
             (long long)k->R);
}

static void lora_grad(maker *k, const char *which, int n, const int64_t W[])
{
    kernel_case *c = begin(k->cases, &k->n, OP_lora_grad, k->m->L);
    bkl_lora_grad_args *a = &c->args.lora_grad;
    a->n = n, a->T = k->T, a->R = k->R, a->accumulate = true;
    c->tensor = true;
    for (int i = 0; i < n; i++) {
        bkl_lora_grad_item *item = &a->item[i];
        item->W = item->wide_pitch = W[i], item->transposed = i % 2;
        need(c, &item->out, (double)(k->R * W[i] * F32), 2), need(c, &item->left, (double)(k->T * k->R * BF16), 1);
        need(c, &item->wide, (double)(k->T * W[i] * BF16), 1);
        c->flops += 2.0 * (double)k->T * (double)W[i] * (double)k->R;
    }
    snprintf(c->shape, sizeof c->shape, "%s: T %lld, R %lld", which, (long long)k->T, (long long)k->R);
}

static void head(maker *k)
{
    const int64_t T = k->T, C = k->m->C, V = k->m->V;
    kernel_case *c = begin(k->cases, &k->n, OP_embed, 1);
    bkl_embed_args *e = &c->args.embed;
    e->T = T, e->C = C, e->scale = 1;
    need(c, &e->x, (double)(T * C * BF16), 2), need(c, &e->ids, (double)(T * F32), 1),
        need(c, &e->w, (double)(V * C) * BF16, 0);
    snprintf(c->shape, sizeof c->shape, "T %lld, C %lld", (long long)T, (long long)C);
    c = begin(k->cases, &k->n, OP_head_ce, 1);
    bkl_head_ce_args *a = &c->args.head_ce;
    a->M = T, a->C = C, a->V = V, a->logit_scale = 1, a->dloss = 1.0f / (float)T;
    need(c, &a->nll, (double)(T * F32), 1), need(c, &a->dx, (double)(T * C * BF16), 1),
        need(c, &a->x, (double)(T * C * BF16), 1);
    need(c, &a->targets, (double)(T * F32), 1), need(c, &a->w, (double)(V * C) * BF16, 2 * (int)((T + 255) / 256));
    c->bytes +=
        (double)T * (double)V * (3 * F32 + 2 * BF16); /* logits written and read twice, their gradient written and read */
    c->flops = 4.0 * (double)T * (double)V * (double)C, c->tensor = true;
    snprintf(c->shape, sizeof c->shape, "M %lld, C %lld, V %lld, with dx", (long long)T, (long long)C, (long long)V);
}

static void optimizer(maker *k)
{
    const kernel_model *m = k->m;
    const int64_t HD = m->H * m->D, GD = m->G * m->D, C = m->C, F = m->F;
    const int64_t n =
        m->L * k->R * ((C + HD) + 2 * (C + GD) + (HD + C) + 2 * (C + F) + (F + C)); /* adapters on all seven projections */
    kernel_case *c = begin(k->cases, &k->n, OP_adamw, 1);
    bkl_adamw_args *a = &c->args.adamw;
    a->n = n;
    need(c, &a->p, (double)(n * F32), 2), need(c, &a->m, (double)(n * F32), 2), need(c, &a->v, (double)(n * F32), 2),
        need(c, &a->p_bf16, (double)(n * BF16), 1);
    need(c, &a->g, (double)(n * F32), 1), need(c, &a->coefficients, sizeof *a->coefficients, 1);
    snprintf(c->shape, sizeof c->shape, "%lld adapter parameters", (long long)n);
    c = begin(k->cases, &k->n, OP_adamw8, 0);
    bkl_adamw8_args *b = &c->args.adamw8;
    b->n = n;
    need(c, &b->p, (double)(n * F32), 2), need(c, &b->m, (double)n, 2), need(c, &b->v, (double)n, 2),
        need(c, &b->p_bf16, (double)(n * BF16), 1);
    need(c, &b->m_scale, (double)((n + 255) / 256 * F32), 2), need(c, &b->v_scale, (double)((n + 255) / 256 * F32), 2);
    need(c, &b->signed_map, 256 * F32, 1), need(c, &b->unsigned_map, 256 * F32, 1), need(c, &b->g, (double)(n * F32), 1);
    need(c, &b->coefficients, sizeof *b->coefficients, 1);
    snprintf(c->shape, sizeof c->shape, "%lld adapter parameters", (long long)n);
    c = begin(k->cases, &k->n, OP_grad_norm, 1);
    bkl_grad_norm_args *g = &c->args.grad_norm;
    g->n = n, g->max_norm = 1;
    need(c, &g->out, 2 * F32, 1), need(c, &g->g, (double)(n * F32), 1);
    snprintf(c->shape, sizeof c->shape, "%lld adapter parameters", (long long)n);
}

static void nf4(maker *k)
{
    const int64_t N = k->m->F, K = k->m->C;
    kernel_case *c = begin(k->cases, &k->n, OP_nf4_quantize, 0);
    bkl_nf4_quantize_args *q = &c->args.nf4_quantize;
    q->n = N * K;
    need(c, &q->packed, (double)(N * K) / 2, 1), need(c, &q->absmax, (double)(N * K / 64 * F32), 1),
        need(c, &q->x, (double)(N * K * BF16), 1);
    snprintf(c->shape, sizeof c->shape, "gate: N %lld, K %lld", (long long)N, (long long)K);
    c = begin(k->cases, &k->n, OP_nf4_dequantize, 0);
    bkl_nf4_dequantize_args *d = &c->args.nf4_dequantize;
    need(c, &d->y, (double)(N * K * BF16), 1), need_nf4(c, &d->w, N, K);
    snprintf(c->shape, sizeof c->shape, "gate: N %lld, K %lld", (long long)N, (long long)K);
}

/* One token for each of eight sequences with T keys; not part of a training step. */
static void decoding(maker *k)
{
    const int64_t B = 8, H = k->m->H, G = k->m->G, D = k->m->D, V = k->m->V;
    kernel_case *c = begin(k->cases, &k->n, OP_attention_decode, 0);
    bkl_attention_decode_args *a = &c->args.attention_decode;
    a->B = B, a->S = k->T, a->H = H, a->G = G, a->D = D, a->kv_pitch = G * D, a->sequence_pitch = k->T * G * D, a->scale = 0.1f;
    need(c, &a->o, (double)(B * H * D * BF16), 1), need(c, &a->q, (double)(B * H * D * BF16), 1),
        need(c, &a->k, (double)(B * k->T * G * D * BF16), 1);
    need(c, &a->v, (double)(B * k->T * G * D * BF16), 1), need(c, &a->lengths, (double)(B * F32), 1);
    c->filled_with_T = c->n_buffers - 1, c->T = (int32_t)k->T;
    snprintf(c->shape, sizeof c->shape, "B %lld, S %lld, H %lld, G %lld, D %lld", (long long)B, (long long)k->T, (long long)H,
             (long long)G, (long long)D);
    const int64_t T = k->T;
    k->T = 1;
    nf4_fwd(k, "gate, decoding", k->m->F, k->m->C, 0);
    k->T = T;
    c = begin(k->cases, &k->n, OP_sample, 0);
    bkl_sample_args *s = &c->args.sample;
    s->n_rows = B, s->V = V, s->temperature = 0.7f, s->top_k = 50, s->top_p = 0.9f, s->repeat_penalty = 1;
    need(c, &s->out, (double)(B * F32), 1), need(c, &s->logits, (double)(B * V * F32), 1),
        need(c, &s->uniform, (double)(B * 8), 1);
    snprintf(c->shape, sizeof c->shape, "%lld rows of %lld, top-k 50, top-p 0.9", (long long)B, (long long)V);
}

static void research(maker *k)
{
    const int64_t M = k->T, N = k->m->F, K = k->m->C;
    for (int fp4 = 0; fp4 < 2; fp4++) {
        kernel_case *c = begin(k->cases, &k->n, OP_low_bit_gemm, 0);
        bkl_low_bit_gemm_args *a = &c->args.low_bit_gemm;
        a->M = M, a->N = N, a->K = K, a->scale = 1, a->is_fp4 = fp4;
        need(c, &a->y, (double)(M * N * BF16), 1), need(c, &a->a, (double)(M * K) / (1 + fp4), 1),
            need(c, &a->b, (double)(N * K) / (1 + fp4), 1);
        if (fp4)
            need(c, &a->a_block_scale, (double)(M * K / 16), 1), need(c, &a->b_block_scale, (double)(N * K / 16), 1);
        else
            need(c, &a->a_row_scale, (double)(M * F32), 1), need(c, &a->b_row_scale, (double)(N * F32), 1);
        c->flops = 2.0 * (double)M * (double)N * (double)K, c->tensor = true;
        snprintf(c->shape, sizeof c->shape, "%s, gate: M %lld, N %lld, K %lld", fp4 ? "NVFP4" : "FP8", (long long)M,
                 (long long)N, (long long)K);
        c = begin(k->cases, &k->n, OP_low_bit_quantize, 0);
        bkl_low_bit_quantize_args *q = &c->args.low_bit_quantize;
        q->M = M, q->K = K, q->scale = 1, q->is_fp4 = fp4;
        need(c, &q->codes, (double)(M * K) / (1 + fp4), 1), need(c, &q->x, (double)(M * K * BF16), 1);
        if (fp4)
            need(c, &q->block_scale, (double)(M * K / 16), 1);
        else
            need(c, &q->row_scale, (double)(M * F32), 1);
        snprintf(c->shape, sizeof c->shape, "%s: M %lld, K %lld", fp4 ? "NVFP4" : "FP8", (long long)M, (long long)K);
    }
}

int kernel_cases_make(kernel_case *cases, const kernel_model *m, int64_t T, int64_t R)
{
    maker k = {cases, 0, m, T, R};
    const int64_t HD = m->H * m->D, GD = m->G * m->D, C = m->C, F = m->F;
    rmsnorm(&k);
    rope(&k, m->H), rope(&k, m->G);
    swiglu(&k);
    gemm(&k);
    nf4_fwd(&k, "q", HD, C, 2), nf4_fwd(&k, "k, v", GD, C, 4), nf4_fwd(&k, "o", C, HD, 2), nf4_fwd(&k, "gate, up", F, C, 4),
        nf4_fwd(&k, "down", C, F, 1);
    nf4_bwd(&k, "q, k, v", 3, (const int64_t[]){HD, GD, GD}, C), nf4_bwd(&k, "o", 1, (const int64_t[]){C}, HD);
    nf4_bwd(&k, "gate, up", 2, (const int64_t[]){F, F}, C), nf4_bwd(&k, "down", 1, (const int64_t[]){C}, F);
    attention(&k);
    lora_down(&k, "q, k, v", 3, (const int64_t[]){C, C, C}, false, 2), lora_down(&k, "o", 1, (const int64_t[]){HD}, false, 2);
    lora_down(&k, "gate, up", 2, (const int64_t[]){C, C}, false, 2), lora_down(&k, "down", 1, (const int64_t[]){F}, false, 2);
    lora_down(&k, "q, k, v", 3, (const int64_t[]){HD, GD, GD}, true, 1), lora_down(&k, "o", 1, (const int64_t[]){C}, true, 1);
    lora_down(&k, "gate, up", 2, (const int64_t[]){F, F}, true, 1), lora_down(&k, "down", 1, (const int64_t[]){C}, true, 1);
    lora_grad(&k, "q, k, v", 6, (const int64_t[]){C, HD, C, GD, C, GD}),
        lora_grad(&k, "o, down", 4, (const int64_t[]){HD, C, F, C});
    lora_grad(&k, "gate, up", 4, (const int64_t[]){C, F, C, F});
    head(&k);
    optimizer(&k);
    nf4(&k);
    decoding(&k);
    research(&k);
    return k.n;
}
