/* The decoder: forward and backward of every family that ag_description can describe, written by hand, next to each other.
 *
 *     ag_decoder *dec;
 *     AG_TRY(ag_decoder_create(&dec, &(ag_decoder_options){.model = m, .backend = &be, .lora = views, .train = true,
 *                                                         .max_tokens = 512, .max_positions = 512}, err));
 *     AG_TRY(ag_decoder_train(dec, &batch, 1.0 / n_targets, call, &loss, err));      // gradients are += in the views
 *     ag_decoder_free(&dec);
 *
 * A decoder layer, with n() the RMSNorms, ρ the residual scale:
 *     x_mid = x_in + ρ·o_proj(attention(rope(q), rope(k), v))    q,k,v = q_proj, k_proj, v_proj of n(x_in)
 *     x_out = x_mid + ρ·down_proj(act(gate)·up)                  gate, up = gate_proj, up_proj of n(x_mid)
 * and where the description says so: norms of every head's q and k before rope, norms of what o_proj and down_proj give, layers
 * without rope, with a window, with another rope, softcaps on scores and logits.
 * Each projection may have a LoRA pair beside it (ag_lora_view), whose memory belongs to the adapter; so may the embedding.
 *
 * Tensors of the model itself may be trained, too (copies that an adapter owns, adapter.h): the model then points at the copies, which
 * is all that forward needs, and ag_model_grads says where their gradients go.
 *
 * Memory: one block, sized before it is allocated (ag_decoder_plan); nothing is allocated afterwards. What a layer keeps for
 * backward: with recompute its input and the thin LoRA products, everything else is computed again; without, also q, k, v, o,
 * the gate and up products, and what further norms read. Normed inputs and the gated product are always computed again, they are cheap. */
#ifndef AG_DECODER_H
#define AG_DECODER_H

#include "base/status.h"
#include "model/model.h"
#include "ops/attention/attention.h"
#include "ops/backend.h"
#include "ops/linear/linear.h"

/* A LoRA pair as the decoder uses it; views into memory that the adapter owns. R = 0: this projection has none. */
typedef struct {
    int64_t R;
    const float *a, *b; /* [R,K], [N,R]; beside the embedding [R,V], [C,R] */
    float *da, *db;     /* += the same shapes; NULL where nothing is trained */
    float scale;        /* alpha/r or alpha/sqrt(r) */
    bool is_dora;       /* the sum is scaled to `magnitude` row by row (ops/dora/dora.h); not beside the embedding */
    const float *magnitude; /* [N] */
    float *dmagnitude;      /* += [N] */
} ag_lora_view;
typedef struct {
    ag_lora_view pair[AG_N_PROJ];
} ag_layer_lora;

/* Where gradients of the model's own tensors go (+=, the tensors' shapes); NULL: frozen. */
typedef struct {
    float *proj[AG_N_PROJ], *bias[AG_N_PROJ]; /* [N,K], [N] */
    float *norm[AG_N_NORMS];                  /* [C] or [D] */
} ag_layer_grads;
typedef struct {
    float *embed, *head;    /* [V,C]; a tied table cannot be trained, PEFT unties it */
    float *final_norm;      /* [C] */
    ag_layer_grads *layers; /* [L] */
} ag_model_grads;

typedef struct {
    const ag_model *model;
    const ag_backend *backend;  /* copied; its scratch is replaced by the decoder's own */
    const ag_layer_lora *lora;  /* [L], or NULL for the bare base; may change its numbers, not its shapes, between calls: say so
                                 * with ag_decoder_refresh */
    int64_t max_run_rank;       /* largest rank among the adapters that runs bring (ag_decoder_run); 0: they bring none */
    const ag_lora_view *embed_lora; /* NULL: none */
    const ag_model_grads *grads;    /* with train: what else is trained; NULL: nothing */
    ag_compute compute;
    bool train;                 /* buffers for ag_decoder_train */
    bool recompute;             /* with train: keep less, compute again */
    float dropout;              /* of the LoRA inputs, in ag_decoder_train only */
    uint64_t dropout_key;
    float neftune_alpha;        /* in ag_decoder_train only: noise on the embeddings, uniform in ±alpha/sqrt(tokens·C); 0: none */
    int64_t max_tokens;         /* rows of the largest call */
    int64_t max_targets;        /* rows with a target of the largest call, or rows with logits; 0: max_tokens */
    int64_t max_positions;      /* positions are below this; the length of the rope table */
    int64_t longest_span;       /* keys a span sees at most; 0: max_tokens */
} ag_decoder_options;

