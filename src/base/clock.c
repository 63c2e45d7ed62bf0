#define _GNU_SOURCE
#include "base/clock.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { LARGEST_CPU = 4096, PROC_TEXT_BYTES = 16384 };

uint64_t ag_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct timespec utc_now(struct tm *parts)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, parts);
    return now;
}

void ag_clock_utc(char out[32])
{
    struct tm parts;
    utc_now(&parts);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

void ag_clock_utc_stamp(char out[32])
{
    struct tm parts;
    struct timespec now = utc_now(&parts);
    size_t n = strftime(out, 32, "%Y%m%dT%H%M%S", &parts);
    snprintf(out + n, 32 - n, "%06ldZ", now.tv_nsec / 1000 % 1000000);
}

/* The head of a small file of /proc or /sys; "" where there is none. */
static bool proc_read(char text[PROC_TEXT_BYTES], const char *path)
{
    text[0] = 0;
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t n = fread(text, 1, PROC_TEXT_BYTES - 1, file);
    text[n] = 0;
    fclose(file);
    return true;
}

/* The number behind a line's first word `key`, e.g. "MemAvailable:"; false where no line starts so. */
static bool proc_number(const char *text, const char *key, uint64_t *out)
{
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, key, n) == 0) {
            char *end;
            uint64_t value = strtoull(line + n, &end, 10);
            if (end == line + n) return false;
            *out = value;
            return true;
        }
    return false;
}

uint64_t ag_process_peak_rss(void)
{
    char text[PROC_TEXT_BYTES];
    uint64_t kib;
    /* ru_maxrss is kept through exec, so that a small program started by a large one would report the large one's. */
    if (proc_read(text, "/proc/self/status") && proc_number(text, "VmHWM:", &kib)) return kib * 1024;
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}

/* What the group may still take: its limit minus its use, where page cache that can be dropped is no use. */
static uint64_t cgroup_memory_left(const char *dir, const char *limit_name, const char *usage_name, const char *cache_key)
{
    char path[4096], text[PROC_TEXT_BYTES];
    uint64_t limit, usage, cache = 0;
    snprintf(path, sizeof path, "%s/%s", dir, limit_name);
    if (!proc_read(text, path) || !proc_number(text, "", &limit)) return UINT64_MAX; /* "max" is no number */
    snprintf(path, sizeof path, "%s/%s", dir, usage_name);
    if (!proc_read(text, path) || !proc_number(text, "", &usage)) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (proc_read(text, path)) proc_number(text, cache_key, &cache);
    usage = usage > cache ? usage - cache : 0;
    return limit > usage ? limit - usage : 0;
}

/* The process's own group and every one above it, in the unified hierarchy; `visit` gets each directory. */
static void cgroup_walk(void (*visit)(const char *dir, void *user), void *user)
{
    char text[PROC_TEXT_BYTES], dir[4096];
    if (!proc_read(text, "/proc/self/cgroup")) return;
    const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (!line) return;
    line += *line == '\n' ? 4 : 3;
    snprintf(dir, sizeof dir, "/sys/fs/cgroup%.*s", (int)strcspn(line, "\n"), line);
    size_t root = strlen("/sys/fs/cgroup");
    for (size_t n = strlen(dir); n >= root; n--) {
        if (dir[n] && dir[n] != '/') continue;
        dir[n] = 0;
        visit(dir, user);
    }
}

static void least_memory(const char *dir, void *user)
{
    uint64_t *least = user, left = cgroup_memory_left(dir, "memory.max", "memory.current", "inactive_file ");
    if (left < *least) *least = left;
}

uint64_t ag_memory_available(void)
{
    char text[PROC_TEXT_BYTES];
    uint64_t kib, available = 0;
    if (proc_read(text, "/proc/meminfo") && proc_number(text, "MemAvailable:", &kib)) available = kib * 1024;
    cgroup_walk(least_memory, &available);
    uint64_t v1 = cgroup_memory_left("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                     "total_inactive_file ");
    return v1 < available ? v1 : available;
}

static void least_cpus(const char *dir, void *user)
{
    int *least = user;
    char path[4096], text[PROC_TEXT_BYTES];
    unsigned long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (!proc_read(text, path) || sscanf(text, "%llu %llu", &quota, &period) != 2 || period == 0) return;
    unsigned long long cpus = (quota + period - 1) / period;
    if (cpus < (unsigned long long)*least) *least = cpus ? (int)cpus : 1;
}

/* The first of a core's hardware threads stands for the core. */
static int core_of_cpu(int cpu)
{
    char path[128], text[PROC_TEXT_BYTES];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    uint64_t first;
    return proc_read(text, path) && proc_number(text, "", &first) && first < LARGEST_CPU ? (int)first : cpu;
}

int ag_physical_cores(void)
{
    cpu_set_t *set = CPU_ALLOC(LARGEST_CPU);
    size_t bytes = CPU_ALLOC_SIZE(LARGEST_CPU);
    bool seen[LARGEST_CPU] = {false};
    int n = 0;
    if (set && sched_getaffinity(0, bytes, set) == 0)
        for (int cpu = 0; cpu < LARGEST_CPU; cpu++) {
            if (!CPU_ISSET_S(cpu, bytes, set)) continue;
            int core = core_of_cpu(cpu);
            n += !seen[core];
            seen[core] = true;
        }
    CPU_FREE(set);
    if (n < 1) n = 1;
    cgroup_walk(least_cpus, &n);
    return n;
}
