#define _GNU_SOURCE
#include "ops/cpu_level.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const names[] = {
#define X(level, name) [level] = name,
    AG_CPU_LEVELS(X)
#undef X
};

const char *ag_cpu_level_name(ag_cpu_level level) { return names[level]; }

ag_status ag_cpu_level_parse(ag_cpu_level *out, const char *name, ag_err *err)
{
    for (int i = 0; i < AG_N_CPU_LEVELS; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (ag_cpu_level)i;
            return AG_OK;
        }
    return ag_fail(err, AG_E_USAGE, "there is no CPU level '%s'; the levels are ref, neon, avx2, avx512 and amx", name);
}

#if defined(__x86_64__)
enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

static bool has_amx_bits(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
    return (d & amx_bf16) && (d & amx_tile);
}

/* Clang 14 does not know "f16c" in __builtin_cpu_supports. Its registers are AVX's, which are asked for beside it. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 29);
}

bool ag_cpu_has_avx512_bf16(void)
{
    unsigned a, b, c, d;
    if (!ag_cpu_has_level(AG_CPU_AVX512) || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return false;
    return a & 1u << 5;
}

bool ag_cpu_has_level(ag_cpu_level level)
{
    /* __builtin_cpu_supports asks CPUID and XGETBV: the operating system must save the registers, too. */
    switch (level) {
    case AG_CPU_REF: return true;
    case AG_CPU_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case AG_CPU_AVX512:
        return ag_cpu_has_level(AG_CPU_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case AG_CPU_AMX:
        /* The kernel wants to be asked once per process before it lets tile data exist. */
        return ag_cpu_has_avx512_bf16() && has_amx_bits() &&
               syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    default: return false;
    }
}

const char *ag_cpu_numerics_name(ag_cpu_level level)
{
    return level == AG_CPU_AVX512 && ag_cpu_has_avx512_bf16() ? "avx512+bf16" : ag_cpu_level_name(level);
}

const char *ag_cpu_name(void)
{
    static char name[49];
    unsigned a, b, c, d, brand[12];
    if (!__get_cpuid(0x80000000u, &a, &b, &c, &d) || a < 0x80000004u) return "unknown";
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &brand[4 * i], &brand[4 * i + 1], &brand[4 * i + 2], &brand[4 * i + 3]);
    memcpy(name, brand, sizeof brand); /* the same bytes every time: no harm if threads race */
    return name;
}
#else
bool ag_cpu_has_avx512_bf16(void) { return false; }

bool ag_cpu_has_level(ag_cpu_level level)
{
#if defined(__aarch64__)
    if (level == AG_CPU_NEON) return true; /* part of the architecture */
#endif
    return level == AG_CPU_REF;
}

const char *ag_cpu_name(void) { return "unknown"; }
#endif

ag_cpu_level ag_cpu_best_level(void)
{
    ag_cpu_level best = AG_CPU_REF;
    for (int i = 0; i < AG_N_CPU_LEVELS; i++)
        if (ag_cpu_has_level((ag_cpu_level)i)) best = (ag_cpu_level)i;
    return best;
}
