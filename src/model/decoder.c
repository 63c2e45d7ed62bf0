#include "model/decoder_internal.h"

#include "base/num.h"
#include "model/family.h"
#include "ops/embed/embed.h"
#include "ops/grad/grad.h"
#include "ops/head_ce/head_ce.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/swiglu/swiglu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------------------------------------- */
static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

static float *place_floats(ag_layout *layout, int64_t n) { return ag_layout_place(layout, (size_t)n * sizeof(float)); }

/* The largest that a call may bring to projection p of layer l. */
static int64_t lora_rank(const ag_decoder_options *o, int64_t l, int p)
{
    const int64_t own = o->lora ? o->lora[l].pair[p].R : 0;
    return own > o->max_run_rank ? own : o->max_run_rank;
}

/* What backward needs of layer l and nothing computes again. */
static void place_kept(ag_layout *layout, ag_layer_acts *acts, const ag_decoder_options *o, int64_t l)
{
    const ag_description *d = &o->model->d;
    const int64_t T = o->max_tokens;
    acts->x_in = place_floats(layout, T * d->C);
    for (int p = 0; o->train && p < AG_N_PROJ; p++)
        if (lora_rank(o, l, p) > 0) acts->h[p] = place_floats(layout, T * lora_rank(o, l, p));
}

static void place_wide(ag_layout *layout, ag_layer_acts *acts, const ag_decoder_options *o)
{
    const ag_description *d = &o->model->d;
    const int64_t T = o->max_tokens;
    acts->q = place_floats(layout, T * d->H * d->D);
    acts->k = place_floats(layout, T * d->G * d->D);
    acts->v = place_floats(layout, T * d->G * d->D);
    acts->o = place_floats(layout, T * d->H * d->D);
    acts->lse = place_floats(layout, T * d->H);
    acts->x_mid = place_floats(layout, T * d->C);
    acts->gate = place_floats(layout, T * d->F);
    acts->up = place_floats(layout, T * d->F);
    if (d->has_qk_norm) {
        acts->q_raw = place_floats(layout, T * d->H * d->D);
        acts->k_raw = place_floats(layout, T * d->G * d->D);
        acts->r_q = place_floats(layout, T * d->H);
        acts->r_k = place_floats(layout, T * d->G);
    }
    if (d->has_post_norms) {
        acts->attn_out = place_floats(layout, T * d->C);
        acts->ffn_out = place_floats(layout, T * d->C);
        acts->r_attn = place_floats(layout, T);
        acts->r_ffn = place_floats(layout, T);
    }
}

/* Normed inputs and the gated product: shared by all layers, computed again in backward. */
static void place_shared(ag_layout *layout, ag_decoder *dec)
{
    const ag_decoder_options *o = &dec->o;
    const ag_description *d = &o->model->d;
    const int64_t T = o->max_tokens;
    dec->r = place_floats(layout, T);
    dec->normed = place_floats(layout, T * d->C);
    dec->act = place_floats(layout, T * d->F);
    dec->x_out = place_floats(layout, T * d->C);
}

static void place_backward(ag_layout *layout, ag_decoder *dec)
{
    const ag_decoder_options *o = &dec->o;
    const ag_description *d = &o->model->d;
    const int64_t T = o->max_tokens;
    dec->dx = place_floats(layout, T * d->C);
    dec->dnormed = place_floats(layout, T * d->C);
    dec->dact = place_floats(layout, T * d->F);
    dec->d_o = place_floats(layout, T * d->H * d->D);
    dec->dq = place_floats(layout, T * d->H * d->D);
    dec->dk = place_floats(layout, T * d->G * d->D);
    dec->dv = place_floats(layout, T * d->G * d->D);
}

static void place_head(ag_layout *layout, ag_decoder *dec)
{
    const ag_decoder_options *o = &dec->o;
    const int64_t M = o->max_targets, C = o->model->d.C;
    dec->head_rows = ag_layout_place(layout, (size_t)M * sizeof(int64_t));
    dec->head_targets = ag_layout_place(layout, (size_t)M * sizeof(int32_t));
    dec->head_nll = place_floats(layout, M);
    dec->head_x = place_floats(layout, M * C);
    dec->head_normed = place_floats(layout, M * C);
    dec->head_r = place_floats(layout, M);
    dec->positions = ag_layout_place(layout, (size_t)o->max_tokens * sizeof(int32_t));
    if (o->train) dec->head_dnormed = place_floats(layout, M * C);
}

