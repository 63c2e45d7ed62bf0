#ifndef AG_EMBED_SLOTS_H
#define AG_EMBED_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/embed/embed.h"

/* Tokens [t0,t1) of a call whose arguments were checked. */
typedef void ag_embed_fwd_fn(const ag_embed_args *args, int64_t t0, int64_t t1);

typedef struct {
    ag_embed_fwd_fn *fwd;
} ag_embed_slots;

void ag_embed_use(ag_embed_slots *slots, ag_cpu_level level);

ag_embed_fwd_fn ag_embed_fwd_ref;

#endif
