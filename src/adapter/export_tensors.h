/* What every export writes: the tensors of a merged model by both families of names, and their rows in a file's type.
 *
 * Matrices take the LoRA pair beside them (merge.h); vectors (norms, biases) are [n,1]. Rows come in Hugging Face's order, or in
 * rope pairs where the file wants them so (weight.h). */
#ifndef AG_EXPORT_TENSORS_H
#define AG_EXPORT_TENSORS_H

#include "adapter/merge.h"
#include "base/arena.h"
#include "model/family.h"
#include "model/model.h"

typedef struct {
    const ag_model *base;         /* whose weights are merged, in the form in which it holds them; of an adapter that trains more than
                                   * pairs its own model (ag_adapter.model) */
    const ag_layer_lora *lora;    /* [L], or NULL: the base alone */
    const ag_lora_view *embed_lora; /* or NULL */
    const ag_model *stored;       /* the base as it was opened, where `base` is an adapter's model; NULL: base */
    const ag_model *original;     /* NULL, or the same model unquantized: what quantizing changed is then measured, too */
    const char *text_path;        /* folder or .gguf file that the tokenizer is carried over from; NULL: the base's own, and
                                   * where it has none the export has none, which the log says */
    const char *name;             /* of the model, for a GGUF's general.name; NULL: the base's folder or file */
    uint64_t max_shard_bytes;     /* of a Hugging Face folder's shards; 0: one file */
    int n_threads;                /* 1 or more */
    void (*progress)(void *user, int64_t done, int64_t total); /* of a GGUF file's weights, after each tensor; or NULL */
    void *progress_user;
} ag_export_options;

/* Kinds of tensors, by which roundings are told apart: the seven projections first, in their order. */
enum { AG_EXPORT_KIND_EMBED = AG_N_PROJ, AG_EXPORT_KIND_HEAD, AG_EXPORT_KIND_NORM, AG_EXPORT_KIND_BIAS, AG_EXPORT_N_KINDS };
const char *ag_export_kind_name(int kind); /* "q_proj" …, "embed_tokens", "lm_head", "norms", "biases" */

typedef struct {
    int64_t n_tensors, n_files;   /* files that hold weights */
    uint64_t weight_bytes;
    ag_deviation rounding;        /* weights as written, against the merged ones in f32 */
    ag_deviation rounding_of[AG_EXPORT_N_KINDS]; /* the same by kind of tensor */
    ag_deviation quantization;    /* the base's projections, against the original's; n = 0 where that was not given */
} ag_export_report;

/* Rows of a matrix that the model holds as one projection. */
typedef struct {
    ag_weight w;
    const ag_lora_view *pair;     /* or NULL */
    int kind;
} ag_export_part;

typedef struct {
    const char *hf_name, *gguf_name;
    ag_weight w;                  /* a vector is [n,1] f32; of a fused module its whole shape, without data */
    int kind;
    bool is_vector;
    bool is_rotated;              /* q and k: rows that a GGUF of some families stores in rope pairs */
    float plus;                   /* added to a vector's numbers: -1 for norms of families whose folders store w - 1 */
    ag_export_part parts[AG_LINEAR_MAX_PARTS]; /* what is written, one after the other; a fused module has several */
    int n_parts;
} ag_export_tensor;

/* Whether the base is a folder without any tokenizer, and no other was given: warns, and nothing is to be carried over. */
bool ag_export_has_no_tokenizer(const ag_export_options *options, ag_arena *arena);

/* All tensors in the order of the modules (embedding, layers, final norm, head unless it is tied), in the arena. Which projections share
 * one, and what norms hold, depends on where they go. */
typedef enum { AG_EXPORT_AS_HF, AG_EXPORT_AS_GGUF } ag_export_form;
void ag_export_tensors(ag_export_tensor **out, int64_t *n, const ag_export_options *options, ag_export_form form, ag_arena *arena);

/* Room for blocks of rows, for tensors of at most the widths that were told. */
typedef struct {
    float *rows, *decoded;
    unsigned char *encoded;
    int64_t n_floats;             /* of rows and of decoded */
    void *pages;
    size_t pages_bytes;
} ag_export_buffer;
AG_MUST_USE ag_status ag_export_buffer_create(ag_export_buffer *out, const ag_export_tensor *tensors, int64_t n, int64_t head_dim,
                                              ag_err *err);
void ag_export_buffer_free(ag_export_buffer *buffer);

typedef ag_status ag_export_sink(void *user, const void *bytes, size_t n, ag_err *err);
/* Merges, encodes and hands over all rows of t in `type`; rope_pairs_head_dim D > 0 puts them in pairs. AG_E_NUMERIC where a
 * merged weight is not finite or does not fit the type. */
AG_MUST_USE ag_status ag_export_tensor_write(const ag_export_tensor *t, ag_weight_type type, int rope_pairs_head_dim,
                                             const ag_export_buffer *buffer, int n_threads, ag_export_sink *sink, void *user,
                                             ag_export_report *report, ag_err *err);

/* report->quantization, where options->original is given. AG_E_SHAPE where the two are not one model. */
AG_MUST_USE ag_status ag_export_measure_quantization(ag_export_report *report, const ag_export_options *options, ag_err *err);

#endif