static void place_activations(ag_layout *layout, ag_decoder *dec)
{
    const ag_decoder_options *o = &dec->o;
    const int64_t L = o->model->d.L;
    ag_layer_acts *acts = ag_layout_place(layout, (size_t)L * sizeof *acts), unused;
    dec->layers = acts;
    const int64_t n_kept = o->train ? L : 1;
    for (int64_t l = 0; l < n_kept; l++) {
        ag_layer_acts *of_layer = acts ? &acts[l] : &unused;
        *of_layer = (ag_layer_acts){0};
        place_kept(layout, of_layer, o, l);
        if (l == 0 || (o->train && !o->recompute))
            place_wide(layout, of_layer, o);
        else if (acts) /* recomputing: one set of wide buffers serves every layer */
            ag_layer_acts_share_wide(of_layer, &acts[0]);
    }
    if (!o->train) { /* one set of everything, wide enough for the layer with the largest ranks */
        for (int64_t l = 1; acts && l < L; l++) acts[l] = acts[0];
        for (int p = 0; p < AG_N_PROJ; p++) {
            int64_t largest = 0;
            for (int64_t l = 0; l < L; l++) largest = lora_rank(o, l, p) > largest ? lora_rank(o, l, p) : largest;
            float *h = largest > 0 ? place_floats(layout, o->max_tokens * largest) : NULL;
            for (int64_t l = 0; acts && l < L; l++) acts[l].h[p] = h;
        }
    }
    place_shared(layout, dec);
    place_head(layout, dec);
    ag_decoder_place_dora(layout, dec);
    if (o->train) place_backward(layout, dec);
}

static size_t scratch_bytes(const ag_decoder_options *o)
{
    const ag_description *d = &o->model->d;
    const ag_backend *be = o->backend;
    const int64_t T = o->max_tokens;
    size_t bytes = 0;
    bytes = max_size(bytes, ag_decoder_project_scratch_bytes(o));
    if (o->embed_lora) bytes = max_size(bytes, ag_embed_lora_scratch_bytes(T, o->embed_lora->R));
    if (o->grads && o->grads->head) bytes = max_size(bytes, ag_grad_head_scratch_bytes(be, o->max_targets, d->C, d->V));
    bytes = max_size(bytes, ag_attention_scratch_bytes(be, T, o->longest_span, d->H, d->G, d->D));
    bytes = max_size(bytes, ag_head_ce_scratch_bytes(be, o->max_targets, d->C, d->V));
    return max_size(bytes, ag_linear_scratch_bytes(be, o->max_targets, d->C, d->V));
}

static void place_workspace(ag_layout *layout, ag_decoder *dec)
{
    const ag_decoder_options *o = &dec->o;
    ag_decoder_place_rope(layout, dec);
    dec->be.scratch.bytes = scratch_bytes(o);
    dec->be.scratch.data = ag_layout_place(layout, dec->be.scratch.bytes);
}

static ag_decoder_options with_defaults(const ag_decoder_options *options)
{
    ag_decoder_options o = *options;
    if (o.max_targets == 0) o.max_targets = o.max_tokens;
    if (o.longest_span == 0) o.longest_span = o.max_tokens;
    return o;
}

void ag_decoder_plan(ag_decoder_bytes *out, const ag_decoder_options *options)
{
    ag_decoder dec = {.o = with_defaults(options), .be = *options->backend};
    ag_layout activations = {0}, workspace = {0};
    place_activations(&activations, &dec);
    place_workspace(&workspace, &dec);
    *out = (ag_decoder_bytes){activations.bytes, workspace.bytes};
}

ag_status ag_decoder_create(ag_decoder **out, const ag_decoder_options *options, ag_err *err)
{
    *out = NULL;
    ag_decoder_bytes bytes;
    ag_decoder_plan(&bytes, options);
    ag_decoder *dec = calloc(1, sizeof *dec);
    if (!dec) ag_out_of_memory(sizeof *dec);
    dec->o = with_defaults(options);
    dec->be = *options->backend;
    dec->block_bytes = bytes.activations + bytes.workspace;
    ag_status status = ag_pages_alloc(&dec->block, dec->block_bytes, "activations", err);
    if (status) {
        free(dec);
        return status;
    }
    ag_layout layout = {.base = dec->block};
    place_activations(&layout, dec);
    place_workspace(&layout, dec);
    AG_ASSERT(layout.bytes == dec->block_bytes);

    for (int p = 0; p < AG_N_PROJ; p++) dec->site[p] = (int)ag_linear_module_of(&dec->o.model->d, (ag_projection)p)->first;
    ag_decoder_make_rope(dec);
    *out = dec;
    return AG_OK;
}

void ag_decoder_free(ag_decoder **dec)
{
    if (!dec || !*dec) return;
    ag_pages_free((*dec)->block, (*dec)->block_bytes);
    free(*dec);
    *dec = NULL;
}

/* ---- one call's numbers ------------------------------------------------------------------------------------------ */
static ag_status norm(const ag_pass *pass, float *y, float *r, const float *x, const float *w, int64_t n_rows, ag_err *err)
{
    const ag_description *d = &pass->dec->o.model->d;
    return ag_rmsnorm_fwd(&pass->dec->be, &(ag_rmsnorm_fwd_args){
        .y = ag_mat_f32(y, n_rows, d->C), .r = ag_vec_f32(r, n_rows), .x = ag_mat_f32((float *)x, n_rows, d->C),
        .w = ag_vec_f32((float *)w, d->C), .eps = d->rms_eps}, err);
}

