#include "ops/backend.h"

#include <stdio.h>

ag_status ag_backend_init_cpu(ag_backend *be, ag_cpu_level level, int n_threads, ag_err *err)
{
    if (!ag_cpu_has_level(level)) {
        char have[64] = "";
        int n = 0;
        for (int i = 0; i < AG_N_CPU_LEVELS; i++)
            if (ag_cpu_has_level((ag_cpu_level)i))
                n += snprintf(have + n, sizeof have - (size_t)n, " %s", ag_cpu_level_name((ag_cpu_level)i));
        return ag_fail(err, AG_E_UNSUPPORTED, "this machine does not have the CPU level '%s'; it has:%s",
                       ag_cpu_level_name(level), have);
    }
    if (n_threads < 1 || n_threads > 256)
        return ag_fail(err, AG_E_USAGE, "%d threads were asked for; give a number from 1 to 256", n_threads);
    *be = (ag_backend){.level = level, .n_threads = n_threads};
#define X(op) ag_##op##_use(&be->op, level);
    AG_OPS(X)
#undef X
    return AG_OK;
}
