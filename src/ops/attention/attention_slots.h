#ifndef AG_ATTENTION_SLOTS_H
#define AG_ATTENTION_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/attention/attention.h"

typedef struct {
    int none;
} ag_attention_slots;

void ag_attention_use(ag_attention_slots *slots, ag_cpu_level level);

#endif