/* Every head of q or k by itself. */
static ag_status norm_heads(const ag_pass *pass, float *y, float *r, const float *x, const float *w, int64_t n_heads, ag_err *err)
{
    const ag_description *d = &pass->dec->o.model->d;
    const int64_t n = pass->T * n_heads;
    return ag_rmsnorm_fwd(&pass->dec->be, &(ag_rmsnorm_fwd_args){
        .y = ag_mat_f32(y, n, d->D), .r = ag_vec_f32(r, n), .x = ag_mat_f32((float *)x, n, d->D), .w = ag_vec_f32((float *)w, d->D),
        .eps = d->rms_eps}, err);
}

/* y = x + n(what a sublayer gave) */
static ag_status join_normed(const ag_pass *pass, float *y, float *r, const float *x, const float *given, const float *w, ag_err *err)
{
    const int64_t n = pass->T * pass->dec->o.model->d.C;
    AG_TRY(norm(pass, y, r, given, w, pass->T, err));
#pragma omp parallel for simd schedule(static) num_threads(pass->dec->be.n_threads)
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
    return AG_OK;
}

/* ---- forward ------------------------------------------------------------------------------------------------------ */
static const int QKV[] = {AG_PROJ_Q, AG_PROJ_K, AG_PROJ_V}, O[] = {AG_PROJ_O}, GATE_UP[] = {AG_PROJ_GATE, AG_PROJ_UP},
                 DOWN[] = {AG_PROJ_DOWN};

/* n(x_in) → q, k and v, rotated. */
static ag_status qkv_forward(const ag_pass *pass, int64_t l, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const ag_layer *layer = &dec->o.model->layers[l];
    const ag_layer_acts *acts = &dec->layers[l];
    float *const raw[] = {d->has_qk_norm ? acts->q_raw : acts->q, d->has_qk_norm ? acts->k_raw : acts->k, acts->v};
    AG_TRY(norm(pass, dec->normed, dec->r, acts->x_in, layer->norm[AG_NORM_ATTN], pass->T, err));
    AG_TRY(ag_decoder_project(pass, l, 3, QKV, raw, dec->normed, err));
    if (d->has_qk_norm) {
        AG_TRY(norm_heads(pass, acts->q, acts->r_q, acts->q_raw, layer->norm[AG_NORM_Q], d->H, err));
        AG_TRY(norm_heads(pass, acts->k, acts->r_k, acts->k_raw, layer->norm[AG_NORM_K], d->G, err));
    }
    AG_TRY(ag_decoder_rotate(pass, l, acts->q, d->H, false, err));
    return ag_decoder_rotate(pass, l, acts->k, d->G, false, err);
}

/* x_in → q, k, v, o and x_mid. With a cache, keys and values go there and attention reads all that is there. */
static ag_status attention_forward(const ag_pass *pass, int64_t l, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const ag_layer_acts *acts = &dec->layers[l];
    const int64_t T = pass->T;
    AG_TRY(qkv_forward(pass, l, err));

    float *k = acts->k, *v = acts->v;
    int64_t n_kv_rows = T;
    if (pass->cache) ag_kv_cache_append(pass->cache, l, pass->runs, pass->n_runs, &k, &v, &n_kv_rows);
    AG_TRY(ag_attention_fwd(&dec->be, &(ag_attention_fwd_args){
        .o = ag_cube_f32(acts->o, T, d->H, d->D), .lse = pass->cache ? (ag_tensor){0} : ag_mat_f32(acts->lse, T, d->H),
        .q = ag_cube_f32(acts->q, T, d->H, d->D), .k = ag_cube_f32(k, n_kv_rows, d->G, d->D),
        .v = ag_cube_f32(v, n_kv_rows, d->G, d->D), .spans = pass->spans, .n_spans = pass->n_spans,
        .window = ag_layer_window(d, l), .scale = d->attention_scale, .softcap = d->attention_softcap, .compute = dec->o.compute}, err));

    if (d->has_post_norms) {
        AG_TRY(ag_decoder_project(pass, l, 1, O, &acts->attn_out, acts->o, err));
        return join_normed(pass, acts->x_mid, acts->r_attn, acts->x_in, acts->attn_out, dec->o.model->layers[l].norm[AG_NORM_ATTN_POST], err);
    }
    memcpy(acts->x_mid, acts->x_in, (size_t)(T * d->C) * sizeof(float));
    return ag_decoder_project(pass, l, 1, O, &acts->x_mid, acts->o, err);
}

