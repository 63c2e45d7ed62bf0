/* What the lab's programs share: a device that must be there, times in UTC, output paths, medians. */
#ifndef BKL_BENCH_CUDA_H
#define BKL_BENCH_CUDA_H

#include <cuda_runtime.h>

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* --smoke and --out PATH. Anything else, or --out without a value: usage on stderr and exit 2, before the device is touched. */
typedef struct {
    bool smoke;
    const char *out;
} bench_options;

static inline bench_options bench_parse(int argc, char **argv)
{
    bench_options o = {false, nullptr};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--smoke") == 0)
            o.smoke = true;
        else if (strcmp(argv[i], "--out") == 0 && i + 1 < argc)
            o.out = argv[++i];
        else {
            fprintf(stderr, "usage: %s [--smoke] [--out PATH]\n", argv[0]);
            exit(2);
        }
    }
    return o;
}

static inline int64_t unix_ms()
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void timestamp_utc(char text[32])
{
    const time_t now = time(nullptr);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

/* Every folder above the path; false with errno. */
static inline bool make_parents(const char *path)
{
    char copy[4096];
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (char *p = copy + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) return false;
        *p = '/';
    }
    return true;
}

static inline int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts a copy; the mean of the middle two for even counts. At most 64 values. */
static inline double median_of(const double *values, int n)
{
    double sorted[64];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static inline void json_string(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fprintf(f, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            fprintf(f, "\\u%04x", *text);
        else
            fputc(*text, f);
    }
    fputc('"', f);
}

#endif
