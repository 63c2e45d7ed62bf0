/* What decoder.c and kv_cache.c share and nobody else sees. */
#ifndef AG_DECODER_INTERNAL_H
#define AG_DECODER_INTERNAL_H

#include "base/arena.h"
#include "model/decoder.h"

enum { AG_KV_MAX_SLOTS = 256 };

/* Numbers of one layer's forward pass, T rows each. Which of them a layer has for itself: decoder.h, "Memory". */
typedef struct {
    float *x_in;                 /* [T,C] */
    float *q, *k, *v, *o, *lse;  /* [T,H,D], [T,G,D] twice (q and k rotated), [T,H,D], [T,H] */
    float *x_mid;                /* [T,C] */
    float *gate, *up;            /* [T,F] */
    float *q_raw, *k_raw, *r_q, *r_k;               /* where heads are normed: q and k before it, and their norms' r */
    float *attn_out, *ffn_out, *r_attn, *r_ffn;     /* where sublayers' results are normed: these, [T,C], and r [T] */
    float *h[AG_N_PROJ];         /* [T,R] of each LoRA pair */
} ag_layer_acts;

static inline void ag_layer_acts_share_wide(ag_layer_acts *of_layer, const ag_layer_acts *from)
{
    of_layer->q = from->q;
    of_layer->k = from->k;
    of_layer->v = from->v;
    of_layer->o = from->o;
    of_layer->lse = from->lse;
    of_layer->x_mid = from->x_mid;
    of_layer->gate = from->gate;
    of_layer->up = from->up;
    of_layer->q_raw = from->q_raw;
    of_layer->k_raw = from->k_raw;
    of_layer->r_q = from->r_q;
    of_layer->r_k = from->r_k;
    of_layer->attn_out = from->attn_out;
    of_layer->ffn_out = from->ffn_out;
    of_layer->r_attn = from->r_attn;
    of_layer->r_ffn = from->r_ffn;
}

/* What DoRA derives from a pair: lengths of the rows and magnitude over length, [N] each. */
typedef struct {
    float *norm, *gain;
} ag_dora_rows;

/* cos and sin of positions [0, n_positions), for sequences of one age (ag_rope_age). */
typedef struct {
    float *cos, *sin;
    int64_t age;
} ag_rope_table_of_age;

struct ag_decoder {
    ag_decoder_options o;
    ag_backend be;
    void *block;
    size_t block_bytes;

    ag_layer_acts *layers;                    /* [L] */
    float *r, *normed, *act, *x_out;          /* [T], [T,C], [T,F], [T,C]: shared by the layers */
    float *dx, *dnormed, *dact;               /* [T,C], [T,C], [T,F] */
    float *d_o, *dq, *dk, *dv;
    int64_t *head_rows;                       /* [M]: which rows have a target */
    int32_t *head_targets, *positions;
    float *head_nll, *head_x, *head_normed, *head_r, *head_dnormed;
    ag_rope_table_of_age young, old, local;   /* of age 0; of the age last asked for; of sliding layers with a theta of their own */
    double *freq;                             /* [D/2] */
    int site[AG_N_PROJ];                      /* of dropout: projections of one module share it, as they share its input */

    ag_dora_rows *dora;                       /* [L·AG_N_PROJ], NULL where no pair is DoRA; set where one is */
    bool dora_is_fresh;
    float *dora_z, *dora_x;                   /* [T, widest N]; [T, widest K], where there is dropout */
};

/* One call: its tokens, and where keys and values go. */
typedef struct {
    ag_decoder *dec;
    int64_t T;
    const int32_t *positions;
    const ag_attention_span *spans;
    int64_t n_spans;
    bool is_training, dropout;
    uint64_t dropout_call;
    int64_t padded_length;
    ag_kv_cache *cache;         /* NULL in training and scoring */
    const ag_decoder_run *runs;
    int64_t n_runs;
    int64_t age;                /* of all rows … */
    const int64_t *ages;        /* … or of each run's rows */
} ag_pass;

/* decoder_project.c: y_i (= or += for o and down) projection p_i of x, with what its LoRA pair adds; the projections share x. */
AG_MUST_USE ag_status ag_decoder_project(const ag_pass *pass, int64_t l, int n, const int *p, float *const *y, const float *x, ag_err *err);
/* dx = Σ_i dy_i · W_i plus the adapters' part, and the gradients of what is trained there. dx NULL: only the latter. */
AG_MUST_USE ag_status ag_decoder_project_backward(const ag_pass *pass, int64_t l, int n, const int *p, float *dx, float *const *dy,
                                                  const float *x, ag_err *err);
/* NULL where projection p of layer l has no pair. */
const ag_lora_view *ag_decoder_lora_of(const ag_decoder *dec, int64_t l, int p);
/* Where gradients of layer l's own tensors go; NULL: nowhere. */
static inline const ag_layer_grads *ag_decoder_grads_of(const ag_decoder *dec, int64_t l)
{
    return dec->o.grads && dec->o.grads->layers ? &dec->o.grads->layers[l] : NULL;
}
/* Room for DoRA, and scratch of what trains projections. */
void ag_decoder_place_dora(ag_layout *layout, ag_decoder *dec);
size_t ag_decoder_project_scratch_bytes(const ag_decoder_options *o);
/* Lengths and gains, where they are not those of the adapter's numbers any more. */
AG_MUST_USE ag_status ag_decoder_make_dora(ag_decoder *dec, ag_err *err);

/* ---- decoder_rope.c ---- */
void ag_decoder_place_rope(ag_layout *layout, ag_decoder *dec);
void ag_decoder_make_rope(ag_decoder *dec); /* the tables that never change */
/* Rotates x [T,n_heads,D] in place, as layer l does it. */
AG_MUST_USE ag_status ag_decoder_rotate(const ag_pass *pass, int64_t l, float *x, int64_t n_heads, bool backward, ag_err *err);

/* Copies the runs' new keys and values (rows of *k and *v, one run after the other) into layer l of the cache and points *k, *v
 * at that layer's whole cache, which has *n_rows rows. Lengths change in ag_kv_cache_advance, after the last layer. */
void ag_kv_cache_append(ag_kv_cache *cache, int64_t l, const ag_decoder_run *runs, int64_t n_runs, float **k, float **v,
                        int64_t *n_rows);
/* The age of a slot's sequence once it has n_new more tokens. */
int64_t ag_kv_cache_age(const ag_kv_cache *cache, const ag_description *d, int64_t slot, int64_t n_new);
void ag_kv_cache_advance(ag_kv_cache *cache, const ag_decoder_run *runs, int64_t n_runs);
int64_t ag_kv_cache_capacity(const ag_kv_cache *cache);
int64_t ag_kv_cache_first_row(const ag_kv_cache *cache, int64_t slot);

#endif
