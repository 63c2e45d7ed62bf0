#include "device/device_pass.h"

#include "ops/lora/dropout_hash.h"

/* ---- buffers ---------------------------------------------------------------------------------------------------------------------- */
static bkl_bf16 *matrix(ag_layout *layout, int64_t rows, int64_t columns) { return ag_layout_place(layout, (size_t)(rows * columns) * sizeof(bkl_bf16)); }
static bkl_bf16 *within(bkl_bf16 *of, int64_t n) { return of ? of + n : NULL; } /* NULL while sizes are counted */
static float *floats(ag_layout *layout, int64_t n) { return ag_layout_place(layout, (size_t)n * sizeof(float)); }

void ag_device_buffers_place(ag_layout *l, ag_device_buffers *b, const ag_description *d, int64_t T, int64_t M, int64_t R)
{
    const int64_t HD = d->H * d->D, GD = d->G * d->D;
    b->kept = matrix(l, (d->L + 1) * T, d->C);
    b->normed = matrix(l, T, d->C);
    b->mid = matrix(l, T, d->C);
    b->sub = matrix(l, T, d->C);
    b->q = matrix(l, T, HD);
    b->k = matrix(l, T, GD);
    b->v = matrix(l, T, GD);
    b->o = matrix(l, T, HD);
    if (d->has_qk_norm) {
        b->raw_q = matrix(l, T, HD);
        b->raw_k = matrix(l, T, GD);
        b->r_q = floats(l, T * d->H);
        b->r_k = floats(l, T * d->G);
    }
    /* Rows with a target pass the head while no layer is at work; gradients of attention are made when those of the gated product are used up. */
    const int64_t both = 2 * T * d->F, head = (2 * M + 1) * d->C, of_attention = T * 2 * (HD + GD);
    b->gate = b->rows = matrix(l, 1, both > head ? both : head);
    b->up = within(b->gate, T * d->F);
    b->drows = within(b->rows, M * d->C);
    b->gated = b->dgated = b->d_o = matrix(l, 1, T * d->F > of_attention ? T * d->F : of_attention);
    b->dq = within(b->d_o, T * HD);
    b->dk = within(b->dq, T * HD);
    b->dv = within(b->dk, T * GD);
    for (int p = 0; p < AG_N_PROJ; p++) {
        b->h[p] = matrix(l, T, R);
        b->dh[p] = matrix(l, T, R);
    }
    b->scaled = matrix(l, T, R);
    b->d = matrix(l, T, d->C);
    b->d_mid = matrix(l, T, d->C);
    b->dnormed = matrix(l, T, d->C);
    b->lse = floats(l, T * d->H);
    b->r_attn = floats(l, T);
    b->r_ffn = floats(l, T);
    b->r_final = floats(l, T);
    b->nll = floats(l, M);
    b->ints = ag_layout_place(l, (size_t)(AG_DEVICE_INTS_PER_TOKEN * T + AG_DEVICE_INTS_PER_TARGET * M) * sizeof(int32_t));
}

/* The host lays a micro-batch's ints out by its own T and M. */
static const int32_t *ids(const ag_device_pass *p) { return p->b.ints; }
static const int32_t *positions(const ag_device_pass *p) { return p->b.ints + p->T; }
static const int32_t *first_key(const ag_device_pass *p) { return p->b.ints + 2 * p->T; }
static const int32_t *last_query(const ag_device_pass *p) { return p->b.ints + 3 * p->T; }
static const int32_t *slots(const ag_device_pass *p) { return p->b.ints + 4 * p->T; }
static const int32_t *target_rows(const ag_device_pass *p) { return p->b.ints + 5 * p->T; }
static const int32_t *targets(const ag_device_pass *p) { return p->b.ints + 5 * p->T + p->M; }

/* ---- projections with their pairs ------------------------------------------------------------------------------------------------------ */
static const ag_lora_view *view_of(const ag_device_pass *p, int64_t l, ag_projection proj) { return &p->adapter->layers[l].pair[proj]; }
static const bkl_bf16 *param(const ag_device_pass *p, const float *at) { return p->params_bf16 + (at - p->host_params); }
static float *grad(const ag_device_pass *p, const float *at) { return p->grads + (at - p->host_params); }

