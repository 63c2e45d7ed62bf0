/* A layer's projections with what is trained beside them or in them: LoRA, DoRA, biases, whole matrices. */
#include "model/decoder_internal.h"

#include "ops/dora/dora.h"
#include "ops/grad/grad.h"
#include "ops/lora/lora.h"

#include <string.h>

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

/* ---- memory ---------------------------------------------------------------------------------------------------------- */
static const ag_lora_view *view_of(const ag_layer_lora *lora, int64_t l, int p)
{
    const ag_lora_view *view = lora ? &lora[l].pair[p] : NULL;
    return view && view->R > 0 ? view : NULL;
}

const ag_lora_view *ag_decoder_lora_of(const ag_decoder *dec, int64_t l, int p) { return view_of(dec->o.lora, l, p); }

static bool has_dora(const ag_decoder_options *o, int p)
{
    for (int64_t l = 0; l < o->model->d.L; l++) {
        const ag_lora_view *lora = view_of(o->lora, l, p);
        if (lora && lora->is_dora) return true;
    }
    return false;
}

void ag_decoder_place_dora(ag_layout *layout, ag_decoder *dec)
{
    const ag_decoder_options *o = &dec->o;
    const ag_description *d = &o->model->d;
    int64_t widest_n = 0, widest_k = 0;
    for (int p = 0; p < AG_N_PROJ; p++) {
        int64_t N, K;
        ag_projection_size(&N, &K, d, (ag_projection)p);
        if (!has_dora(o, p)) continue;
        widest_n = N > widest_n ? N : widest_n;
        widest_k = K > widest_k ? K : widest_k;
    }
    if (widest_n == 0) return;
    dec->dora = ag_layout_place(layout, (size_t)d->L * AG_N_PROJ * sizeof *dec->dora);
    for (int64_t l = 0; l < d->L; l++)
        for (int p = 0; p < AG_N_PROJ; p++) {
            const ag_lora_view *lora = view_of(o->lora, l, p);
            int64_t N, K;
            if (!lora || !lora->is_dora) continue;
            ag_projection_size(&N, &K, d, (ag_projection)p);
            const ag_dora_rows rows = {ag_layout_place(layout, (size_t)N * sizeof(float)), ag_layout_place(layout, (size_t)N * sizeof(float))};
            if (dec->dora) dec->dora[l * AG_N_PROJ + p] = rows;
        }
    dec->dora_z = ag_layout_place(layout, (size_t)(o->max_tokens * widest_n) * sizeof(float));
    if (o->train && o->dropout > 0) dec->dora_x = ag_layout_place(layout, (size_t)(o->max_tokens * widest_k) * sizeof(float));
}

size_t ag_decoder_project_scratch_bytes(const ag_decoder_options *o)
{
    const ag_backend *be = o->backend;
    const int64_t T = o->max_tokens;
    size_t bytes = 0;
    for (int p = 0; p < AG_N_PROJ; p++) {
        int64_t N, K;
        ag_projection_size(&N, &K, &o->model->d, (ag_projection)p);
        bytes = max_size(bytes, ag_linear_scratch_bytes(be, T, K, N));
        for (int64_t l = 0; l < o->model->d.L; l++) {
            const ag_lora_view *lora = view_of(o->lora, l, p);
            const int64_t R = lora && lora->R > o->max_run_rank ? lora->R : o->max_run_rank;
            if (R > 0) bytes = max_size(bytes, ag_lora_scratch_bytes(be, T, K, N, R));
            if (lora && lora->is_dora) bytes = max_size(bytes, ag_dora_scratch_bytes(be, K, N, lora->R));
            if (o->grads && o->grads->layers && o->grads->layers[l].proj[p])
                bytes = max_size(bytes, ag_grad_weight_scratch_bytes(be, T, K, N));
        }
    }
    return bytes;
}