/* x_mid → gate, up and the gated product. */
static ag_status gate_forward(const ag_pass *pass, int64_t l, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const int64_t T = pass->T, F = dec->o.model->d.F;
    const ag_layer_acts *acts = &dec->layers[l];
    AG_TRY(norm(pass, dec->normed, dec->r, acts->x_mid, dec->o.model->layers[l].norm[AG_NORM_FFN], T, err));
    AG_TRY(ag_decoder_project(pass, l, 2, GATE_UP, (float *const[]){acts->gate, acts->up}, dec->normed, err));
    return ag_swiglu_fwd(&dec->be, &(ag_swiglu_fwd_args){.y = ag_mat_f32(dec->act, T, F), .gate = ag_mat_f32(acts->gate, T, F),
                                                         .up = ag_mat_f32(acts->up, T, F), .act = dec->o.model->d.gate}, err);
}

/* The gated product → x_out. */
static ag_status down_forward(const ag_pass *pass, int64_t l, float *x_out, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const ag_layer_acts *acts = &dec->layers[l];
    if (d->has_post_norms) {
        AG_TRY(ag_decoder_project(pass, l, 1, DOWN, &acts->ffn_out, dec->act, err));
        return join_normed(pass, x_out, acts->r_ffn, acts->x_mid, acts->ffn_out, dec->o.model->layers[l].norm[AG_NORM_FFN_POST], err);
    }
    memcpy(x_out, acts->x_mid, (size_t)(pass->T * d->C) * sizeof(float));
    return ag_decoder_project(pass, l, 1, DOWN, &x_out, dec->act, err);
}

static ag_status layer_forward(const ag_pass *pass, int64_t l, float *x_out, ag_err *err)
{
    AG_TRY(attention_forward(pass, l, err));
    AG_TRY(gate_forward(pass, l, err));
    return down_forward(pass, l, x_out, err);
}

static ag_embed_lora_args embed_lora(const ag_pass *pass, const int32_t *ids, float *x)
{
    const ag_decoder *dec = pass->dec;
    const ag_lora_view *pair = dec->o.embed_lora;
    const int64_t V = dec->o.model->d.V, C = dec->o.model->d.C;
    return (ag_embed_lora_args){
        .x = ag_mat_f32(x, pass->T, C), .ids = ag_vec_i32((int32_t *)ids, pass->T), .a = ag_mat_f32((float *)pair->a, pair->R, V),
        .b = ag_mat_f32((float *)pair->b, C, pair->R), .da = ag_mat_f32(pair->da, pair->R, V), .db = ag_mat_f32(pair->db, C, pair->R),
        .scale = pair->scale * dec->o.model->d.embedding_scale};
}

/* NEFTune's noise is uniform in ±alpha/sqrt(tokens · C), as transformers takes it: of the embedding, before its scale. */
static ag_status add_noise(const ag_pass *pass, ag_tensor x, ag_err *err)
{
    static const uint64_t APART_FROM_DROPOUT = 0x6e656674756e6521;
    const ag_decoder *dec = pass->dec;
    const double tokens = (double)(pass->padded_length > 0 ? pass->padded_length : pass->T);
    const double magnitude = (double)dec->o.neftune_alpha / sqrt(tokens * (double)dec->o.model->d.C);
    return ag_embed_noise(&dec->be, x, (float)magnitude * dec->o.model->d.embedding_scale, dec->o.dropout_key ^ APART_FROM_DROPOUT,
                          pass->dropout_call, err);
}

static ag_status embed(const ag_pass *pass, const int32_t *ids, float *x, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const ag_tensor rows = ag_mat_f32(x, pass->T, d->C);
    AG_TRY(ag_embed(&dec->be, &(ag_embed_args){.x = rows, .ids = ag_vec_i32((int32_t *)ids, pass->T), .w = &dec->o.model->embed,
                                               .scale = d->embedding_scale}, err));
    if (dec->o.embed_lora) {
        const ag_embed_lora_args pair = embed_lora(pass, ids, x);
        AG_TRY(ag_embed_lora_fwd(&dec->be, &pair, err));
    }
    return pass->is_training && dec->o.neftune_alpha > 0 ? add_noise(pass, rows, err) : AG_OK;
}

/* All layers; the stream behind the last one is in *x. */
static ag_status forward(const ag_pass *pass, const int32_t *ids, float **x, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    AG_ASSERT(pass->T >= 1 && pass->T <= dec->o.max_tokens);
    AG_TRY(ag_decoder_make_dora(dec, err));
    AG_TRY(embed(pass, ids, dec->layers[0].x_in, err));
    for (int64_t l = 0; l < d->L; l++) {
        /* Without training all layers share one set of buffers, so a layer's output becomes its own next input. */
        float *x_out = l + 1 < d->L ? dec->layers[l + 1].x_in : dec->x_out;
        AG_TRY(layer_forward(pass, l, x_out, err));
    }
    *x = dec->x_out;
    return AG_OK;
}