/* The CPU's masks (decoder.h): a function of the seed, the micro-batch, the layer and the module. */
static bkl_dropout dropout_of(const ag_device_pass *p, int64_t l, ag_projection proj)
{
    const ag_description *d = &p->model->d;
    if (p->dropout <= 0) return (bkl_dropout){0};
    const ag_projection site = ag_linear_module_of(d, proj)->first;
    const ag_dropout o = {.p = p->dropout, .key = p->dropout_key, .site = (p->dropout_call * (uint64_t)d->L + (uint64_t)l) * AG_N_PROJ + (uint64_t)site};
    const dropout_plan plan = dropout_plan_make(&o);
    return (bkl_dropout){plan.drop, plan.scale, dropout_key_words(&plan, 0)};
}

typedef struct {
    ag_projection proj;
    const bkl_bf16 *from; /* [T, from's width] */
    bkl_bf16 *out;        /* [T,R] */
    float scale;          /* besides the pair's own */
} thin;

/* Thin products of pairs, forward (x·Aᵀ) or backward (dy·B); those of one rank in one call. */
static void thin_products(ag_device_pass *p, int64_t l, const thin *items, int n, bool backward)
{
    for (int i = 0; i < n;) {
        const int64_t R = view_of(p, l, items[i].proj)->R;
        bkl_lora_down_args args = {.T = p->T, .R = R};
        for (; i < n && view_of(p, l, items[i].proj)->R == R; i++) {
            if (R == 0) continue;
            const ag_lora_view *v = view_of(p, l, items[i].proj);
            const ag_device_projection *w = &p->weights->layers[l].proj[items[i].proj];
            const int64_t width = backward ? w->N : w->K;
            args.item[args.n++] = (bkl_lora_down_item){.out = items[i].out, .left = items[i].from, .right = param(p, backward ? v->b : v->a), .K = width,
                                                       .left_pitch = width, .scale = v->scale * items[i].scale, .right_is_kn = backward,
                                                       .dropout = backward ? (bkl_dropout){0} : dropout_of(p, l, items[i].proj)};
        }
        if (args.n) AG_DEVICE_RUN(p, lora_down, args);
    }
}

static bool has_pair(const ag_device_pass *p, int64_t l, ag_projection proj) { return view_of(p, l, proj)->R > 0; }

/* y = scale·(x·Wᵀ + h·Bᵀ) + bias, with h made here */
static void project(ag_device_pass *p, int64_t l, ag_projection proj, bkl_bf16 *y, const bkl_bf16 *x, float scale)
{
    const ag_device_projection *w = &p->weights->layers[l].proj[proj];
    const ag_lora_view *v = view_of(p, l, proj);
    const bkl_bf16 *h = v->R ? p->b.h[proj] : NULL, *b = v->R ? param(p, v->b) : NULL;
    if (w->is_nf4) {
        AG_DEVICE_RUN(p, nf4_fwd, {.y = y, .x = x, .w = w->nf4, .lora_h = h, .lora_b = b, .bias = w->bias, .T = p->T, .R = v->R, .y_pitch = w->N,
                                   .x_pitch = w->K, .scale = scale});
        return;
    }
    AG_DEVICE_RUN(p, gemm, {.y = y, .a = x, .b = w->dense, .bias = w->bias, .M = p->T, .N = w->N, .K = w->K, .y_pitch = w->N, .a_pitch = w->K,
                            .b_pitch = w->K, .scale = scale});
    if (h)
        AG_DEVICE_RUN(p, gemm, {.y = y, .a = h, .b = b, .M = p->T, .N = w->N, .K = v->R, .y_pitch = w->N, .a_pitch = v->R, .b_pitch = v->R,
                                .scale = scale, .accumulate = true});
}

