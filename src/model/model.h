/* A model ready to run: its description and its frozen weights, mapped from the files they lie in.
 *
 *     ag_model *m;
 *     AG_TRY(ag_model_open(&m, "path/to/folder-or-file.gguf", &(ag_model_options){.quantize_nf4 = true}, err));
 *     … m->layers[l].proj[AG_PROJ_Q] …
 *     ag_model_close(&m);
 *
 * Owns the maps and whatever had to be made at load time (NF4 codes and scales, f32 copies of norms and biases, copies of data that
 * lie at an address unfit for their type). What the tensors here point to lives as long as the model. Pages of weights that were
 * only read to be quantized are given back to the system at once. */
#ifndef AG_MODEL_H
#define AG_MODEL_H

#include "base/arena.h"
#include "base/status.h"
#include "model/description.h"
#include "ops/weight/weight.h"

typedef struct {
    const float *norm[AG_N_NORMS];     /* [C] or [D], as they multiply; NULL: no such norm */
    ag_weight proj[AG_N_PROJ];         /* of a fused module: rows of one matrix */
    const float *bias[AG_N_PROJ];      /* [N] or NULL */
} ag_layer;

typedef enum { AG_SOURCE_HF, AG_SOURCE_GGUF } ag_model_source;

typedef struct ag_model {
    ag_description d;
    ag_model_source source;
    const char *path;        /* as opened, absolute */
    ag_weight embed;         /* [V,C] */
    ag_weight head;          /* [V,C]; the embedding's own data where tied */
    const float *final_norm; /* [C], as it multiplies */
    ag_layer *layers;        /* [L] */

    size_t weight_bytes;     /* all weights in the form in which they are used */
    size_t made_bytes;       /* of those, made at load time (not mapped) */
    const char *quantization;/* "nf4 (double)", "nf4", "none", or for GGUF the name of the type that most weights have */

    struct ag_model_owned *owned; /* maps and arena */
} ag_model;

typedef struct {
    bool quantize_nf4;     /* the seven projections of a Hugging Face model to NF4 while loading; a GGUF and a checkpoint that
                            * bitsandbytes quantized keep their own */
    bool double_quant;     /* with it */
    int n_threads;         /* for quantizing; 0 is 1 */
    bool check_finite;     /* look at every weight for NaN and infinity (costs a read of the file): AG_E_NUMERIC */
} ag_model_options;

/* Opens a Hugging Face folder (config.json and safetensors, sharded or not) or a .gguf file. Every tensor that the description
 * needs must be there with its shape; one that is left over is refused, too, unless it is known to be of no use (rotary
 * inv_freq buffers, rope_freqs, a tied lm_head). The sentence names file, tensor, found and expected. Weights are the same bytes
 * for any number of threads. `options` may be NULL: nothing is quantized or looked at. */
AG_MUST_USE ag_status ag_model_open(ag_model **out, const char *path, const ag_model_options *options, ag_err *err);
void ag_model_close(ag_model **model);
/* The checks of open alone: every tensor there, of its shape, none left over. Headers are read, no weight is, and nothing is made. */
AG_MUST_USE ag_status ag_model_check(ag_description *d, const char *path, ag_arena *arena, ag_err *err);

#endif
