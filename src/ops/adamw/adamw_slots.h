#ifndef AG_ADAMW_SLOTS_H
#define AG_ADAMW_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/adamw/adamw.h"

typedef struct {
    int none;
} ag_adamw_slots;

void ag_adamw_use(ag_adamw_slots *slots, ag_cpu_level level);

#endif
