/* A model's own metadata in llama.cpp's keys, and the tensors that hold its rope scaling. */
#ifndef AG_EXPORT_GGUF_MODEL_H
#define AG_EXPORT_GGUF_MODEL_H

#include "base/arena.h"
#include "format/gguf.h"
#include "model/description.h"

/* <architecture>.* for a description. AG_E_UNSUPPORTED, with what it is, where llama.cpp would compute something else. */
AG_MUST_USE ag_status ag_export_gguf_put_model(ag_gguf_writer *w, const ag_description *d, ag_err *err);

enum { AG_GGUF_MAX_ROPE_TENSORS = 2 };
typedef struct {
    const char *name;
    const float *factors; /* [ag_rope_dims/2] divisors of the frequencies */
} ag_gguf_rope_tensor;
/* Returns how many there are. What had to be made is in the arena. */
int ag_export_gguf_rope_tensors(ag_gguf_rope_tensor out[AG_GGUF_MAX_ROPE_TENSORS], const ag_description *d, ag_arena *arena);

#endif