/* dx = scale·Σ (dy·W + dh·A) of projections that share an input */
static void project_back(ag_device_pass *p, int64_t l, const ag_projection *projs, const bkl_bf16 *const *dy, int n, bkl_bf16 *dx, float scale)
{
    bkl_nf4_bwd_args nf4 = {.dx = dx, .T = p->T, .scale = scale};
    bool done = false; /* something is in dx */
    for (int i = 0; i < n; i++) {
        const ag_device_projection *w = &p->weights->layers[l].proj[projs[i]];
        const ag_lora_view *v = view_of(p, l, projs[i]);
        if (w->is_nf4 && (nf4.n == 0 || v->R == nf4.R)) {
            nf4.dy[nf4.n] = dy[i];
            nf4.w[nf4.n] = w->nf4;
            nf4.dy_pitch[nf4.n] = w->N;
            nf4.lora_dh[nf4.n] = v->R ? p->b.dh[projs[i]] : NULL;
            nf4.lora_a[nf4.n] = v->R ? param(p, v->a) : NULL;
            nf4.lora_dropout[nf4.n] = dropout_of(p, l, projs[i]);
            nf4.R = v->R;
            nf4.dx_pitch = w->K;
            nf4.n++;
            continue;
        }
        if (w->is_nf4) { /* of another rank than those before */
            AG_DEVICE_RUN(p, nf4_bwd, {.dx = dx, .n = 1, .dy = {dy[i]}, .w = {w->nf4}, .lora_dh = {v->R ? p->b.dh[projs[i]] : NULL},
                                       .lora_a = {v->R ? param(p, v->a) : NULL}, .lora_dropout = {dropout_of(p, l, projs[i])}, .T = p->T, .R = v->R, .dx_pitch = w->K, .dy_pitch = {w->N}, .scale = scale,
                                       .accumulate = done});
        } else {
            AG_DEVICE_RUN(p, gemm, {.y = dx, .a = dy[i], .b = w->dense, .M = p->T, .N = w->K, .K = w->N, .y_pitch = w->K, .a_pitch = w->N, .b_pitch = w->K,
                                    .scale = scale, .b_is_kn = true, .accumulate = done});
            if (v->R)
                AG_DEVICE_RUN(p, gemm, {.y = dx, .a = p->b.dh[projs[i]], .b = param(p, v->a), .M = p->T, .N = w->K, .K = v->R, .y_pitch = w->K,
                                        .a_pitch = v->R, .b_pitch = w->K, .scale = scale, .b_is_kn = true, .accumulate = true});
        }
        done = true;
    }
    nf4.accumulate = done;
    if (nf4.n) AG_DEVICE_RUN(p, nf4_bwd, nf4);
}

/* dA += leftᵀ·x with left = dh, dB += dyᵀ·left with left = h: both times `scale`, which the thin products do not hold. */
static void pair_grads(ag_device_pass *p, int64_t l, ag_projection proj, const bkl_bf16 *x, const bkl_bf16 *dy, float scale)
{
    const ag_lora_view *v = view_of(p, l, proj);
    const ag_device_projection *w = &p->weights->layers[l].proj[proj];
    if (!v->R) return;
    for (int side = 0; side < 2; side++) {
        const bkl_bf16 *left = side ? p->b.h[proj] : p->b.dh[proj];
        if (scale != 1) {
            const thin again = {proj, side ? x : dy, p->b.scaled, scale};
            thin_products(p, l, &again, 1, !side);
            left = p->b.scaled;
        }
        const bkl_lora_grad_item item = {.out = grad(p, side ? v->b : v->a), .left = left, .wide = side ? dy : x, .W = side ? w->N : w->K,
                                         .wide_pitch = side ? w->N : w->K, .transposed = side,
                                         .dropout = side ? (bkl_dropout){0} : dropout_of(p, l, proj)};
        AG_DEVICE_RUN(p, lora_grad, {.n = 1, .item = {item}, .T = p->T, .R = v->R, .accumulate = true});
    }
}

/* ---- a layer ---------------------------------------------------------------------------------------------------------------------------- */
static bkl_bf16 *kept(const ag_device_pass *p, int64_t l) { return p->b.kept + l * p->T * p->model->d.C; }

/* normed = norm(x + residual), the sum to `sum` where there is a residual */
static void norm(ag_device_pass *p, const bkl_bf16 *x, const bkl_bf16 *residual, bkl_bf16 *sum, const float *w, float *r)
{
    AG_DEVICE_RUN(p, rmsnorm_fwd, {.y = p->b.normed, .sum = residual ? sum : NULL, .r = r, .x = x, .residual = residual, .w = w, .T = p->T,
                                   .C = p->model->d.C, .eps = p->model->d.rms_eps});
}

