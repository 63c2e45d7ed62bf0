/* Loading in two halves: a reader (Hugging Face folder or GGUF file) finds every tensor and checks its shape; ag_model_make then
 * makes what is not used as it lies (f32 vectors, NF4 codes, copies of badly aligned data) and fills the model in. */
#ifndef AG_MODEL_INTERNAL_H
#define AG_MODEL_INTERNAL_H

#include "format/gguf.h"
#include "format/safetensors.h"
#include "model/family.h"
#include "model/model.h"

/* A tensor in its file. Vectors are [n,1] in f32, f16 or bf16. */
typedef struct {
    const char *file, *name; /* for sentences; name NULL: there is no such tensor (a bias) */
    const ag_map *map;       /* that `w` points into */
    ag_weight w;
} ag_found;

typedef struct {
    ag_found norm[AG_N_NORMS];
    ag_found module[AG_N_PROJ]; /* whole, at its first projection (family.h) */
    ag_found bias[AG_N_PROJ];
} ag_found_layer;

typedef struct {
    ag_found embed, head, final_norm; /* head.name NULL: tied */
    ag_found_layer *layers;           /* [L], in the model's arena */
} ag_found_model;

struct ag_model_owned {
    ag_arena arena;
    ag_st_folder folder; /* of a Hugging Face model */
    ag_gguf gguf;        /* of a GGUF model */
    void *made;
    size_t made_bytes;
};

/* Description, source, quantization (what the files say) and the tensors. Maps belong to m->owned at once. */
AG_MUST_USE ag_status ag_model_find_hf(ag_model *m, ag_found_model *found, ag_err *err);
AG_MUST_USE ag_status ag_model_find_gguf(ag_model *m, ag_found_model *found, ag_err *err);
AG_MUST_USE ag_status ag_model_make(ag_model *m, const ag_found_model *found, const ag_model_options *options, ag_err *err);

typedef struct {
    ag_weight *to; /* with its places */
    const ag_found *from;
} ag_nf4_job;
/* Quantizes n matrices; the same bytes for any number of threads. */
AG_MUST_USE ag_status ag_model_quantize_nf4(const ag_nf4_job *jobs, int64_t n, bool double_quant, int n_threads, ag_err *err);
/* AG_E_NUMERIC, with file, tensor and place, where a weight is NaN or infinite. */
AG_MUST_USE ag_status ag_model_check_finite(const ag_found *f, int n_threads, ag_err *err);
/* Tells the system that the source's pages are done with. */
void ag_found_forget(const ag_found *f);

#endif