/* ---- one projection's numbers ------------------------------------------------------------------------------------------ */
typedef struct {
    const ag_pass *pass;
    ag_decoder *dec;
    int64_t l;
    int p;
    const ag_weight *w;
    const float *bias;
    const ag_lora_view *lora; /* or NULL */
    float scale;              /* of what the projection gives: the residual multiplier behind o and down */
    ag_dropout dropout;
} unit;

/* Whether a projection's result joins the stream as it is, scaled: behind a norm it does not. */
static bool is_residual(const ag_decoder *dec, int p) { return (p == AG_PROJ_O || p == AG_PROJ_DOWN) && !dec->o.model->d.has_post_norms; }

static unit unit_of(const ag_pass *pass, int64_t l, int p)
{
    ag_decoder *dec = pass->dec;
    const ag_layer *layer = &dec->o.model->layers[l];
    return (unit){
        .pass = pass, .dec = dec, .l = l, .p = p, .w = &layer->proj[p], .bias = layer->bias[p], .lora = view_of(dec->o.lora, l, p),
        .scale = is_residual(dec, p) ? dec->o.model->d.residual_scale : 1,
        .dropout = {.p = pass->dropout ? dec->o.dropout : 0, .key = dec->o.dropout_key,
                    .site = (pass->dropout_call * (uint64_t)dec->o.model->d.L + (uint64_t)l) * AG_N_PROJ + (uint64_t)dec->site[p]}};
}

static bool is_dora(const unit *u) { return u->lora && u->lora->is_dora; }
static bool drops(const unit *u) { return u->dropout.p > 0; }
static ag_tensor y_of(const unit *u, float *y) { return ag_mat_f32(y, u->pass->T, u->w->N); }
static ag_tensor x_of(const unit *u, const float *x) { return ag_mat_f32((float *)x, u->pass->T, u->w->K); }
static ag_tensor a_of(const unit *u) { return ag_mat_f32((float *)u->lora->a, u->lora->R, u->w->K); }
static ag_tensor b_of(const unit *u) { return ag_mat_f32((float *)u->lora->b, u->w->N, u->lora->R); }
static ag_tensor h_of(const unit *u) { return ag_mat_f32(u->dec->layers[u->l].h[u->p], u->pass->T, u->lora->R); }
static const ag_dora_rows *rows_of(const unit *u) { return &u->dec->dora[u->l * AG_N_PROJ + u->p]; }

static ag_status multiply(const unit *u, float *y, const float *x, bool accumulate, float scale, const float *bias, ag_err *err)
{
    return ag_linear_fwd(&u->dec->be, &(ag_linear_fwd_args){.y = {y_of(u, y)}, .w = {u->w}, .bias = {bias}, .n = 1, .accumulate = accumulate,
                                                            .scale = scale, .x = x_of(u, x), .compute = u->dec->o.compute}, err);
}

/* y += what a LoRA pair makes of x, for rows [row, row+n_rows) of the call. */
static ag_status add_rows(const unit *u, const ag_lora_view *lora, int64_t row, int64_t n_rows, float *y, const float *x, float scale,
                          ag_err *err)
{
    const int64_t N = u->w->N, K = u->w->K;
    return ag_lora_fwd(&u->dec->be, &(ag_lora_fwd_args){
        .y = ag_mat_f32(y + row * N, n_rows, N), .h = ag_mat_f32(u->dec->layers[u->l].h[u->p], n_rows, lora->R),
        .x = ag_mat_f32((float *)x + row * K, n_rows, K), .a = ag_mat_f32((float *)lora->a, lora->R, K),
        .b = ag_mat_f32((float *)lora->b, N, lora->R), .scale = lora->scale * scale, .dropout = u->dropout,
        .compute = u->dec->o.compute}, err);
}

/* The same for runs that may bring adapters of their own. Neighbours share a call where they share an adapter, but never so that a
 * run's rows change sides of AG_LORA_FEW: its bits are those it has alone. */
