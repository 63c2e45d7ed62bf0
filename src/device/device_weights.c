#include "device/device_weights.h"

#include "base/num.h"
#include "ops/rope/rope.h"

#include <stdlib.h>
#include <string.h>

enum { NF4_BLOCK = 64, NESTED_BLOCK = 256, HEAD_DIM_STEP = 16, MAX_HEAD_DIM = 128, WIDTH_STEP = 8, MAP_VALUES = 256 };

/* ---- what the ops can do ----------------------------------------------------------------------------------------------------- */
static ag_status refuse(ag_err *err, const char *what)
{
    return ag_fail(err, AG_E_UNSUPPORTED, "the device cannot train this model: %s; train it with --device cpu", what);
}

ag_status ag_device_weights_check(const ag_model *model, int64_t max_positions, ag_err *err)
{
    const ag_description *d = &model->d;
    if ((d->has_bias[AG_PROJ_O] || d->has_bias[AG_PROJ_DOWN]) && d->residual_scale != 1) return refuse(err, "it scales what joins the stream, biases with it");
    if (d->gate != AG_GATE_SILU) return refuse(err, "its gate is not SiLU");
    if (d->has_post_norms) return refuse(err, "it has norms behind its sublayers");
    if (d->attention_softcap > 0 || d->logit_softcap > 0) return refuse(err, "it has softcaps");
    if (d->rope_local_theta > 0) return refuse(err, "some of its layers have a rope of their own");
    if (ag_rope_age(d, max_positions) > 0) return refuse(err, "its rope scaling changes with the length of a row");
    if (ag_rope_dims(d) != d->D) return refuse(err, "its rope turns a part of each head alone");
    if (d->D % HEAD_DIM_STEP || d->D > MAX_HEAD_DIM) return refuse(err, "its head dim is not a multiple of 16, or is over 128");
    if (d->C % WIDTH_STEP || d->F % WIDTH_STEP) return refuse(err, "its widths are no multiples of 8");
    return AG_OK;
}

bool ag_device_weight_is_nf4(const ag_weight *w, bool as_nf4)
{
    if (w->K % NF4_BLOCK) return false;
    return w->type == AG_W_NF4 ? w->first % NF4_BLOCK == 0 && w->rope_pairs_head_dim == 0 : as_nf4;
}

/* ---- layout -------------------------------------------------------------------------------------------------------------------- */
static int64_t blocks_of(const ag_weight *w) { return w->N * w->K / NF4_BLOCK; }
/* A slice's nested blocks do not begin where the matrix's do: its scales are taken as f32. */
static bool keeps_double(const ag_weight *w) { return w->absmax_q && w->first == 0; }

static void place_projection(ag_layout *l, ag_device_projection *p, const ag_weight *w, bool has_bias, bool as_nf4)
{
    p->N = w->N;
    p->K = w->K;
    p->is_nf4 = ag_device_weight_is_nf4(w, as_nf4);
    if (p->is_nf4) {
        const size_t n_blocks = (size_t)blocks_of(w);
        p->nf4.packed = ag_layout_place(l, n_blocks * NF4_BLOCK / 2);
        if (keeps_double(w) || w->type != AG_W_NF4) {
            p->nf4.absmax_q = ag_layout_place(l, n_blocks);
            p->nf4.nested_absmax = ag_layout_place(l, (n_blocks + NESTED_BLOCK - 1) / NESTED_BLOCK * sizeof(float));
        } else {
            p->nf4.absmax = ag_layout_place(l, n_blocks * sizeof(float));
        }
    } else {
        p->dense = ag_layout_place(l, (size_t)(w->N * w->K) * sizeof(bkl_bf16));
    }
    if (has_bias) p->bias = ag_layout_place(l, (size_t)w->N * sizeof(float));
}

