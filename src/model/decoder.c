#include "model/decoder_internal.h"

#include "base/num.h"
#include "ops/embed/embed.h"
#include "ops/head_ce/head_ce.h"
#include "ops/lora/lora.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
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
    if (o->train) place_backward(layout, dec);
}

static size_t scratch_bytes(const ag_decoder_options *o)
{
    const ag_description *d = &o->model->d;
    const ag_backend *be = o->backend;
    const int64_t T = o->max_tokens;
    size_t bytes = 0;
    for (int p = 0; p < AG_N_PROJ; p++) {
        int64_t N, K;
        ag_projection_size(&N, &K, d, p);
        bytes = max_size(bytes, ag_linear_scratch_bytes(be, T, K, N));
        for (int64_t l = 0; l < d->L; l++)
            if (lora_rank(o, l, p) > 0) bytes = max_size(bytes, ag_lora_scratch_bytes(be, T, K, N, lora_rank(o, l, p)));
    }
    bytes = max_size(bytes, ag_attention_scratch_bytes(be, T, o->longest_span, d->H, d->G, d->D));
    bytes = max_size(bytes, ag_head_ce_scratch_bytes(be, o->max_targets, d->C, d->V));
    return max_size(bytes, ag_linear_scratch_bytes(be, o->max_targets, d->C, d->V));
}

