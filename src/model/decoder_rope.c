/* Rotary positions: which table a layer and a sequence take. */
#include "model/decoder_internal.h"

#include "ops/rope/rope.h"

static float *place_table(ag_layout *layout, const ag_decoder *dec)
{
    return ag_layout_place(layout, (size_t)(dec->o.max_positions * (ag_rope_dims(&dec->o.model->d) / 2)) * sizeof(float));
}

static bool can_grow_old(const ag_decoder *dec) { return ag_rope_age(&dec->o.model->d, dec->o.max_positions) > 0; }

void ag_decoder_place_rope(ag_layout *layout, ag_decoder *dec)
{
    const ag_description *d = &dec->o.model->d;
    dec->freq = ag_layout_place(layout, (size_t)ag_rope_dims(d) / 2 * sizeof(double));
    dec->young.cos = place_table(layout, dec);
    dec->young.sin = place_table(layout, dec);
    if (d->rope_local_theta > 0) {
        dec->local.cos = place_table(layout, dec);
        dec->local.sin = place_table(layout, dec);
    }
    if (can_grow_old(dec)) {
        dec->old.cos = place_table(layout, dec);
        dec->old.sin = place_table(layout, dec);
    }
}

static void make(ag_decoder *dec, ag_rope_table_of_age *table, int64_t age, int64_t length)
{
    const ag_description *d = &dec->o.model->d;
    double mscale;
    ag_description_rope(dec->freq, &mscale, d, length);
    ag_rope_table(table->cos, table->sin, dec->freq, dec->o.max_positions, ag_rope_dims(d), mscale);
    table->age = age;
}

void ag_decoder_make_rope(ag_decoder *dec)
{
    const ag_description *d = &dec->o.model->d;
    make(dec, &dec->young, 0, 0);
    if (d->rope_local_theta > 0) {
        ag_description_rope_local(dec->freq, d);
        ag_rope_table(dec->local.cos, dec->local.sin, dec->freq, dec->o.max_positions, ag_rope_dims(d), 1);
    }
    if (can_grow_old(dec)) make(dec, &dec->old, ag_rope_age(d, dec->o.max_positions), dec->o.max_positions);
}

static const ag_rope_table_of_age *table_of(ag_decoder *dec, int64_t l, int64_t age)
{
    const ag_description *d = &dec->o.model->d;
    if (ag_layer_is_local(d, l)) return &dec->local;
    if (age == 0) return &dec->young;
    if (dec->old.age != age) make(dec, &dec->old, age, d->rope_original_context < age ? age : d->rope_original_context + 1);
    return &dec->old;
}

static ag_status rotate_rows(const ag_pass *pass, int64_t l, float *x, int64_t row, int64_t n_rows, int64_t n_heads,
                             int64_t age, bool backward, ag_err *err)
{
    ag_decoder *dec = pass->dec;
    const int64_t D = dec->o.model->d.D;
    const ag_rope_table_of_age *table = table_of(dec, l, age);
    return ag_rope(&dec->be,
                   &(ag_rope_args){.x = ag_cube_f32(x + row * n_heads * D, n_rows, n_heads, D),
                                   .positions = ag_vec_i32((int32_t *)pass->positions + row, n_rows),
                                   .cos = table->cos,
                                   .sin = table->sin,
                                   .n_positions = dec->o.max_positions,
                                   .n_rotated = ag_rope_dims(&dec->o.model->d),
                                   .backward = backward},
                   err);
}

ag_status ag_decoder_rotate(const ag_pass *pass, int64_t l, float *x, int64_t n_heads, bool backward, ag_err *err)
{
    if (!ag_layer_rotates(&pass->dec->o.model->d, l)) return AG_OK;
    if (!pass->ages) return rotate_rows(pass, l, x, 0, pass->T, n_heads, pass->age, backward, err);
    for (int64_t i = 0, row = 0; i < pass->n_runs; row += pass->runs[i].n_new, i++)
        AG_TRY(rotate_rows(pass, l, x, row, pass->runs[i].n_new, n_heads, pass->ages[i], backward, err));
    return AG_OK;
}
