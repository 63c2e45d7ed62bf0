#include "ops/attention/attention.h"

#include "ops/backend.h"

void ag_attention_use(ag_attention_slots *slots, ag_cpu_level level)
{
    (void)level;
    slots->none = 0;
}