static void place_workspace(ag_layout *layout, ag_decoder *dec)
{
    const ag_decoder_options *o = &dec->o;
    const int64_t half = o->model->d.D / 2;
    dec->cos = place_floats(layout, o->max_positions * half);
    dec->sin = place_floats(layout, o->max_positions * half);
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

    const ag_description *d = &dec->o.model->d;
    double *freq = calloc((size_t)d->D / 2, sizeof *freq), mscale;
    if (!freq) ag_out_of_memory((size_t)d->D * sizeof *freq);
    ag_description_rope(freq, &mscale, d);
    ag_rope_table(dec->cos, dec->sin, freq, dec->o.max_positions, d->D, mscale);
    free(freq);
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
static ag_dropout dropout_of(const ag_pass *pass, int64_t l, int p)
{
    const ag_decoder *dec = pass->dec;
    return (ag_dropout){
        .p = pass->dropout ? dec->o.dropout : 0,
        .key = dec->o.dropout_key,
        .site = (pass->dropout_call * (uint64_t)dec->o.model->d.L + (uint64_t)l) * AG_N_PROJ + (uint64_t)p,
    };
}

static const ag_lora_view *view_of(const ag_layer_lora *lora, int64_t l, int p)
{
    const ag_lora_view *view = lora ? &lora[l].pair[p] : NULL;
    return view && view->R > 0 ? view : NULL;
}

static const ag_lora_view *lora_of(const ag_decoder *dec, int64_t l, int p) { return view_of(dec->o.lora, l, p); }

static bool is_residual(int p) { return p == AG_PROJ_O || p == AG_PROJ_DOWN; }

/* y += what a LoRA pair makes of x, for rows [row, row+n_rows) of the call. */
static ag_status add_lora(const ag_pass *pass, int64_t l, int p, const ag_lora_view *lora, int64_t row, int64_t n_rows, float *y,
                          const float *x, float scale, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_weight *w = &dec->o.model->layers[l].proj[p];
    return ag_lora_fwd(&dec->be, &(ag_lora_fwd_args){
        .y = ag_mat_f32(y + row * w->N, n_rows, w->N), .h = ag_mat_f32(dec->layers[l].h[p], n_rows, lora->R),
        .x = ag_mat_f32((float *)x + row * w->K, n_rows, w->K), .a = ag_mat_f32((float *)lora->a, lora->R, w->K),
        .b = ag_mat_f32((float *)lora->b, w->N, lora->R), .scale = lora->scale * scale, .dropout = dropout_of(pass, l, p),
        .compute = dec->o.compute}, err);
}

/* The same for runs that may bring adapters of their own. Neighbours share a call where they share an adapter, but never so that a
 * run's rows change sides of AG_LORA_FEW: its bits are those it has alone. */
static ag_status add_lora_of_runs(const ag_pass *pass, int64_t l, int p, float *y, const float *x, float scale, ag_err *err)
{
    for (int64_t i = 0, row = 0; i < pass->n_runs;) {
        const ag_layer_lora *lora = pass->runs[i].lora ? pass->runs[i].lora : pass->dec->o.lora;
        const bool few = pass->runs[i].n_new <= AG_LORA_FEW;
        int64_t n_rows = 0;
        do n_rows += pass->runs[i++].n_new;
        while (i < pass->n_runs && (pass->runs[i].lora ? pass->runs[i].lora : pass->dec->o.lora) == lora &&
               (pass->runs[i].n_new <= AG_LORA_FEW) == few && (!few || n_rows + pass->runs[i].n_new <= AG_LORA_FEW));
        const ag_lora_view *view = view_of(lora, l, p);
        if (view) AG_TRY(add_lora(pass, l, p, view, row, n_rows, y, x, scale, err));
        row += n_rows;
    }
    return AG_OK;
}

/* y_i (= or +=) projection p_i of x, with what its LoRA pair adds. The projections share x. */
static ag_status project(const ag_pass *pass, int64_t l, int n, const int *p, float *const *y, const float *x, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const ag_layer *layer = &dec->o.model->layers[l];
    const float scale = is_residual(p[0]) ? d->residual_scale : 1;
    ag_linear_fwd_args linear = {.n = n, .scale = scale, .accumulate = is_residual(p[0]), .compute = dec->o.compute};
    for (int i = 0; i < n; i++) {
        const ag_weight *w = &layer->proj[p[i]];
        linear.w[i] = w;
        linear.bias[i] = layer->bias[p[i]];
        linear.y[i] = ag_mat_f32(y[i], pass->T, w->N);
        linear.x = ag_mat_f32((float *)x, pass->T, w->K);
    }
    AG_TRY(ag_linear_fwd(&dec->be, &linear, err));
    for (int i = 0; i < n; i++) {
        if (pass->runs) {
            AG_TRY(add_lora_of_runs(pass, l, p[i], y[i], x, scale, err));
            continue;
        }
        const ag_lora_view *lora = lora_of(dec, l, p[i]);
        if (lora) AG_TRY(add_lora(pass, l, p[i], lora, 0, pass->T, y[i], x, scale, err));
    }
    return AG_OK;
}

/* dx = Σ_i dy_i · W_i plus the adapters' part, and the adapters' gradients. dx NULL: only the latter. */
static ag_status project_backward(const ag_pass *pass, int64_t l, int n, const int *p, float *dx, float *const *dy,
                                  const float *x, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_layer *layer = &dec->o.model->layers[l];
    const float scale = is_residual(p[0]) ? dec->o.model->d.residual_scale : 1;
    const int64_t K = layer->proj[p[0]].K;
    ag_linear_bwd_args linear = {.n = n, .scale = scale, .compute = dec->o.compute, .dx = ag_mat_f32(dx, pass->T, K)};
    for (int i = 0; i < n; i++) {
        linear.w[i] = &layer->proj[p[i]];
        linear.dy[i] = ag_mat_f32(dy[i], pass->T, linear.w[i]->N);
    }
    if (dx) AG_TRY(ag_linear_bwd(&dec->be, &linear, err));
    for (int i = 0; i < n; i++) {
        const ag_lora_view *lora = lora_of(dec, l, p[i]);
        if (!lora) continue;
        const ag_weight *w = linear.w[i];
        AG_TRY(ag_lora_bwd(&dec->be, &(ag_lora_bwd_args){
            .dx = linear.dx, .da = ag_mat_f32(lora->da, lora->R, K), .db = ag_mat_f32(lora->db, w->N, lora->R),
            .dy = linear.dy[i], .x = ag_mat_f32((float *)x, pass->T, K),
            .h = ag_mat_f32(dec->layers[l].h[p[i]], pass->T, lora->R),
            .a = ag_mat_f32((float *)lora->a, lora->R, K), .b = ag_mat_f32((float *)lora->b, w->N, lora->R),
            .scale = lora->scale * scale, .dropout = dropout_of(pass, l, p[i]), .compute = dec->o.compute}, err));
    }
    return AG_OK;
}

static ag_status norm(const ag_pass *pass, float *y, float *r, const float *x, const float *w, int64_t n_rows, ag_err *err)
{
    const ag_description *d = &pass->dec->o.model->d;
    return ag_rmsnorm_fwd(&pass->dec->be, &(ag_rmsnorm_fwd_args){
        .y = ag_mat_f32(y, n_rows, d->C), .r = ag_vec_f32(r, n_rows), .x = ag_mat_f32((float *)x, n_rows, d->C),
        .w = ag_vec_f32((float *)w, d->C), .eps = d->rms_eps}, err);
}

static ag_status rotate(const ag_pass *pass, float *x, int64_t n_heads, bool backward, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    return ag_rope(&dec->be, &(ag_rope_args){
        .x = ag_cube_f32(x, pass->T, n_heads, dec->o.model->d.D), .positions = ag_vec_i32((int32_t *)pass->positions, pass->T),
        .cos = dec->cos, .sin = dec->sin, .n_positions = dec->o.max_positions, .backward = backward}, err);
}

/* ---- forward ------------------------------------------------------------------------------------------------------ */
static const int QKV[] = {AG_PROJ_Q, AG_PROJ_K, AG_PROJ_V}, O[] = {AG_PROJ_O}, GATE_UP[] = {AG_PROJ_GATE, AG_PROJ_UP},
                 DOWN[] = {AG_PROJ_DOWN};

/* x_in → q, k, v, o and x_mid. With a cache, keys and values go there and attention reads all that is there. */
static ag_status attention_forward(const ag_pass *pass, int64_t l, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const ag_layer_acts *acts = &dec->layers[l];
    const int64_t T = pass->T;
    AG_TRY(norm(pass, dec->normed, dec->r, acts->x_in, dec->o.model->layers[l].attn_norm, T, err));
    AG_TRY(project(pass, l, 3, QKV, (float *const[]){acts->q, acts->k, acts->v}, dec->normed, err));
    AG_TRY(rotate(pass, acts->q, d->H, false, err));
    AG_TRY(rotate(pass, acts->k, d->G, false, err));

    float *k = acts->k, *v = acts->v;
    int64_t n_kv_rows = T;
    if (pass->cache) ag_kv_cache_append(pass->cache, l, pass->runs, pass->n_runs, &k, &v, &n_kv_rows);
    AG_TRY(ag_attention_fwd(&dec->be, &(ag_attention_fwd_args){
        .o = ag_cube_f32(acts->o, T, d->H, d->D), .lse = pass->cache ? (ag_tensor){0} : ag_mat_f32(acts->lse, T, d->H),
        .q = ag_cube_f32(acts->q, T, d->H, d->D), .k = ag_cube_f32(k, n_kv_rows, d->G, d->D),
        .v = ag_cube_f32(v, n_kv_rows, d->G, d->D), .spans = pass->spans, .n_spans = pass->n_spans,
        .window = d->sliding_window, .scale = d->attention_scale, .compute = dec->o.compute}, err));

    memcpy(acts->x_mid, acts->x_in, (size_t)(T * d->C) * sizeof(float));
    return project(pass, l, 1, O, &acts->x_mid, acts->o, err);
}

/* x_mid → gate, up and the gated product. */
static ag_status gate_forward(const ag_pass *pass, int64_t l, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const int64_t T = pass->T, F = dec->o.model->d.F;
    const ag_layer_acts *acts = &dec->layers[l];
    AG_TRY(norm(pass, dec->normed, dec->r, acts->x_mid, dec->o.model->layers[l].ffn_norm, T, err));
    AG_TRY(project(pass, l, 2, GATE_UP, (float *const[]){acts->gate, acts->up}, dec->normed, err));
    return ag_swiglu_fwd(&dec->be, &(ag_swiglu_fwd_args){.y = ag_mat_f32(dec->act, T, F), .gate = ag_mat_f32(acts->gate, T, F),
                                                         .up = ag_mat_f32(acts->up, T, F)}, err);
}

static ag_status layer_forward(const ag_pass *pass, int64_t l, float *x_out, ag_err *err)
{
    const ag_layer_acts *acts = &pass->dec->layers[l];
    AG_TRY(attention_forward(pass, l, err));
    AG_TRY(gate_forward(pass, l, err));
    memcpy(x_out, acts->x_mid, (size_t)(pass->T * pass->dec->o.model->d.C) * sizeof(float));
    return project(pass, l, 1, DOWN, &x_out, pass->dec->act, err);
}

/* All layers; the stream behind the last one is in *x. */
static ag_status forward(const ag_pass *pass, const int32_t *ids, float **x, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    AG_ASSERT(pass->T >= 1 && pass->T <= dec->o.max_tokens);
    AG_TRY(ag_embed(&dec->be, &(ag_embed_args){
        .x = ag_mat_f32(dec->layers[0].x_in, pass->T, d->C), .ids = ag_vec_i32((int32_t *)ids, pass->T),
        .w = &dec->o.model->embed, .scale = d->embedding_scale}, err));
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
        .dloss = (float)dloss, .compute = dec->o.compute}, err);
}

