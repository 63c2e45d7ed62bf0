/* What a log of NVIDIA's compute-sanitizer says. */
#ifndef AG_SANITIZER_LOG_H
#define AG_SANITIZER_LOG_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number in the last line of the form "ERROR SUMMARY: N error(s)"; false where no line has it. */
bool ag_sanitizer_summary(int64_t *errors, const char *log, size_t n);
/* At most `cap` bytes: a longer text keeps its first cap - 32 bytes (none where cap is smaller) and "\n[truncated]\n". */
bool ag_sanitizer_truncate(ag_str *out, const char *log, size_t n, size_t cap);

#endif
