#ifndef AG_HEAD_CE_SLOTS_H
#define AG_HEAD_CE_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/head_ce/head_ce.h"

typedef struct {
    int none;
} ag_head_ce_slots;

void ag_head_ce_use(ag_head_ce_slots *slots, ag_cpu_level level);

#endif