/* ---- backward: each step undoes the forward step of the same name ----------------------------------------------------- */
/* dec->dx is d(loss)/d(x_out) and becomes d(loss)/d(x_mid). The gate's inputs and products are there. */
static ag_status gate_backward(const ag_pass *pass, int64_t l, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const ag_layer_acts *acts = &dec->layers[l];
    const int64_t T = pass->T, F = d->F;
    AG_TRY(project_backward(pass, l, 1, DOWN, dec->dact, &dec->dx, dec->act, err));
    /* act has served; dup takes its place, dgate that of dact. */
    AG_TRY(ag_swiglu_bwd(&dec->be, &(ag_swiglu_bwd_args){
        .dgate = ag_mat_f32(dec->dact, T, F), .dup = ag_mat_f32(dec->act, T, F), .dy = ag_mat_f32(dec->dact, T, F),
        .gate = ag_mat_f32(acts->gate, T, F), .up = ag_mat_f32(acts->up, T, F)}, err));
    AG_TRY(project_backward(pass, l, 2, GATE_UP, dec->dnormed, (float *const[]){dec->dact, dec->act}, dec->normed, err));
    return ag_rmsnorm_bwd(&dec->be, &(ag_rmsnorm_bwd_args){
        .dx = ag_mat_f32(dec->dx, T, d->C), .dy = ag_mat_f32(dec->dnormed, T, d->C), .x = ag_mat_f32(acts->x_mid, T, d->C),
        .w = ag_vec_f32((float *)dec->o.model->layers[l].ffn_norm, d->C), .r = ag_vec_f32(dec->r, T)}, err);
}