/* Tokens of one call: rows of several sequences one after the other, no padding. */
typedef struct {
    int64_t T;
    const int32_t *ids, *positions;  /* [T] */
    const int32_t *targets;          /* [T]; the id that row t is to predict, or -1; NULL where there are none */
    const ag_attention_span *spans;  /* which rows see each other */
    int64_t n_spans;
    int64_t padded_length;           /* of a row, if rows were padded to one length: what NEFTune counts as tokens; 0: T */
} ag_decoder_batch;

typedef struct {
    size_t activations; /* what layers keep, and the buffers of one layer */
    size_t workspace;   /* scratch of the ops, rope table */
} ag_decoder_bytes;
void ag_decoder_plan(ag_decoder_bytes *out, const ag_decoder_options *options);

typedef struct ag_decoder ag_decoder;
AG_MUST_USE ag_status ag_decoder_create(ag_decoder **out, const ag_decoder_options *options, ag_err *err);
void ag_decoder_free(ag_decoder **dec);

/* The adapter's numbers have changed: what was derived from them (the lengths of DoRA) is made anew by the next call. */
void ag_decoder_refresh(ag_decoder *dec);

/* Forward and backward of one micro-batch. The loss that is differentiated is dloss · Σ nll; *loss_sum is Σ nll, *n_targets the
 * number of rows that had a target (0: nothing was done). `dropout_call` tells this call's masks from every other's: count
 * micro-batches; NEFTune's noise follows from it as well. AG_E_NUMERIC where the loss is not finite. */
AG_MUST_USE ag_status ag_decoder_train(ag_decoder *dec, const ag_decoder_batch *batch, double dloss, uint64_t dropout_call,
                                       double *loss_sum, int64_t *n_targets, ag_err *err);

/* Forward only: nll[i] and best[i] (the greedy id; may be NULL) of the i-th row that has a target, in row order. */
AG_MUST_USE ag_status ag_decoder_score(ag_decoder *dec, const ag_decoder_batch *batch, float *nll, int32_t *best, ag_err *err);

/* Keys and values of past tokens: n_slots sequences of at most `capacity` tokens. */
typedef struct ag_kv_cache ag_kv_cache;
AG_MUST_USE ag_status ag_kv_cache_create(ag_kv_cache **out, const ag_model *model, int64_t n_slots, int64_t capacity, ag_err *err);
void ag_kv_cache_free(ag_kv_cache **cache);
size_t ag_kv_cache_bytes(const ag_model *model, int64_t n_slots, int64_t capacity);
int64_t ag_kv_cache_length(const ag_kv_cache *cache, int64_t slot);
void ag_kv_cache_truncate(ag_kv_cache *cache, int64_t slot, int64_t length); /* forget what is behind; length <= now */
/* Rope scalings that depend on the length (dynamic, longrope) rotate a slot's tokens as in a sequence of `length`, or of what is
 * there where that is more. At first it is the capacity, so that all of a cache is of one kind, as llama.cpp has it; transformers has
 * it by the length of the prompt, which ag_generate does. Where the age changes (ag_rope_age), longrope's keys are stale: truncate
 * the slot to 0 and fill it again. */
void ag_kv_cache_expect(ag_kv_cache *cache, int64_t slot, int64_t length);

/* Slot `to` then holds the first n tokens of slot `from`, and nothing else. n <= the length of `from`. */
void ag_kv_cache_copy(ag_kv_cache *cache, int64_t to, int64_t from, int64_t n);

/* New tokens of some slots, at most one run per slot, behind what the slot holds: run i has n_new[i] ids, one after the other in
 * `ids`. Writes the logits [n_runs, V] of each run's last token (logits NULL: only fills the cache).
 *
 * Bits: what a run computes is what it computes alone, whatever the other runs are, as long as no run of at most AG_LINEAR_FEW
 * tokens is in a call with more than AG_LINEAR_FEW tokens in all, and the logits are those of at most AG_LINEAR_FEW runs.
 *
 * An adapter that a run brings is plain LoRA beside projections: AG_E_UNSUPPORTED where it, or the decoder's own beside it, is DoRA. */
typedef struct {
    int64_t slot, n_new;
    const ag_layer_lora *lora; /* [L], this run's adapter; NULL: the decoder's own. Neighbours with the same one are computed at once */
} ag_decoder_run;
AG_MUST_USE ag_status ag_decoder_infer(ag_decoder *dec, ag_kv_cache *cache, const ag_decoder_run *runs, int64_t n_runs,
                                       const int32_t *ids, float *logits, ag_err *err);
/* A run of n tokens may be computed as several, cut at multiples of this many tokens from its first, with the same bits in the cache
 * and the same logits, as long as no part has AG_LINEAR_FEW tokens or fewer. */
int64_t ag_decoder_granule(const ag_decoder *dec);

#endif