static ag_status add_rows_of_runs(const unit *u, float *y, const float *x, float scale, ag_err *err)
{
    const ag_pass *pass = u->pass;
    const ag_layer_lora *own = u->dec->o.lora;
    for (int64_t i = 0, row = 0; i < pass->n_runs;) {
        const ag_layer_lora *lora = pass->runs[i].lora ? pass->runs[i].lora : own;
        const bool few = pass->runs[i].n_new <= AG_LORA_FEW;
        int64_t n_rows = 0;
        do n_rows += pass->runs[i++].n_new;
        while (i < pass->n_runs && (pass->runs[i].lora ? pass->runs[i].lora : own) == lora &&
               (pass->runs[i].n_new <= AG_LORA_FEW) == few && (!few || n_rows + pass->runs[i].n_new <= AG_LORA_FEW));
        const ag_lora_view *view = view_of(lora, u->l, u->p);
        if (view) AG_TRY(add_rows(u, view, row, n_rows, y, x, scale, err));
        row += n_rows;
    }
    return AG_OK;
}

static ag_status add_lora(const unit *u, float *y, const float *x, float scale, ag_err *err)
{
    if (u->pass->runs) return add_rows_of_runs(u, y, x, scale, err);
    return u->lora ? add_rows(u, u->lora, 0, u->pass->T, y, x, scale, err) : AG_OK;
}

static ag_status lora_backward(const unit *u, float *dx, float *dy, const float *x, float scale, ag_err *err)
{
    const int64_t R = u->lora->R;
    return ag_lora_bwd(&u->dec->be, &(ag_lora_bwd_args){
        .dx = x_of(u, dx), .da = ag_mat_f32(u->lora->da, R, u->w->K), .db = ag_mat_f32(u->lora->db, u->w->N, R), .dy = y_of(u, dy),
        .x = x_of(u, x), .h = h_of(u), .a = a_of(u), .b = b_of(u), .scale = u->lora->scale * scale, .dropout = u->dropout,
        .compute = u->dec->o.compute}, err);
}

/* out = drop(x), or += ; the mask that the LoRA op of this unit uses. */
static void drop(const unit *u, float *out, const float *x, bool accumulate)
{
    const int64_t n = u->pass->T * u->w->K;
    const float kept = ag_dropout_scale(&u->dropout);
    const ag_dropout dropout = u->dropout;
#pragma omp parallel for schedule(static) num_threads(u->dec->be.n_threads)
    for (int64_t i = 0; i < n; i++) {
        const float y = ag_dropout_keeps(&dropout, (uint64_t)i) ? x[i] * kept : 0;
        out[i] = accumulate ? out[i] + y : y;
    }
}

/* ---- DoRA -------------------------------------------------------------------------------------------------------------- */
ag_status ag_decoder_make_dora(ag_decoder *dec, ag_err *err)
{
    if (!dec->dora || dec->dora_is_fresh) return AG_OK;
    const ag_pass pass = {.dec = dec};
    for (int64_t l = 0; l < dec->o.model->d.L; l++)
        for (int p = 0; p < AG_N_PROJ; p++) {
            const unit u = unit_of(&pass, l, p);
            if (!is_dora(&u)) continue;
            const int64_t N = u.w->N;
            const ag_status status = ag_dora_gain(&dec->be, &(ag_dora_gain_args){
                .norm = ag_vec_f32(rows_of(&u)->norm, N), .gain = ag_vec_f32(rows_of(&u)->gain, N),
                .magnitude = ag_vec_f32((float *)u.lora->magnitude, N), .a = a_of(&u), .b = b_of(&u), .w = u.w,
                .scale = u.lora->scale}, err);
            if (status) {
                (void)ag_err_prefix(err, "model.layers.%lld.%s", (long long)l, ag_projection_path((ag_projection)p));
                return status;
            }
        }
    dec->dora_is_fresh = true;
    return AG_OK;
}