/* ---- head --------------------------------------------------------------------------------------------------------- */
/* Rows that have a target, gathered and normed. */
static ag_status gather_targets(const ag_pass *pass, const ag_decoder_batch *batch, const float *x, int64_t *n_rows, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const int64_t C = dec->o.model->d.C;
    int64_t M = 0;
    for (int64_t t = 0; t < batch->T; t++) {
        if (batch->targets[t] < 0) continue;
        AG_ASSERT(M < dec->o.max_targets);
        dec->head_rows[M] = t;
        dec->head_targets[M] = batch->targets[t];
        memcpy(dec->head_x + M * C, x + t * C, (size_t)C * sizeof *x);
        M++;
    }
    *n_rows = M;
    if (M == 0) return AG_OK;
    return norm(pass, dec->head_normed, dec->head_r, dec->head_x, dec->o.model->final_norm, M, err);
}

static ag_status head(const ag_pass *pass, int64_t M, float *nll, int32_t *best, float *dnormed, double dloss, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    return ag_head_ce(&dec->be, &(ag_head_ce_args){
        .nll = ag_vec_f32(nll, M), .best = best ? ag_vec_i32(best, M) : (ag_tensor){0},
        .dx = dnormed ? ag_mat_f32(dnormed, M, d->C) : (ag_tensor){0}, .x = ag_mat_f32(dec->head_normed, M, d->C),
        .targets = ag_vec_i32(dec->head_targets, M), .w = &dec->o.model->head, .logit_scale = d->logit_scale,
        .softcap = d->logit_softcap, .dloss = (float)dloss, .compute = dec->o.compute}, err);
}

/* ---- backward: each step undoes the forward step of the same name ----------------------------------------------------- */
/* dx += what comes through a norm of `width`; dw += its own gradient, where it is trained. dx NULL: only the latter. */
static ag_status norm_backward(const ag_pass *pass, float *dx, float *dw, float *dy, const float *x, const float *w, float *r,
                               int64_t n_rows, int64_t width, ag_err *err)
{
    const ag_backend *be = &pass->dec->be;
    const ag_tensor dy_rows = ag_mat_f32(dy, n_rows, width), x_rows = ag_mat_f32((float *)x, n_rows, width), r_rows = ag_vec_f32(r, n_rows);
    if (dw) AG_TRY(ag_grad_norm(be, ag_vec_f32(dw, width), dy_rows, x_rows, r_rows, err));
    if (!dx) return AG_OK;
    return ag_rmsnorm_bwd(be, &(ag_rmsnorm_bwd_args){.dx = ag_mat_f32(dx, n_rows, width), .dy = dy_rows, .x = x_rows,
                                                     .w = ag_vec_f32((float *)w, width), .r = r_rows}, err);
}

/* dx = what comes through layer l's norm `which`. */
static ag_status norm_of_layer_backward(const ag_pass *pass, int64_t l, ag_norm which, float *dx, float *dy, const float *x, float *r,
                                        int64_t n_rows, ag_err *err)
{
    const ag_decoder *dec = pass->dec;
    const int64_t width = ag_norm_width(&dec->o.model->d, which);
    const ag_layer_grads *grads = ag_decoder_grads_of(dec, l);
    memset(dx, 0, (size_t)(n_rows * width) * sizeof *dx);
    return norm_backward(pass, dx, grads ? grads->norm[which] : NULL, dy, x, dec->o.model->layers[l].norm[which], r, n_rows, width, err);
}

/* dec->dx is d(loss)/d(x_out) and becomes d(loss)/d(x_mid). The gate's inputs and products are there. */
static ag_status gate_backward(const ag_pass *pass, int64_t l, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const ag_layer_acts *acts = &dec->layers[l];
    const int64_t T = pass->T, F = d->F;
    float *dout = dec->dx; /* what came out of down_proj */
    if (d->has_post_norms) {
        dout = dec->dnormed; /* which has its own turn below */
        AG_TRY(norm_of_layer_backward(pass, l, AG_NORM_FFN_POST, dout, dec->dx, acts->ffn_out, acts->r_ffn, T, err));
    }
    AG_TRY(ag_decoder_project_backward(pass, l, 1, DOWN, dec->dact, &dout, dec->act, err));
    /* act has served; dup takes its place, dgate that of dact. */
    AG_TRY(ag_swiglu_bwd(&dec->be, &(ag_swiglu_bwd_args){
        .dgate = ag_mat_f32(dec->dact, T, F), .dup = ag_mat_f32(dec->act, T, F), .dy = ag_mat_f32(dec->dact, T, F),
        .gate = ag_mat_f32(acts->gate, T, F), .up = ag_mat_f32(acts->up, T, F), .act = d->gate}, err));
    AG_TRY(ag_decoder_project_backward(pass, l, 2, GATE_UP, dec->dnormed, (float *const[]){dec->dact, dec->act}, dec->normed, err));
    const ag_layer_grads *grads = ag_decoder_grads_of(dec, l);
    return norm_backward(pass, dec->dx, grads ? grads->norm[AG_NORM_FFN] : NULL, dec->dnormed, acts->x_mid,
                         dec->o.model->layers[l].norm[AG_NORM_FFN], dec->r, T, d->C, err);
}

