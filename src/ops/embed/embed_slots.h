#ifndef AG_EMBED_SLOTS_H
#define AG_EMBED_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/embed/embed.h"

typedef struct {
    int none;
} ag_embed_slots;

void ag_embed_use(ag_embed_slots *slots, ag_cpu_level level);

#endif