static void rotate(ag_device_pass *p, int64_t l, bkl_bf16 *x, int64_t heads, bool backward)
{
    const ag_description *d = &p->model->d;
    if (!ag_layer_rotates(d, l)) return;
    AG_DEVICE_RUN(p, rope, {.x = x, .positions = positions(p), .cos = p->weights->cos, .sin = p->weights->sin, .T = p->T, .H = heads, .D = d->D,
                            .pitch = heads * d->D, .backward = backward});
}

/* Every head's own norm, as rows of D. */
static void norm_heads(ag_device_pass *p, bkl_bf16 *y, const bkl_bf16 *raw, const float *w, float *r, int64_t heads)
{
    const ag_description *d = &p->model->d;
    AG_DEVICE_RUN(p, rmsnorm_fwd, {.y = y, .r = r, .x = raw, .w = w, .T = p->T * heads, .C = d->D, .eps = d->rms_eps});
}

static void norm_heads_back(ag_device_pass *p, bkl_bf16 *dx, const bkl_bf16 *dy, const bkl_bf16 *raw, const float *w, const float *r, int64_t heads)
{
    AG_DEVICE_RUN(p, rmsnorm_bwd, {.dx = dx, .dy = dy, .x = raw, .w = w, .r = r, .T = p->T * heads, .C = p->model->d.D});
}

/* From the normed input to the gate and up products: what forward needs, and what backward computes again. */
static void layer_forward(ag_device_pass *p, int64_t l)
{
    const ag_description *d = &p->model->d;
    const ag_device_buffers *b = &p->b;
    const ag_device_layer *w = &p->weights->layers[l];
    const thin qkv[] = {{AG_PROJ_Q, b->normed, b->h[AG_PROJ_Q], 1}, {AG_PROJ_K, b->normed, b->h[AG_PROJ_K], 1}, {AG_PROJ_V, b->normed, b->h[AG_PROJ_V], 1}};
    thin_products(p, l, qkv, 3, false);
    project(p, l, AG_PROJ_Q, d->has_qk_norm ? b->raw_q : b->q, b->normed, 1);
    project(p, l, AG_PROJ_K, d->has_qk_norm ? b->raw_k : b->k, b->normed, 1);
    project(p, l, AG_PROJ_V, b->v, b->normed, 1);
    if (d->has_qk_norm) {
        norm_heads(p, b->q, b->raw_q, w->norm[AG_NORM_Q], b->r_q, d->H);
        norm_heads(p, b->k, b->raw_k, w->norm[AG_NORM_K], b->r_k, d->G);
    }
    rotate(p, l, b->q, d->H, false);
    rotate(p, l, b->k, d->G, false);
    AG_DEVICE_RUN(p, attention_fwd, {.o = b->o, .lse = b->lse, .q = b->q, .k = b->k, .v = b->v, .first_key = first_key(p), .T = p->T, .S = p->T, .H = d->H,
                                     .G = d->G, .D = d->D, .q_pitch = d->H * d->D, .kv_pitch = d->G * d->D, .o_pitch = d->H * d->D,
                                     .window = ag_layer_window(d, l), .scale = d->attention_scale});
    const thin o = {AG_PROJ_O, b->o, b->h[AG_PROJ_O], 1};
    thin_products(p, l, &o, 1, false);
    project(p, l, AG_PROJ_O, b->sub, b->o, d->residual_scale);
    norm(p, b->sub, kept(p, l), b->mid, w->norm[AG_NORM_FFN], b->r_ffn);
    const thin ffn[] = {{AG_PROJ_GATE, b->normed, b->h[AG_PROJ_GATE], 1}, {AG_PROJ_UP, b->normed, b->h[AG_PROJ_UP], 1}};
    thin_products(p, l, ffn, 2, false);
    project(p, l, AG_PROJ_GATE, b->gate, b->normed, 1);
    project(p, l, AG_PROJ_UP, b->up, b->normed, 1);
}