static void place(ag_layout *l, ag_device_weights *out, const ag_model *model, int64_t max_positions, bool as_nf4)
{
    const ag_description *d = &model->d;
    const size_t table = (size_t)(d->V * d->C) * sizeof(bkl_bf16), rope = (size_t)(max_positions * (d->D / 2)) * sizeof(float);
    out->embed = ag_layout_place(l, table);
    out->head = model->head.data == model->embed.data ? out->embed : ag_layout_place(l, table);
    out->final_norm = ag_layout_place(l, (size_t)d->C * sizeof(float));
    out->cos = ag_layout_place(l, rope);
    out->sin = ag_layout_place(l, rope);
    out->map = ag_layout_place(l, MAP_VALUES * sizeof(float));
    ag_device_layer unused = {0};
    for (int64_t i = 0; i < d->L; i++) {
        ag_device_layer *layer = out->layers ? &out->layers[i] : &unused;
        for (int p = 0; p < AG_N_PROJ; p++)
            place_projection(l, &layer->proj[p], &model->layers[i].proj[p], model->layers[i].bias[p] != NULL, as_nf4);
        for (int n = 0; n < AG_N_NORMS; n++)
            if (model->layers[i].norm[n]) layer->norm[n] = ag_layout_place(l, (size_t)ag_norm_width(d, (ag_norm)n) * sizeof(float));
    }
}

size_t ag_device_weights_plan(const ag_model *model, int64_t max_positions, bool as_nf4)
{
    ag_layout layout = {0};
    ag_device_weights w = {0};
    place(&layout, &w, model, max_positions, as_nf4);
    return layout.bytes;
}

/* ---- loading --------------------------------------------------------------------------------------------------------------------- */
typedef struct {
    const ag_device *device;
    void *room; /* on the host, for what is converted on the way */
    size_t room_bytes;
    ag_err *err;
} loader;

static ag_status put(const loader *l, const void *to, const void *from, size_t bytes)
{
    AG_TRY(ag_device_check(l->device, l->device->bkl->copy_in(l->device->stream, (void *)(uintptr_t)to, from, bytes), "copying weights", l->err));
    return ag_device_check(l->device, l->device->bkl->synchronize(l->device->stream), "copying weights", l->err);
}

/* Rows as bf16, as many at a time as the room holds. */
static ag_status put_rows(const loader *l, bkl_bf16 *to, const ag_weight *w)
{
    bkl_bf16 *rows = l->room;
    float *row = (float *)((char *)l->room + l->room_bytes) - w->K;
    const int64_t n_fit = (int64_t)((l->room_bytes - (size_t)w->K * sizeof *row) / ((size_t)w->K * sizeof *rows));
    for (int64_t n = 0; n < w->N; n += n_fit) {
        const int64_t m = n + n_fit < w->N ? n_fit : w->N - n;
        for (int64_t i = 0; i < m; i++) {
            ag_weight_row(row, w, n + i, 0, w->K);
            for (int64_t k = 0; k < w->K; k++) rows[i * w->K + k] = ag_f32_to_bf16(row[k]);
        }
        AG_TRY(put(l, to + n * w->K, rows, (size_t)(m * w->K) * sizeof *rows));
    }
    return AG_OK;
}

/* The scales of a slice in f32: absmax itself, or what double quantization made of it. */
static ag_status put_slice_scales(const loader *l, const float *to, const ag_weight *w)
{
    float *scales = l->room;
    const int64_t n = blocks_of(w), first = w->first / NF4_BLOCK, n_fit = (int64_t)(l->room_bytes / sizeof *scales);
    const float *map = ag_dynamic_map_signed();
    for (int64_t b = 0; b < n; b += n_fit) {
        const int64_t m = b + n_fit < n ? n_fit : n - b;
        for (int64_t i = 0; i < m; i++) {
            const int64_t at = first + b + i;
            scales[i] = w->absmax ? w->absmax[at] : map[w->absmax_q[at]] * w->nested_absmax[at / NESTED_BLOCK] + w->offset;
        }
        AG_TRY(put(l, to + b, scales, (size_t)m * sizeof *scales));
    }
    return AG_OK;
}