/* dec->dx is d(loss)/d(x_mid) and becomes d(loss)/d(x_in), unless nothing below is trained. */
static ag_status attention_backward(const ag_pass *pass, int64_t l, bool is_lowest, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const ag_layer_acts *acts = &dec->layers[l];
    const int64_t T = pass->T;
    float *dout = dec->dx, *dq = dec->dq, *dk = dec->dk;
    if (d->has_post_norms) {
        dout = dec->dnormed;
        AG_TRY(norm_of_layer_backward(pass, l, AG_NORM_ATTN_POST, dout, dec->dx, acts->attn_out, acts->r_attn, T, err));
    }
    AG_TRY(ag_decoder_project_backward(pass, l, 1, O, dec->d_o, &dout, acts->o, err));
    AG_TRY(ag_attention_bwd(&dec->be, &(ag_attention_bwd_args){
        .dq = ag_cube_f32(dec->dq, T, d->H, d->D), .dk = ag_cube_f32(dec->dk, T, d->G, d->D),
        .dv = ag_cube_f32(dec->dv, T, d->G, d->D), .d_o = ag_cube_f32(dec->d_o, T, d->H, d->D),
        .o = ag_cube_f32(acts->o, T, d->H, d->D), .lse = ag_mat_f32(acts->lse, T, d->H),
        .q = ag_cube_f32(acts->q, T, d->H, d->D), .k = ag_cube_f32(acts->k, T, d->G, d->D),
        .v = ag_cube_f32(acts->v, T, d->G, d->D), .spans = pass->spans, .n_spans = pass->n_spans,
        .window = ag_layer_window(d, l), .scale = d->attention_scale, .softcap = d->attention_softcap, .compute = dec->o.compute}, err));
    AG_TRY(ag_decoder_rotate(pass, l, dq, d->H, true, err));
    AG_TRY(ag_decoder_rotate(pass, l, dk, d->G, true, err));
    if (d->has_qk_norm) { /* d_o and k have served */
        AG_TRY(norm_of_layer_backward(pass, l, AG_NORM_Q, dec->d_o, dq, acts->q_raw, acts->r_q, T * d->H, err));
        AG_TRY(norm_of_layer_backward(pass, l, AG_NORM_K, acts->k, dk, acts->k_raw, acts->r_k, T * d->G, err));
        dq = dec->d_o;
        dk = acts->k;
    }

    AG_TRY(norm(pass, dec->normed, dec->r, acts->x_in, dec->o.model->layers[l].norm[AG_NORM_ATTN], T, err));
    const ag_layer_grads *grads = ag_decoder_grads_of(dec, l);
    float *dw = grads ? grads->norm[AG_NORM_ATTN] : NULL;
    const bool is_wanted = !is_lowest || dw;
    AG_TRY(ag_decoder_project_backward(pass, l, 3, QKV, is_wanted ? dec->dnormed : NULL, (float *const[]){dq, dk, dec->dv},
                                       dec->normed, err));
    if (!is_wanted) return AG_OK;
    return norm_backward(pass, is_lowest ? NULL : dec->dx, dw, dec->dnormed, acts->x_in, dec->o.model->layers[l].norm[AG_NORM_ATTN], dec->r,
                         T, d->C, err);
}

/* The gated product and the normed input again, from what was kept. */
static ag_status gate_again(const ag_pass *pass, int64_t l, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const int64_t T = pass->T, F = dec->o.model->d.F;
    const ag_layer_acts *acts = &dec->layers[l];
    AG_TRY(norm(pass, dec->normed, dec->r, acts->x_mid, dec->o.model->layers[l].norm[AG_NORM_FFN], T, err));
    return ag_swiglu_fwd(&dec->be, &(ag_swiglu_fwd_args){.y = ag_mat_f32(dec->act, T, F), .gate = ag_mat_f32(acts->gate, T, F),
                                                         .up = ag_mat_f32(acts->up, T, F), .act = dec->o.model->d.gate}, err);
}

static bool trains_embedding(const ag_decoder *dec) { return dec->o.embed_lora || (dec->o.grads && dec->o.grads->embed); }

static bool trains_layer(const ag_decoder *dec, int64_t l)
{
    const ag_layer_grads *grads = ag_decoder_grads_of(dec, l);
    for (int p = 0; p < AG_N_PROJ; p++)
        if (ag_decoder_lora_of(dec, l, p) || (grads && (grads->proj[p] || grads->bias[p]))) return true;
    for (int n = 0; grads && n < AG_N_NORMS; n++)
        if (grads->norm[n]) return true;
    return false;
}

/* Nothing below it is trained; L where no layer is. */
static int64_t lowest_trained_layer(const ag_decoder *dec)
{
    const int64_t L = dec->o.model->d.L;
    int64_t l = 0;
    while (l < L && !trains_embedding(dec) && !trains_layer(dec, l)) l++;
    return l;
}

