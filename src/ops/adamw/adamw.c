#include "ops/adamw/adamw.h"

#include "ops/backend.h"

void ag_adamw_use(ag_adamw_slots *slots, ag_cpu_level level)
{
    (void)level;
    slots->none = 0;
}
