#define _GNU_SOURCE
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *text;
    int exit_code;
} statuses[] = {
#define X(code, text, exit_code) [code] = {text, exit_code},
    AG_STATUSES(X)
#undef X
};

ag_status ag_fail(ag_err *err, ag_status code, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        err->code = code;
    }
    return code;
}

static ag_status status_of_errno(int errnum)
{
    switch (errnum) {
    case ENOSPC:
    case EDQUOT: return AG_E_NO_SPACE;
    case ENOENT: return AG_E_NOT_FOUND;
    case EEXIST:
    case ENOTEMPTY: return AG_E_EXISTS;
    case ENOMEM: return AG_E_MEMORY;
    default: return AG_E_IO;
    }
}

ag_status ag_fail_errno(ag_err *err, int errnum, const char *format, ...)
{
    ag_status code = status_of_errno(errnum);
    if (err) {
        va_list args;
        va_start(args, format);
        int n = vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        if (n >= 0 && (size_t)n < sizeof err->text)
            snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", strerror(errnum));
        err->code = code;
    }
    return code;
}

ag_status ag_err_prefix(ag_err *err, const char *format, ...)
{
    if (!err) return AG_E_FORMAT;
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n + 2 >= sizeof err->text) return err->code;
    size_t room = sizeof err->text - (size_t)n - 3; /* what of the old sentence fits behind ": ", before the NUL */
    memcpy(err->text + n, ": ", 2);
    size_t n_old = strnlen(old, room);
    memcpy(err->text + n + 2, old, n_old);
    err->text[(size_t)n + 2 + n_old] = 0;
    return err->code;
}

const char *ag_status_text(ag_status code) { return statuses[code].text; }

int ag_status_exit_code(ag_status code) { return statuses[code].exit_code; }

_Noreturn void ag_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "agoge: internal error at %s:%d: %s\n", file, line, condition);
    abort();
}
