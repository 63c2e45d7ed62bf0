/* The tensors of an adapter file, safetensors or torch archive, by the names that PEFT gives them today: peft_io.c's own. */
#ifndef AG_PEFT_TENSORS_H
#define AG_PEFT_TENSORS_H

#include "base/arena.h"
#include "format/safetensors.h"
#include "format/torch_archive.h"

typedef struct {
    const char *name;  /* without base_model.model., as ag_adapter_trained_name has it behind that */
    const char *found; /* as it stands in the file */
    ag_st_dtype dtype; /* AG_ST_F32, AG_ST_F16 or AG_ST_BF16 */
    int rank;
    int64_t dim[AG_ST_MAX_RANK];
    const unsigned char *data;
    bool is_read;
} ag_peft_tensor;

typedef struct {
    const char *path;
    ag_peft_tensor *tensors; /* sorted by name */
    size_t n;
    ag_safetensors st;
    ag_torch_archive torch;
    ag_arena arena;
} ag_peft_tensors;

/* Reads adapter_model.safetensors of a folder, or adapter_model.bin where that is allowed and the other is not there. AG_E_FORMAT where two
 * tensors have one name, AG_E_UNSUPPORTED where one is of another type. On failure *out is closed. */
AG_MUST_USE ag_status ag_peft_tensors_open(ag_peft_tensors *out, const char *dir, bool allow_pickle, ag_err *err);
void ag_peft_tensors_close(ag_peft_tensors *t);
ag_peft_tensor *ag_peft_tensors_find(const ag_peft_tensors *t, const char *name); /* or NULL */
/* "F32 [4,48]", in the arena. */
const char *ag_peft_tensor_shape(ag_arena *arena, const ag_peft_tensor *t);
/* Number i as f32. */
float ag_peft_tensor_number(const ag_peft_tensor *t, size_t i);
size_t ag_peft_tensor_count(const ag_peft_tensor *t);

#endif