/* The rest of forward: sub = what the feed-forward part adds to `mid`. */
static void layer_finish(ag_device_pass *p, int64_t l)
{
    const ag_description *d = &p->model->d;
    const ag_device_buffers *b = &p->b;
    AG_DEVICE_RUN(p, swiglu_fwd, {.y = b->gated, .gate = b->gate, .up = b->up, .n = p->T * d->F});
    const thin down = {AG_PROJ_DOWN, b->gated, b->h[AG_PROJ_DOWN], 1};
    thin_products(p, l, &down, 1, false);
    project(p, l, AG_PROJ_DOWN, b->sub, b->gated, d->residual_scale);
}

static void norm_back(ag_device_pass *p, bkl_bf16 *dx, const bkl_bf16 *dresidual, const bkl_bf16 *x, const float *w, const float *r)
{
    AG_DEVICE_RUN(p, rmsnorm_bwd, {.dx = dx, .dresidual = dresidual, .dy = p->b.dnormed, .x = x, .w = w, .r = r, .T = p->T, .C = p->model->d.C});
}

/* b.d is the gradient of the stream behind the feed-forward part; b.d_mid becomes that before it. Gate and up become their gradients. */
static void ffn_backward(ag_device_pass *p, int64_t l)
{
    const ag_description *d = &p->model->d;
    const ag_device_buffers *b = &p->b;
    const ag_projection down = AG_PROJ_DOWN, both[] = {AG_PROJ_GATE, AG_PROJ_UP};
    const thin down_back = {down, b->d, b->dh[down], 1};
    thin_products(p, l, &down_back, 1, true);
    project_back(p, l, &down, (const bkl_bf16 *const[]){b->d}, 1, b->dgated, d->residual_scale);
    AG_DEVICE_RUN(p, swiglu_bwd, {.dgate = b->gate, .dup = b->up, .y = b->gated, .gate = b->gate, .up = b->up, .dy = b->dgated, .n = p->T * d->F});
    if (has_pair(p, l, down)) {
        const thin again = {down, b->gated, b->h[down], 1};
        thin_products(p, l, &again, 1, false);
        pair_grads(p, l, down, b->gated, b->d, d->residual_scale);
    }
    const thin back[] = {{AG_PROJ_GATE, b->gate, b->dh[AG_PROJ_GATE], 1}, {AG_PROJ_UP, b->up, b->dh[AG_PROJ_UP], 1}};
    thin_products(p, l, back, 2, true);
    pair_grads(p, l, AG_PROJ_GATE, b->normed, b->gate, 1);
    pair_grads(p, l, AG_PROJ_UP, b->normed, b->up, 1);
    project_back(p, l, both, (const bkl_bf16 *const[]){b->gate, b->up}, 2, b->dnormed, 1);
    norm_back(p, b->d_mid, b->d, b->mid, p->weights->layers[l].norm[AG_NORM_FFN], b->r_ffn);
}

