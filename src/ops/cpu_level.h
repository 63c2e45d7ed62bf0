/* What the processor and the operating system grant. Asked of CPUID, XGETBV and (for AMX) arch_prctl, never of the
 * compiler. */
#ifndef AG_CPU_LEVEL_H
#define AG_CPU_LEVEL_H

#include "base/status.h"

#include <stdbool.h>

/*    level           name       in ascending order of what a level has beyond the one before (NEON stands alone) */
#define AG_CPU_LEVELS(X)        \
    X(AG_CPU_REF,    "ref")     \
    X(AG_CPU_NEON,   "neon")    \
    X(AG_CPU_AVX2,   "avx2")    /* AVX2, FMA, F16C */          \
    X(AG_CPU_AVX512, "avx512")  /* F, BW, DQ, VL; uses AVX512-BF16 where it is there */ \
    X(AG_CPU_AMX,    "amx")     /* AMX-TILE, AMX-BF16 and AVX512-BF16 */

typedef enum {
#define X(level, name) level,
    AG_CPU_LEVELS(X)
#undef X
    AG_N_CPU_LEVELS
} ag_cpu_level;

const char *ag_cpu_level_name(ag_cpu_level level);
/* AG_E_USAGE for a name that is not there, naming those that are. */
AG_MUST_USE ag_status ag_cpu_level_parse(ag_cpu_level *out, const char *name, ag_err *err);
bool ag_cpu_has_level(ag_cpu_level level);
ag_cpu_level ag_cpu_best_level(void);
bool ag_cpu_has_avx512_bf16(void);
/* What results depend on, to the bit: the level's name, and for avx512 whether bf16 products are native ("avx512+bf16"). */
const char *ag_cpu_numerics_name(ag_cpu_level level);
const char *ag_cpu_name(void); /* the processor's own name, "unknown" where it tells none */

#endif