/* d(head_normed) to the stream's rows, and what is trained behind the layers. */
static ag_status head_backward(const ag_pass *pass, int64_t M, double dloss, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const int64_t C = d->C;
    const ag_model_grads *grads = dec->o.grads;
    if (grads && grads->head)
        AG_TRY(ag_grad_head(&dec->be, &(ag_grad_head_args){
            .dw = ag_mat_f32(grads->head, d->V, C), .x = ag_mat_f32(dec->head_normed, M, C), .targets = ag_vec_i32(dec->head_targets, M),
            .nll = ag_vec_f32(dec->head_nll, M), .w = &dec->o.model->head, .logit_scale = d->logit_scale,
            .softcap = d->logit_softcap, .dloss = (float)dloss, .compute = dec->o.compute}, err));
    /* Final norm, on the rows with a target only; d(head_x) is added to a cleared stream. */
    memset(dec->dx, 0, (size_t)(pass->T * C) * sizeof(float));
    float *dhead = dec->dnormed; /* free until the first layer's backward */
    memset(dhead, 0, (size_t)(M * C) * sizeof(float));
    AG_TRY(norm_backward(pass, dhead, grads ? grads->final_norm : NULL, dec->head_dnormed, dec->head_x, dec->o.model->final_norm,
                         dec->head_r, M, C, err));
    for (int64_t m = 0; m < M; m++) memcpy(dec->dx + dec->head_rows[m] * C, dhead + m * C, (size_t)C * sizeof(float));
    return AG_OK;
}

static ag_status embed_backward(const ag_pass *pass, const int32_t *ids, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    if (dec->o.grads && dec->o.grads->embed)
        AG_TRY(ag_grad_embed(&dec->be, ag_mat_f32(dec->o.grads->embed, d->V, d->C), ag_mat_f32(dec->dx, pass->T, d->C),
                             ag_vec_i32((int32_t *)ids, pass->T), d->embedding_scale, err));
    if (!dec->o.embed_lora) return AG_OK;
    const ag_embed_lora_args pair = embed_lora(pass, ids, dec->dx);
    return ag_embed_lora_bwd(&dec->be, &pair, err);
}

static ag_status backward(const ag_pass *pass, const int32_t *ids, int64_t M, double dloss, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const int64_t L = dec->o.model->d.L, lowest = lowest_trained_layer(dec);
    AG_TRY(head_backward(pass, M, dloss, err));
    for (int64_t l = L - 1; l >= lowest; l--) {
        if (dec->o.recompute && l < L - 1) { /* the last layer's products are still there */
            AG_TRY(attention_forward(pass, l, err));
            AG_TRY(gate_forward(pass, l, err));
            if (dec->o.model->d.has_post_norms) AG_TRY(down_forward(pass, l, dec->x_out, err)); /* for what its norm read */
        } else {
            AG_TRY(gate_again(pass, l, err));
        }
        AG_TRY(gate_backward(pass, l, err));
        AG_TRY(attention_backward(pass, l, l == lowest && !trains_embedding(dec), err));
    }
    return trains_embedding(dec) ? embed_backward(pass, ids, err) : AG_OK;
}

void ag_decoder_refresh(ag_decoder *dec) { dec->dora_is_fresh = false; }

