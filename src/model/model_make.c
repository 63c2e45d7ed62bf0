/* What has to be made while loading, in one block: f32 vectors, NF4 codes and scales, copies of data at bad addresses. The
 * placing code runs twice (see ag_layout): first for the size, then for the places. */
#include "model/model_internal.h"

#include <string.h>

static size_t alignment_of(ag_weight_type type)
{
    return type == AG_W_F32 ? sizeof(float) : type == AG_W_F16 || type == AG_W_BF16 ? sizeof(uint16_t) : 1;
}

/* Blocks of GGUF types begin with f16 numbers, but their decoders take them apart bytewise. */
static bool needs_copy(const ag_weight *w) { return (uintptr_t)w->data % alignment_of(w->type) != 0; }

static bool to_quantize(const ag_model *m, const ag_found *f, const ag_model_options *options)
{
    return options->quantize_nf4 && m->source == AG_SOURCE_HF && !m->d.is_bnb_nf4 && f->w.type != AG_W_NF4;
}

static const float *place_vector(ag_layout *at, const ag_found *f)
{
    return f->name ? ag_layout_place(at, (size_t)f->w.N * sizeof(float)) : NULL;
}

static void place_matrix(ag_weight *to, ag_layout *at, const ag_found *f)
{
    *to = f->w;
    if (needs_copy(&f->w)) to->data = ag_layout_place(at, ag_weight_bytes(&f->w));
}

static void place_nf4(ag_weight *to, ag_layout *at, const ag_found *f, bool double_quant)
{
    const int64_t n = f->w.N * f->w.K, n_blocks = (n + AG_NF4_BLOCK - 1) / AG_NF4_BLOCK;
    *to = (ag_weight){.type = AG_W_NF4, .N = f->w.N, .K = f->w.K, .data = ag_layout_place(at, (size_t)((n + 1) / 2))};
    if (double_quant) {
        to->absmax_q = ag_layout_place(at, (size_t)n_blocks);
        to->nested_absmax =
            ag_layout_place(at, (size_t)((n_blocks + AG_NF4_NESTED_BLOCK - 1) / AG_NF4_NESTED_BLOCK) * sizeof(float));
    } else {
        to->absmax = ag_layout_place(at, (size_t)n_blocks * sizeof(float));
    }
}

static void place_all(ag_model *m, ag_layout *at, const ag_found_model *found, const ag_model_options *options, ag_weight *wholes)
{
    place_matrix(&m->embed, at, &found->embed);
    if (found->head.name)
        place_matrix(&m->head, at, &found->head);
    else
        m->head = m->embed;
    m->final_norm = place_vector(at, &found->final_norm);
    for (int64_t l = 0; l < m->d.L; l++) {
        const ag_found_layer *from = &found->layers[l];
        ag_layer *to = &m->layers[l];
        for (int n = 0; n < AG_N_NORMS; n++) to->norm[n] = place_vector(at, &from->norm[n]);
        for (int p = 0; p < AG_N_PROJ; p++) {
            ag_weight *whole = &wholes[l * AG_N_PROJ + p];
            if (!from->module[p].name) continue;
            if (to_quantize(m, &from->module[p], options))
                place_nf4(whole, at, &from->module[p], options->double_quant);
            else
                place_matrix(whole, at, &from->module[p]);
            to->bias[p] = place_vector(at, &from->bias[p]);
        }
    }
}

/* Projections are whole modules, or rows of them. */
static void split_modules(ag_model *m, const ag_weight *wholes)
{
    const ag_family *f = ag_family_of(&m->d);
    for (int64_t l = 0; l < m->d.L; l++)
        for (int i = 0; i < f->n_modules; i++) {
            const ag_projection first = f->modules[i].first;
            const ag_weight *whole = &wholes[l * AG_N_PROJ + first];
            const float *bias = m->layers[l].bias[first];
            for (ag_projection p = first; p < first + (ag_projection)f->modules[i].n_parts; p++) {
                int64_t N, K, row = ag_linear_row_of(&m->d, p);
                ag_projection_size(&N, &K, &m->d, p);
                m->layers[l].proj[p] = f->modules[i].n_parts > 1 ? ag_weight_rows(whole, row, row + N) : *whole;
                m->layers[l].bias[p] = bias ? bias + row : NULL;
            }
        }
}

/* The places are const for the model's users; here they are being made. */
static void fill_vector(const float *to, const ag_found *f, float plus)
{
    for (int64_t i = 0; f->name && i < f->w.N; i++) {
        ag_weight_row((float *)to + i, &f->w, i, 0, 1);
        ((float *)to)[i] += plus;
    }
}

/* What to add to a norm's stored weight. */
static float norm_offset(const ag_model *m) { return m->source == AG_SOURCE_HF && ag_family_of(&m->d)->norms_from_one ? 1 : 0; }

