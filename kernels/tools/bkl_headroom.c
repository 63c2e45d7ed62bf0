/* wait-gpu-headroom: waits until GPU 0 has enough free memory. A look, not a lock: another program may take it a moment later. */
#define _GNU_SOURCE
#include "kernels/tools/bkl_command.h"
#include "kernels/tools/bkl_process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PROBE_LIMIT_S = 30, MAX_DIGITS = 9 };
typedef struct {
    const char *need, *wait, *interval;
} headroom_options;

static bool read_number(long *out, const char *name, const char *text)
{
    const size_t n = strspn(text, "0123456789");
    if (n == 0 || text[n] || n > MAX_DIGITS) {
        fprintf(stderr, "%s must be a non-negative integer, got: %s\n", name, text);
        return false;
    }
    *out = strtol(text, NULL, 10);
    return true;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A listing for people; what fails is left out. */
static void list(const char *smi, const char *query)
{
    const char *const argv[] = {smi, query, "--format=csv", NULL};
    ag_str text = {0};
    bkl_exit how;
    ag_err err;
    if (bkl_process_run(&how, &text, argv, NULL, PROBE_LIMIT_S, &err) == AG_OK && how.exit_code == 0 && text.n) fputs(text.text, stdout);
    ag_str_free(&text);
}

static void list_apps(const char *smi)
{
    puts("compute apps:");
    list(smi, "--query-compute-apps=pid,process_name,used_memory");
    fflush(stdout);
}

/* Free MiB of GPU 0; false after saying on stderr why it is not known. */
static bool probe(long *free_mib, const char *smi, long left_s)
{
    const char *const argv[] = {smi, "--query-gpu=memory.free", "--format=csv,noheader,nounits", NULL};
    ag_str text = {0};
    bkl_exit how;
    ag_err err;
    const bool ran = bkl_process_run(&how, &text, argv, NULL, PROBE_LIMIT_S, &err) == AG_OK && how.exit_code == 0;
    char line[64] = "";
    if (ran && text.n) snprintf(line, sizeof line, "%.*s", (int)strcspn(text.text, "\r\n"), text.text);
    ag_str_free(&text);
    if (!ran) {
        fprintf(stderr, "nvidia-smi probe failed; retrying (%lds left before fail)\n", left_s);
        return false;
    }
    const char *at = line + strspn(line, " \t");
    const size_t n = strspn(at, "0123456789");
    if (n == 0 || n > MAX_DIGITS || at[n + strspn(at + n, " \t")]) {
        fprintf(stderr, "could not parse free MiB from nvidia-smi: %s; retrying (%lds left before fail)\n", line, left_s);
        return false;
    }
    *free_mib = strtol(at, NULL, 10);
    return true;
}

static int wait_for(const char *smi, long need, long wait, long interval)
{
    list(smi, "--query-gpu=name,driver_version,memory.total,memory.free");
    list_apps(smi);
    const double start = now_s();
    for (;;) {
        const double left = (double)wait - (now_s() - start);
        if (left <= 0) {
            fprintf(stderr, "Need at least %ld MiB free on GPU 0 after waiting %lds\n", need, wait);
            list_apps(smi);
            return 1;
        }
        const long left_s = (long)left;
        long free_mib = 0;
        if (probe(&free_mib, smi, left_s)) {
            if (free_mib >= need) {
                printf("GPU 0 has %ld MiB free (>= %ld)\n", free_mib, need);
                return 0;
            }
            printf("GPU busy (%ld MiB free); waiting (%lds left before fail)\n", free_mib, left_s);
        }
        list_apps(smi);
        double pause = left < (double)interval ? left : (double)interval;
        if (pause < 1) pause = 1;
        nanosleep(&(struct timespec){(time_t)pause, (long)((pause - (double)(time_t)pause) * 1e9)}, NULL);
    }
}

static int run(int argc, char **argv)
{
    headroom_options o = {"2048", "600", "30"};
    CLI_PARSE(&bkl_wait_gpu_headroom, &o, argc, argv);
    ag_arena arena = {0};
    long need, wait, interval;
    int code = 1;
    const char *smi = bkl_program_find("nvidia-smi", "NVIDIA_SMI", &arena);
    if (!smi)
        fprintf(stderr, "missing required tool: nvidia-smi\n");
    else if (read_number(&need, "need_mib", o.need) && read_number(&wait, "wait_s", o.wait) && read_number(&interval, "interval_s", o.interval)) {
        if (interval < 1)
            fprintf(stderr, "interval_s must be >= 1, got: %s\n", o.interval);
        else
            code = wait_for(smi, need, wait, interval);
    }
    ag_arena_free(&arena);
    return code;
}

static const cli_option table[] = {CLI_POSITIONAL("need_mib", headroom_options, need, "free memory to wait for (2048)", 0),
                                   CLI_POSITIONAL("wait_s", headroom_options, wait, "give up after so many seconds (600)", 0),
                                   CLI_POSITIONAL("interval_s", headroom_options, interval, "seconds between looks (30)", 0), CLI_END};
const cli_command bkl_wait_gpu_headroom = {"wait-gpu-headroom", NULL, "wait until GPU 0 has enough free memory", NULL, table, run};
