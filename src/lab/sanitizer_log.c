#define _GNU_SOURCE
#include "lab/sanitizer_log.h"

#include <string.h>

static const char mark[] = "ERROR SUMMARY: ", truncated[] = "\n[truncated]\n";
enum { TRUNCATION_ROOM = 32, MAX_DIGITS = 18 };

/* The number at `at` when " error" follows it. */
static bool count_at(int64_t *errors, const char *at, size_t n)
{
    size_t i = 0;
    int64_t value = 0;
    for (; i < n && i < MAX_DIGITS && at[i] >= '0' && at[i] <= '9'; i++) value = value * 10 + (at[i] - '0');
    static const char word[] = " error";
    if (i == 0 || n - i < sizeof word - 1 || memcmp(at + i, word, sizeof word - 1) != 0) return false;
    *errors = value;
    return true;
}

bool ag_sanitizer_summary(int64_t *errors, const char *log, size_t n)
{
    bool found = false;
    const char *at = log, *end = log + n;
    while (at < end && (at = memmem(at, (size_t)(end - at), mark, sizeof mark - 1))) {
        at += sizeof mark - 1;
        found |= count_at(errors, at, (size_t)(end - at));
    }
    return found;
}

bool ag_sanitizer_truncate(ag_str *out, const char *log, size_t n, size_t cap)
{
    if (n <= cap) {
        ag_str_add_n(out, log, n);
        return false;
    }
    ag_str_add_n(out, log, cap > TRUNCATION_ROOM ? cap - TRUNCATION_ROOM : 0);
    ag_str_add(out, truncated);
    return true;
}