/* z = W·drop(x) + s·B·A·drop(x) into dec->dora_z; `minus`, where not NULL, loses ρ·W·drop(x) on the way: with dropout PEFT leaves the
 * plain product W·x in place and puts the scaled sum in place of W·drop(x). */
static ag_status dora_z(const unit *u, float *minus, const float *x, ag_err *err)
{
    ag_decoder *dec = u->dec;
    const float *input = x;
    if (drops(u)) {
        drop(u, dec->dora_x, x, false);
        input = dec->dora_x;
    }
    AG_TRY(multiply(u, dec->dora_z, input, false, 1, NULL, err));
    if (minus)
        AG_TRY(ag_dora_fwd(&dec->be, &(ag_dora_fwd_args){.y = y_of(u, minus), .z = y_of(u, dec->dora_z), .scale = -u->scale,
                                                         .accumulate = true}, err));
    return add_lora(u, dec->dora_z, x, 1, err);
}

/* Without dropout  y = ρ·(g ⊙ z + bias);  with it  y = ρ·(W·x + bias) - ρ·W·drop(x) + ρ·g ⊙ z.  (y =, or += behind o and down) */
static ag_status dora_forward(const unit *u, float *y, const float *x, ag_err *err)
{
    const bool adds = is_residual(u->dec, u->p);
    if (drops(u)) AG_TRY(multiply(u, y, x, adds, u->scale, NULL, err));
    AG_TRY(dora_z(u, drops(u) ? y : NULL, x, err));
    return ag_dora_fwd(&u->dec->be, &(ag_dora_fwd_args){.y = y_of(u, y), .z = y_of(u, u->dec->dora_z), .gain = rows_of(u)->gain,
                                                        .bias = u->bias, .scale = u->scale, .accumulate = adds || drops(u)}, err);
}

static ag_status product_backward(const unit *u, float *dx, float *dy, bool accumulate, float scale, ag_err *err)
{
    return ag_linear_bwd(&u->dec->be, &(ag_linear_bwd_args){.dx = x_of(u, dx), .dy = {y_of(u, dy)}, .w = {u->w}, .n = 1,
                                                            .accumulate = accumulate, .scale = scale, .compute = u->dec->o.compute}, err);
}

/* dz = ρ·g ⊙ dy. The product's part of dx: Wᵀ·dz; with dropout Wᵀ·ρ·dy + drop(Wᵀ·(dz - ρ·dy)). */
static ag_status dora_backward(const unit *u, float *dx, bool accumulate, float *dy, const float *x, ag_err *err)
{
    ag_decoder *dec = u->dec;
    const ag_tensor z = y_of(u, dec->dora_z);
    AG_TRY(dora_z(u, NULL, x, err));
    AG_TRY(ag_dora_bwd(&dec->be, &(ag_dora_bwd_args){.dz = z, .dmagnitude = ag_vec_f32(u->lora->dmagnitude, u->w->N), .dy = y_of(u, dy),
                                                     .z = z, .gain = rows_of(u)->gain, .norm = rows_of(u)->norm, .scale = u->scale}, err));
    if (dx && drops(u)) {
        AG_TRY(product_backward(u, dx, dy, accumulate, u->scale, err));
        AG_TRY(lora_backward(u, dx, dec->dora_z, x, 1, err));
        AG_TRY(ag_dora_fwd(&dec->be, &(ag_dora_fwd_args){.y = z, .z = y_of(u, dy), .scale = -u->scale, .accumulate = true}, err));
        AG_TRY(product_backward(u, dec->dora_x, dec->dora_z, false, 1, err));
        drop(u, dx, dec->dora_x, true);
        return AG_OK;
    }
    if (dx) AG_TRY(product_backward(u, dx, dec->dora_z, accumulate, 1, err));
    return lora_backward(u, dx, dec->dora_z, x, 1, err);
}