/* From b.d_mid to b.d, the gradient of the layer's input; not made for the first layer, below which nothing is trained. */
static void attention_backward(ag_device_pass *p, int64_t l)
{
    const ag_description *d = &p->model->d;
    const ag_device_buffers *b = &p->b;
    const ag_device_layer *w = &p->weights->layers[l];
    const ag_projection o = AG_PROJ_O, qkv[] = {AG_PROJ_Q, AG_PROJ_K, AG_PROJ_V};
    const bkl_bf16 *const dy[] = {d->has_qk_norm ? b->d_o : b->dq, d->has_qk_norm ? b->dq : b->dk, b->dv};
    const thin o_back = {o, b->d_mid, b->dh[o], 1};
    thin_products(p, l, &o_back, 1, true);
    pair_grads(p, l, o, b->o, b->d_mid, d->residual_scale);
    project_back(p, l, &o, (const bkl_bf16 *const[]){b->d_mid}, 1, b->d_o, d->residual_scale);
    const int64_t hd = d->H * d->D, gd = d->G * d->D;
    AG_DEVICE_RUN(p, attention_bwd, {.dq = b->dq, .dk = b->dk, .dv = b->dv, .d_o = b->d_o, .o = b->o, .q = b->q, .k = b->k, .v = b->v, .lse = b->lse,
                                     .first_key = first_key(p), .last_query = last_query(p), .T = p->T, .S = p->T, .H = d->H, .G = d->G, .D = d->D,
                                     .q_pitch = hd, .kv_pitch = gd, .o_pitch = hd, .dq_pitch = hd, .dkv_pitch = gd,
                                     .window = ag_layer_window(d, l), .scale = d->attention_scale});
    rotate(p, l, b->dq, d->H, true);
    rotate(p, l, b->dk, d->G, true);
    if (d->has_qk_norm) { /* each into a buffer whose gradient is used up by then */
        norm_heads_back(p, b->d_o, b->dq, b->raw_q, w->norm[AG_NORM_Q], b->r_q, d->H);
        norm_heads_back(p, b->dq, b->dk, b->raw_k, w->norm[AG_NORM_K], b->r_k, d->G);
    }
    norm(p, kept(p, l), NULL, NULL, w->norm[AG_NORM_ATTN], b->r_attn); /* the normed input again */
    thin back[3];
    for (int i = 0; i < 3; i++) back[i] = (thin){qkv[i], dy[i], b->dh[qkv[i]], 1};
    thin_products(p, l, back, 3, true);
    for (int i = 0; i < 3; i++) pair_grads(p, l, qkv[i], b->normed, dy[i], 1);
    if (l == 0) return;
    project_back(p, l, qkv, dy, 3, b->dnormed, 1);
    norm_back(p, b->d, b->d_mid, kept(p, l), w->norm[AG_NORM_ATTN], b->r_attn);
}

/* ---- the whole ----------------------------------------------------------------------------------------------------------------------------- */
static void gather(ag_device_pass *p, bkl_bf16 *to, const bkl_bf16 *from, const int32_t *rows, int64_t n)
{
    AG_DEVICE_RUN(p, embed, {.x = to, .ids = rows, .w = from, .T = n, .C = p->model->d.C, .scale = 1});
}

static void clear(ag_device_pass *p, void *at, size_t bytes)
{
    if (p->only_sizes || p->failed) return;
    p->failed = p->device->bkl->fill(p->device->stream, at, 0, bytes);
    if (p->failed) p->failed_op = "fill";
}

void ag_device_pass_run(ag_device_pass *p, bool train)
{
    const ag_description *d = &p->model->d;
    const ag_device_buffers *b = &p->b;
    const ag_device_weights *w = p->weights;
    AG_DEVICE_RUN(p, embed, {.x = kept(p, 0), .ids = ids(p), .w = w->embed, .T = p->T, .C = d->C, .scale = d->embedding_scale});
    for (int64_t l = 0; l < d->L; l++) {
        if (l == 0)
            norm(p, kept(p, 0), NULL, NULL, w->layers[0].norm[AG_NORM_ATTN], b->r_attn);
        else
            norm(p, b->sub, b->mid, kept(p, l), w->layers[l].norm[AG_NORM_ATTN], b->r_attn);
        layer_forward(p, l);
        layer_finish(p, l);
    }
    norm(p, b->sub, b->mid, kept(p, d->L), w->final_norm, b->r_final);
    gather(p, b->rows, b->normed, target_rows(p), p->M);
    AG_DEVICE_RUN(p, head_ce, {.nll = b->nll, .dx = train ? b->drows : NULL, .x = b->rows, .targets = targets(p), .w = w->head, .M = p->M, .C = d->C,
                               .V = d->V, .logit_scale = d->logit_scale, .dloss = p->dloss});
    if (!train) return;
    clear(p, b->drows + p->M * d->C, (size_t)d->C * sizeof(bkl_bf16)); /* the row that rows without a target take */
    gather(p, b->dnormed, b->drows, slots(p), p->T);
    norm_back(p, b->d, NULL, kept(p, d->L), w->final_norm, b->r_final);
    for (int64_t l = d->L - 1; l >= 0; l--) {
        norm(p, kept(p, l), NULL, NULL, w->layers[l].norm[AG_NORM_ATTN], b->r_attn);
        layer_forward(p, l);
        ffn_backward(p, l);
        attention_backward(p, l);
    }
}