/* dec->dx is d(loss)/d(x_mid) and becomes d(loss)/d(x_in), unless nothing below is trained. */
static ag_status attention_backward(const ag_pass *pass, int64_t l, bool is_lowest, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const ag_layer_acts *acts = &dec->layers[l];
    const int64_t T = pass->T;
    AG_TRY(project_backward(pass, l, 1, O, dec->d_o, &dec->dx, acts->o, err));
    AG_TRY(ag_attention_bwd(&dec->be, &(ag_attention_bwd_args){
        .dq = ag_cube_f32(dec->dq, T, d->H, d->D), .dk = ag_cube_f32(dec->dk, T, d->G, d->D),
        .dv = ag_cube_f32(dec->dv, T, d->G, d->D), .d_o = ag_cube_f32(dec->d_o, T, d->H, d->D),
        .o = ag_cube_f32(acts->o, T, d->H, d->D), .lse = ag_mat_f32(acts->lse, T, d->H),
        .q = ag_cube_f32(acts->q, T, d->H, d->D), .k = ag_cube_f32(acts->k, T, d->G, d->D),
        .v = ag_cube_f32(acts->v, T, d->G, d->D), .spans = pass->spans, .n_spans = pass->n_spans,
        .window = d->sliding_window, .scale = d->attention_scale, .compute = dec->o.compute}, err));
    AG_TRY(rotate(pass, dec->dq, d->H, true, err));
    AG_TRY(rotate(pass, dec->dk, d->G, true, err));

    AG_TRY(norm(pass, dec->normed, dec->r, acts->x_in, dec->o.model->layers[l].attn_norm, T, err));
    AG_TRY(project_backward(pass, l, 3, QKV, is_lowest ? NULL : dec->dnormed, (float *const[]){dec->dq, dec->dk, dec->dv},
                            dec->normed, err));
    if (is_lowest) return AG_OK;
    return ag_rmsnorm_bwd(&dec->be, &(ag_rmsnorm_bwd_args){
        .dx = ag_mat_f32(dec->dx, T, d->C), .dy = ag_mat_f32(dec->dnormed, T, d->C), .x = ag_mat_f32(acts->x_in, T, d->C),
        .w = ag_vec_f32((float *)dec->o.model->layers[l].attn_norm, d->C), .r = ag_vec_f32(dec->r, T)}, err);
}