/* ---- forward and backward --------------------------------------------------------------------------------------------------- */
/* Behind o and down the bias is multiplied, too: ρ·(W·x + bias). The linear op scales its product only. */
static void add_bias(const unit *u, float *y)
{
    const int64_t T = u->pass->T, N = u->w->N;
    const float *bias = u->bias;
    const float scale = u->scale;
#pragma omp parallel for schedule(static) num_threads(u->dec->be.n_threads)
    for (int64_t t = 0; t < T; t++)
        for (int64_t n = 0; n < N; n++) y[t * N + n] += scale * bias[n];
}

ag_status ag_decoder_project(const ag_pass *pass, int64_t l, int n, const int *p, float *const *y, const float *x, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    unit u[AG_LINEAR_MAX];
    ag_linear_fwd_args linear = {.accumulate = is_residual(dec, p[0]), .compute = dec->o.compute};
    for (int i = 0; i < n; i++) {
        u[i] = unit_of(pass, l, p[i]);
        if (is_dora(&u[i])) continue;
        linear.w[linear.n] = u[i].w;
        linear.bias[linear.n] = u[i].scale == 1 ? u[i].bias : NULL;
        linear.y[linear.n++] = y_of(&u[i], y[i]);
        linear.x = x_of(&u[i], x);
        linear.scale = u[i].scale;
    }
    if (linear.n > 0) AG_TRY(ag_linear_fwd(&dec->be, &linear, err));
    for (int i = 0; i < n; i++) {
        if (is_dora(&u[i])) {
            AG_TRY(dora_forward(&u[i], y[i], x, err));
            continue;
        }
        if (u[i].bias && u[i].scale != 1) add_bias(&u[i], y[i]);
        AG_TRY(add_lora(&u[i], y[i], x, u[i].scale, err));
    }
    return AG_OK;
}

static ag_status own_gradients(const unit *u, float *dy, const float *x, ag_err *err)
{
    const ag_layer_grads *grads = ag_decoder_grads_of(u->dec, u->l);
    if (!grads) return AG_OK;
    if (grads->bias[u->p])
        AG_TRY(ag_grad_bias(&u->dec->be, ag_vec_f32(grads->bias[u->p], u->w->N), y_of(u, dy), u->scale, err));
    if (!grads->proj[u->p]) return AG_OK;
    return ag_grad_weight(&u->dec->be, &(ag_grad_weight_args){.dw = ag_mat_f32(grads->proj[u->p], u->w->N, u->w->K), .dy = y_of(u, dy),
                                                              .x = x_of(u, x), .scale = u->scale, .compute = u->dec->o.compute}, err);
}

ag_status ag_decoder_project_backward(const ag_pass *pass, int64_t l, int n, const int *p, float *dx, float *const *dy, const float *x,
                                      ag_err *err)
{
    ag_decoder *dec = pass->dec;
    unit u[AG_LINEAR_MAX];
    ag_linear_bwd_args linear = {.compute = dec->o.compute};
    for (int i = 0; i < n; i++) {
        u[i] = unit_of(pass, l, p[i]);
        AG_TRY(own_gradients(&u[i], dy[i], x, err));
        if (is_dora(&u[i])) continue;
        linear.w[linear.n] = u[i].w;
        linear.dy[linear.n++] = y_of(&u[i], dy[i]);
        linear.dx = x_of(&u[i], dx);
        linear.scale = u[i].scale;
    }
    if (dx && linear.n > 0) AG_TRY(ag_linear_bwd(&dec->be, &linear, err));
    bool is_begun = linear.n > 0;
    for (int i = 0; i < n; i++) {
        if (is_dora(&u[i])) {
            AG_TRY(dora_backward(&u[i], dx, is_begun, dy[i], x, err));
            is_begun = true;
        } else if (u[i].lora) {
            AG_TRY(lora_backward(&u[i], dx, dy[i], x, u[i].scale, err));
        }
    }
    return AG_OK;
}
