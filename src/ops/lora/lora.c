#include "ops/lora/lora.h"

#include "ops/backend.h"

void ag_lora_use(ag_lora_slots *slots, ag_cpu_level level)
{
    (void)level;
    slots->none = 0;
}
