#ifndef AG_SWIGLU_SLOTS_H
#define AG_SWIGLU_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/swiglu/swiglu.h"

typedef struct {
    int none;
} ag_swiglu_slots;

void ag_swiglu_use(ag_swiglu_slots *slots, ag_cpu_level level);

#endif