static void fill_copy(const ag_weight *to, const ag_found *f)
{
    if (to->data != f->w.data) memcpy((void *)to->data, f->w.data, ag_weight_bytes(&f->w));
}

/* All of a layer but what is to be quantized, which joins the jobs. */
static void fill_layer(ag_model *m, int64_t l, const ag_found_model *found, const ag_model_options *options, ag_nf4_job *jobs,
                       int64_t *n_jobs, ag_weight *wholes)
{
    const ag_found_layer *from = &found->layers[l];
    ag_layer *to = &m->layers[l];
    for (int n = 0; n < AG_N_NORMS; n++) fill_vector(to->norm[n], &from->norm[n], norm_offset(m));
    for (int p = 0; p < AG_N_PROJ; p++) {
        ag_weight *whole = &wholes[l * AG_N_PROJ + p];
        fill_vector(to->bias[p], &from->bias[p], 0);
        if (!from->module[p].name) continue;
        if (to_quantize(m, &from->module[p], options))
            jobs[(*n_jobs)++] = (ag_nf4_job){whole, &from->module[p]};
        else
            fill_copy(whole, &from->module[p]);
    }
}

static ag_status check_all_finite(const ag_model *m, const ag_found_model *found, int n_threads, ag_err *err)
{
    AG_TRY(ag_model_check_finite(&found->embed, n_threads, err));
    AG_TRY(ag_model_check_finite(&found->head, n_threads, err));
    AG_TRY(ag_model_check_finite(&found->final_norm, n_threads, err));
    for (int64_t l = 0; l < m->d.L; l++) {
        const ag_found_layer *layer = &found->layers[l];
        for (int n = 0; n < AG_N_NORMS; n++) AG_TRY(ag_model_check_finite(&layer->norm[n], n_threads, err));
        for (int p = 0; p < AG_N_PROJ; p++) {
            AG_TRY(ag_model_check_finite(&layer->module[p], n_threads, err));
            AG_TRY(ag_model_check_finite(&layer->bias[p], n_threads, err));
        }
    }
    return AG_OK;
}

static void count_bytes(ag_model *m, const ag_weight *wholes)
{
    const ag_description *d = &m->d;
    m->made_bytes = m->owned->made_bytes;
    m->weight_bytes = ag_weight_bytes(&m->embed) + (d->tied ? 0 : ag_weight_bytes(&m->head)) + (size_t)d->C * sizeof(float);
    for (int64_t l = 0; l < d->L; l++) {
        for (int n = 0; n < AG_N_NORMS; n++) m->weight_bytes += (size_t)ag_norm_width(d, (ag_norm)n) * sizeof(float);
        for (int p = 0; p < AG_N_PROJ; p++) {
            const ag_weight *whole = &wholes[l * AG_N_PROJ + p];
            if (whole->data) m->weight_bytes += ag_weight_bytes(whole);
            if (d->has_bias[p]) m->weight_bytes += (size_t)m->layers[l].proj[p].N * sizeof(float);
        }
    }
}

ag_status ag_model_make(ag_model *m, const ag_found_model *found, const ag_model_options *options, ag_err *err)
{
    struct ag_model_owned *own = m->owned;
    ag_layout at = {0};
    if (options->check_finite) AG_TRY(check_all_finite(m, found, options->n_threads, err));
    m->layers = ag_arena_array(&own->arena, (size_t)m->d.L, sizeof *m->layers);
    ag_weight *wholes = ag_arena_array(&own->arena, (size_t)m->d.L * AG_N_PROJ, sizeof *wholes); /* at a module's first projection */
    place_all(m, &at, found, options, wholes);
    AG_TRY(ag_pages_alloc(&own->made, at.bytes, "the weights made while loading", err));
    own->made_bytes = at.bytes;
    at = (ag_layout){.base = own->made};
    place_all(m, &at, found, options, wholes);
    fill_copy(&m->embed, &found->embed);
    if (found->head.name) fill_copy(&m->head, &found->head);
    fill_vector(m->final_norm, &found->final_norm, norm_offset(m));
    ag_nf4_job *jobs = ag_arena_array(&own->arena, (size_t)m->d.L * AG_N_PROJ, sizeof *jobs);
    int64_t n_jobs = 0;
    for (int64_t l = 0; l < m->d.L; l++) fill_layer(m, l, found, options, jobs, &n_jobs, wholes);
    AG_TRY(ag_model_quantize_nf4(jobs, n_jobs, options->double_quant, options->n_threads, err));
    if (n_jobs > 0) m->quantization = options->double_quant ? "nf4 (double)" : "nf4";
    split_modules(m, wholes);
    count_bytes(m, wholes);
    return AG_OK;
}