static ag_status put_projection(const loader *l, ag_device_projection *p, const ag_weight *w, const float *bias, const float *map)
{
    if (bias) AG_TRY(put(l, p->bias, bias, (size_t)w->N * sizeof(float)));
    if (!p->is_nf4) return put_rows(l, p->dense, w);
    const int64_t n_blocks = blocks_of(w);
    p->nf4.N = w->N;
    p->nf4.K = w->K;
    p->nf4.map = map;
    p->nf4.offset = w->offset;
    AG_TRY(put(l, p->nf4.packed, (const uint8_t *)w->data + w->first / 2, (size_t)n_blocks * NF4_BLOCK / 2));
    if (!keeps_double(w)) return put_slice_scales(l, p->nf4.absmax, w);
    AG_TRY(put(l, p->nf4.absmax_q, w->absmax_q, (size_t)n_blocks));
    return put(l, p->nf4.nested_absmax, w->nested_absmax, (size_t)((n_blocks + NESTED_BLOCK - 1) / NESTED_BLOCK) * sizeof(float));
}

static ag_status put_rope(const loader *l, const ag_device_weights *out, const ag_description *d, int64_t max_positions)
{
    const size_t n = (size_t)(max_positions * (d->D / 2));
    float *tables = malloc(2 * n * sizeof *tables);
    double *freq = malloc((size_t)d->D / 2 * sizeof *freq), mscale;
    if (!tables || !freq) ag_out_of_memory(2 * n * sizeof *tables);
    ag_description_rope(freq, &mscale, d, 0);
    ag_rope_table(tables, tables + n, freq, max_positions, d->D, mscale);
    ag_status status = put(l, out->cos, tables, n * sizeof(float));
    if (!status) status = put(l, out->sin, tables + n, n * sizeof(float));
    free(tables);
    free(freq);
    return status;
}

static ag_status put_all(const loader *l, ag_device_weights *out, const ag_model *model, int64_t max_positions)
{
    const ag_description *d = &model->d;
    AG_TRY(put_rows(l, out->embed, &model->embed));
    if (out->head != out->embed) AG_TRY(put_rows(l, out->head, &model->head));
    AG_TRY(put(l, out->final_norm, model->final_norm, (size_t)d->C * sizeof(float)));
    AG_TRY(put(l, out->map, ag_dynamic_map_signed(), MAP_VALUES * sizeof(float)));
    AG_TRY(put_rope(l, out, d, max_positions));
    for (int64_t i = 0; i < d->L; i++) {
        const ag_layer *from = &model->layers[i];
        for (int p = 0; p < AG_N_PROJ; p++) AG_TRY(put_projection(l, &out->layers[i].proj[p], &from->proj[p], from->bias[p], out->map));
        for (int n = 0; n < AG_N_NORMS; n++)
            if (from->norm[n]) AG_TRY(put(l, out->layers[i].norm[n], from->norm[n], (size_t)ag_norm_width(d, (ag_norm)n) * sizeof(float)));
    }
    return AG_OK;
}

ag_status ag_device_weights_load(ag_device_weights *out, const ag_device *device, const ag_model *model, int64_t max_positions, ag_arena *arena,
                                 ag_err *err)
{
    *out = (ag_device_weights){.layers = ag_arena_array(arena, (size_t)model->d.L, sizeof(ag_device_layer))};
    AG_TRY(ag_device_weights_check(model, max_positions, err));
    out->bytes = ag_device_weights_plan(model, max_positions, false);
    AG_TRY(ag_device_check(device, device->bkl->alloc(device->context, &out->block, out->bytes), "memory for the base's weights", err));
    ag_layout layout = {.base = out->block};
    place(&layout, out, model, max_positions, false);
    const int64_t widest = model->d.F > model->d.C ? model->d.F : model->d.C;
    loader l = {.device = device, .room_bytes = (8u << 20) + (size_t)widest * 8, .err = err};
    AG_TRY(ag_device_check(device, device->bkl->alloc_host(device->context, &l.room, l.room_bytes), "memory to copy with", err));
    ag_status status = put_all(&l, out, model, max_positions);
    ag_err ignored;
    if (ag_device_check(device, device->bkl->free_host(device->context, &l.room), "freeing", status ? &ignored : err) && !status) status = err->code;
    return status;
}

void ag_device_weights_free(ag_device_weights *weights, const ag_device *device)
{
    ag_err ignored;
    if (weights->block && ag_device_check(device, device->bkl->free(device->context, &weights->block), "freeing", &ignored)) weights->block = NULL;
    *weights = (ag_device_weights){0};
}
