#include "ops/head_ce/head_ce.h"

#include "ops/backend.h"

void ag_head_ce_use(ag_head_ce_slots *slots, ag_cpu_level level)
{
    (void)level;
    slots->none = 0;
}
