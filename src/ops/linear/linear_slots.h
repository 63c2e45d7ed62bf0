#ifndef AG_LINEAR_SLOTS_H
#define AG_LINEAR_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/linear/linear.h"

typedef struct {
    int none;
} ag_linear_slots;

void ag_linear_use(ag_linear_slots *slots, ag_cpu_level level);

#endif
