#ifndef AG_ROPE_SLOTS_H
#define AG_ROPE_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/rope/rope.h"

typedef struct {
    int none;
} ag_rope_slots;

void ag_rope_use(ag_rope_slots *slots, ag_cpu_level level);

#endif