/* The gated product and the normed input again, from what was kept. */
static ag_status gate_again(const ag_pass *pass, int64_t l, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const int64_t T = pass->T, F = dec->o.model->d.F;
    const ag_layer_acts *acts = &dec->layers[l];
    AG_TRY(norm(pass, dec->normed, dec->r, acts->x_mid, dec->o.model->layers[l].ffn_norm, T, err));
    return ag_swiglu_fwd(&dec->be, &(ag_swiglu_fwd_args){.y = ag_mat_f32(dec->act, T, F), .gate = ag_mat_f32(acts->gate, T, F),
                                                         .up = ag_mat_f32(acts->up, T, F)}, err);
}

static int64_t lowest_trained_layer(const ag_decoder *dec)
{
    const int64_t L = dec->o.model->d.L;
    for (int64_t l = 0; l < L; l++)
        for (int p = 0; p < AG_N_PROJ; p++)
            if (lora_of(dec, l, p)) return l;
    return L;
}

static ag_status backward(const ag_pass *pass, int64_t M, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const ag_description *d = &dec->o.model->d;
    const int64_t L = d->L, C = d->C;

    /* Final norm, on the rows with a target only; d(head_x) is added to a cleared stream. */
    memset(dec->dx, 0, (size_t)(pass->T * C) * sizeof(float));
    float *dhead = dec->dnormed; /* free until the first layer's backward */
    memset(dhead, 0, (size_t)(M * C) * sizeof(float));
    AG_TRY(ag_rmsnorm_bwd(&dec->be, &(ag_rmsnorm_bwd_args){
        .dx = ag_mat_f32(dhead, M, C), .dy = ag_mat_f32(dec->head_dnormed, M, C), .x = ag_mat_f32(dec->head_x, M, C),
        .w = ag_vec_f32((float *)dec->o.model->final_norm, C), .r = ag_vec_f32(dec->head_r, M)}, err));
    for (int64_t m = 0; m < M; m++) memcpy(dec->dx + dec->head_rows[m] * C, dhead + m * C, (size_t)C * sizeof(float));

    const int64_t lowest = lowest_trained_layer(dec);
    for (int64_t l = L - 1; l >= lowest; l--) {
        if (dec->o.recompute && l < L - 1) { /* the last layer's products are still there */
            AG_TRY(attention_forward(pass, l, err));
            AG_TRY(gate_forward(pass, l, err));
        } else {
            AG_TRY(gate_again(pass, l, err));
        }
        AG_TRY(gate_backward(pass, l, err));
        AG_TRY(attention_backward(pass, l, l == lowest, err));
    }
    return AG_OK;
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */
ag_status ag_decoder_train(ag_decoder *dec, const ag_decoder_batch *batch, double dloss, uint64_t dropout_call,
                           double *loss_sum, int64_t *n_targets, ag_err *err)
{
    AG_ASSERT(dec->o.train && batch->targets);
    const ag_pass pass = {.dec = dec, .T = batch->T, .positions = batch->positions, .spans = batch->spans,
                          .n_spans = batch->n_spans, .dropout = dec->o.dropout > 0, .dropout_call = dropout_call};
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
    return backward(&pass, M, err);
}

ag_status ag_decoder_score(ag_decoder *dec, const ag_decoder_batch *batch, float *nll, int32_t *best, ag_err *err)
{
    AG_ASSERT(batch->targets);
    const ag_pass pass = {.dec = dec, .T = batch->T, .positions = batch->positions, .spans = batch->spans, .n_spans = batch->n_spans};
    float *x;
    int64_t M;
    AG_TRY(forward(&pass, batch->ids, &x, err));
    AG_TRY(gather_targets(&pass, batch, x, &M, err));
    if (M == 0) return AG_OK;
    return head(&pass, M, nll, best, NULL, 1, err);
}

ag_status ag_decoder_infer(ag_decoder *dec, ag_kv_cache *cache, const ag_decoder_run *runs, int64_t n_runs, const int32_t *ids,
                           float *logits, ag_err *err)
{
    const ag_description *d = &dec->o.model->d;
    ag_attention_span spans[AG_KV_MAX_SLOTS];
    AG_ASSERT(n_runs >= 1 && n_runs <= AG_KV_MAX_SLOTS && (!logits || n_runs <= dec->o.max_targets));
    int64_t T = 0;
    for (int64_t i = 0; i < n_runs; i++) {
        const int64_t past = ag_kv_cache_length(cache, runs[i].slot), n = runs[i].n_new;
        if (past + n > ag_kv_cache_capacity(cache) || past + n > dec->o.max_positions)
            return ag_fail(err, AG_E_DATA, "the context is full: %lld tokens are there, %lld come, %lld fit; ask for a longer "
                           "context or a shorter text", (long long)past, (long long)n, (long long)ag_kv_cache_capacity(cache));
        spans[i] = (ag_attention_span){.q0 = T, .n_q = n, .kv0 = ag_kv_cache_first_row(cache, runs[i].slot), .n_kv = past + n};
        for (int64_t j = 0; j < n; j++) dec->positions[T + j] = (int32_t)(past + j);
        T += n;
    }
    const ag_pass pass = {.dec = dec, .T = T, .positions = dec->positions, .spans = spans, .n_spans = n_runs, .cache = cache,
                          .runs = runs, .n_runs = n_runs};
    float *x;
    AG_TRY(forward(&pass, ids, &x, err));
    ag_kv_cache_advance(cache, runs, n_runs);
    if (!logits) return AG_OK;

    for (int64_t i = 0, end = 0; i < n_runs; i++) {
        end += runs[i].n_new;
        memcpy(dec->head_x + i * d->C, x + (end - 1) * d->C, (size_t)d->C * sizeof *x);
    }
    AG_TRY(norm(&pass, dec->head_normed, dec->head_r, dec->head_x, dec->o.model->final_norm, n_runs, err));
    return ag_linear_fwd(&dec->be, &(ag_linear_fwd_args){
        .y = {ag_mat_f32(logits, n_runs, d->V)}, .w = {&dec->o.model->head}, .n = 1, .scale = d->logit_scale,
        .x = ag_mat_f32(dec->head_normed, n_runs, d->C), .compute = dec->o.compute}, err);
}

int64_t ag_decoder_granule(const ag_decoder *dec)
{
    const ag_description *d = &dec->o.model->d;
    return ag_attention_granule(&dec->be, dec->o.compute, d->H, d->G, d->D);
}
