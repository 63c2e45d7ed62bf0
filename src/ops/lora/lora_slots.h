#ifndef AG_LORA_SLOTS_H
#define AG_LORA_SLOTS_H

#include "ops/cpu_level.h"
#include "ops/lora/lora.h"

typedef struct {
    int none;
} ag_lora_slots;

void ag_lora_use(ag_lora_slots *slots, ag_cpu_level level);

#endif