/* The age of a whole batch, as transformers has it: by the largest position. */
static int64_t batch_age(const ag_decoder *dec, const ag_decoder_batch *batch)
{
    int64_t length = 0;
    for (int64_t t = 0; t < batch->T; t++) length = batch->positions[t] >= length ? batch->positions[t] + 1 : length;
    return ag_rope_age(&dec->o.model->d, length);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */
ag_status ag_decoder_train(ag_decoder *dec, const ag_decoder_batch *batch, double dloss, uint64_t dropout_call,
                           double *loss_sum, int64_t *n_targets, ag_err *err)
{
    AG_ASSERT(dec->o.train && batch->targets);
    const ag_pass pass = {.dec = dec, .T = batch->T, .positions = batch->positions, .spans = batch->spans,
                          .n_spans = batch->n_spans, .is_training = true, .dropout = dec->o.dropout > 0, .dropout_call = dropout_call,
                          .padded_length = batch->padded_length, .age = batch_age(dec, batch)};
    *loss_sum = 0;
    *n_targets = 0;
    bool has_target = false;
    for (int64_t t = 0; t < batch->T && !has_target; t++) has_target = batch->targets[t] >= 0;
    if (!has_target) return AG_OK;

    float *x;
    int64_t M;
    AG_TRY(forward(&pass, batch->ids, &x, err));
    AG_TRY(gather_targets(&pass, batch, x, &M, err));
    AG_TRY(head(&pass, M, dec->head_nll, NULL, dec->head_dnormed, dloss, err));
    for (int64_t m = 0; m < M; m++) *loss_sum += (double)dec->head_nll[m];
    *n_targets = M;
    if (!isfinite(*loss_sum))
        return ag_fail(err, AG_E_NUMERIC, "the loss is not a finite number: the weights hold NaN or infinity, or the learning "
                       "rate is too high; run `agoge check --model` on the base, or lower learning_rate");
    return backward(&pass, batch->ids, M, dloss, err);
}

ag_status ag_decoder_score(ag_decoder *dec, const ag_decoder_batch *batch, float *nll, int32_t *best, ag_err *err)
{
    AG_ASSERT(batch->targets);
    const ag_pass pass = {.dec = dec, .T = batch->T, .positions = batch->positions, .spans = batch->spans, .n_spans = batch->n_spans,
                          .age = batch_age(dec, batch)};
    float *x;
    int64_t M;
    AG_TRY(forward(&pass, batch->ids, &x, err));
    AG_TRY(gather_targets(&pass, batch, x, &M, err));
    if (M == 0) return AG_OK;
    return head(&pass, M, nll, best, NULL, 1, err);
}

static ag_status check_run(const ag_decoder *dec, const ag_decoder_run *run, ag_err *err)
{
    if (!run->lora || run->lora == dec->o.lora) return AG_OK;
    bool is_plain = !dec->dora;
    for (int64_t l = 0; l < dec->o.model->d.L; l++)
        for (int p = 0; p < AG_N_PROJ; p++) is_plain = is_plain && !run->lora[l].pair[p].is_dora;
    if (is_plain) return AG_OK;
    return ag_fail(err, AG_E_UNSUPPORTED, "an adapter with DoRA cannot share a call with others; merge it, or use it alone");
}

ag_status ag_decoder_infer(ag_decoder *dec, ag_kv_cache *cache, const ag_decoder_run *runs, int64_t n_runs, const int32_t *ids,
                           float *logits, ag_err *err)
{
    const ag_description *d = &dec->o.model->d;
    ag_attention_span spans[AG_KV_MAX_SLOTS];
    int64_t ages[AG_KV_MAX_SLOTS];
    const bool can_age = ag_rope_age(d, dec->o.max_positions) > 0; /* else there is no table for it */
    AG_ASSERT(n_runs >= 1 && n_runs <= AG_KV_MAX_SLOTS && (!logits || n_runs <= dec->o.max_targets));
    int64_t T = 0;
    for (int64_t i = 0; i < n_runs; i++) {
        const int64_t past = ag_kv_cache_length(cache, runs[i].slot), n = runs[i].n_new;
        AG_TRY(check_run(dec, &runs[i], err));
        if (past + n > ag_kv_cache_capacity(cache) || past + n > dec->o.max_positions)
            return ag_fail(err, AG_E_DATA, "the context is full: %lld tokens are there, %lld come, %lld fit; ask for a longer "
                           "context or a shorter text", (long long)past, (long long)n, (long long)ag_kv_cache_capacity(cache));
        spans[i] = (ag_attention_span){.q0 = T, .n_q = n, .kv0 = ag_kv_cache_first_row(cache, runs[i].slot), .n_kv = past + n};
        for (int64_t j = 0; j < n; j++) dec->positions[T + j] = (int32_t)(past + j);
        ages[i] = can_age ? ag_kv_cache_age(cache, d, runs[i].slot, n) : 0;
        T += n;
    }
    const ag_pass pass = {.dec = dec, .T = T, .positions = dec->positions, .spans = spans, .n_spans = n_runs, .cache = cache,
                          .runs = runs, .n_runs = n_runs, .ages = can_age ? ages : NULL};
    float *x;
    AG_TRY(forward(&pass, ids, &x, err));
    ag_kv_cache_advance(cache, runs, n_runs);
    if (!logits) return AG_OK;

    for (int64_t i = 0, end = 0; i < n_runs; i++) {
        end += runs[i].n_new;
        memcpy(dec->head_x + i * d->C, x + (end - 1) * d->C, (size_t)d->C * sizeof *x);
    }
    AG_TRY(norm(&pass, dec->head_normed, dec->head_r, dec->head_x, dec->o.model->final_norm, n_runs, err));
    AG_TRY(ag_linear_fwd(&dec->be, &(ag_linear_fwd_args){
        .y = {ag_mat_f32(logits, n_runs, d->V)}, .w = {&dec->o.model->head}, .n = 1, .scale = d->logit_scale,
        .x = ag_mat_f32(dec->head_normed, n_runs, d->C), .compute = dec->o.compute}, err));
    if (d->logit_softcap == 0) return AG_OK;
#pragma omp parallel for schedule(static) num_threads(dec->be.n_threads)
    for (int64_t i = 0; i < n_runs * d->V; i++) logits[i] = d->logit_softcap * tanhf(logits[i] / d->logit_softcap);
    return AG_OK;
}

int64_t ag_decoder_granule(const ag_decoder *dec)
{
    const ag_description *d = &dec->o.model->d;
    return ag_attention_granule(&dec->be, dec->o.compute, d->H, d->G, d->D);
}
