#include "ops/rope/rope.h"

#include "ops/backend.h"

void ag_rope_use(ag_rope_slots *slots, ag_cpu_level level)
{
    (void)level;
    slots->none = 0;
}
