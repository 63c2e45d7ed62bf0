/* What went wrong: a code for programs, a sentence for people.
 *
 * Every function that can fail returns ag_status and takes `ag_err *err` last. A sentence names the file or
 * value, what was found, what was expected and what to do:
 *
 *     return ag_fail(err, AG_E_FORMAT, "%s: tensor '%s' has %lld bytes, its shape needs %lld; "
 *                    "the file is damaged, download it again", path, name, found, needed);
 *
 * Mistakes of ours, which no input can cause, are AG_ASSERTs: they stop the program with file and line, in
 * release builds too. */
#ifndef AG_STATUS_H
#define AG_STATUS_H

#include <stdarg.h>

/*    code              text                        exit */
#define AG_STATUSES(X)                                  \
    X(AG_OK,            "ok",                         0) \
    X(AG_E_USAGE,       "wrong usage",                2) \
    X(AG_E_IO,          "input/output error",         1) \
    X(AG_E_NOT_FOUND,   "not found",                  1) \
    X(AG_E_EXISTS,      "exists already",             1) \
    X(AG_E_FORMAT,      "malformed input",            1) \
    X(AG_E_CONFIG,      "wrong configuration",        1) \
    X(AG_E_DATA,        "wrong data",                 1) \
    X(AG_E_SHAPE,       "shapes do not fit",          1) \
    X(AG_E_UNSUPPORTED, "not supported",              1) \
    X(AG_E_NUMERIC,     "numbers went wrong",         1) \
    X(AG_E_MEMORY,      "not enough memory",          1) \
    X(AG_E_NO_SPACE,    "no space left",              1) \
    X(AG_E_BUSY,        "in use by another process",  1) \
    X(AG_E_VERIFY,      "verification failed",        1) \
    X(AG_E_INTERRUPTED, "interrupted",              130) \
    X(AG_E_TERMINATED,  "terminated",               143)

typedef enum {
#define X(code, text, exit_code) code,
    AG_STATUSES(X)
#undef X
} ag_status;

typedef struct {
    ag_status code;
    char text[1024];
} ag_err;

#define AG_MUST_USE __attribute__((warn_unused_result))

/* Fills *err (may be NULL) and returns `code`, so that a failure is one statement. */
ag_status ag_fail(ag_err *err, ag_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same for a failed system call: appends the system's own words for `errnum`, and turns ENOSPC and EDQUOT into
 * AG_E_NO_SPACE, ENOENT into AG_E_NOT_FOUND, EEXIST into AG_E_EXISTS, ENOMEM into AG_E_MEMORY, the rest into AG_E_IO. */
ag_status ag_fail_errno(ag_err *err, int errnum, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Puts "format: " in front of the sentence that is there; returns err's code. For callers that know the file's name. */
ag_status ag_err_prefix(ag_err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

const char *ag_status_text(ag_status code);
int ag_status_exit_code(ag_status code);

#define AG_TRY(call)                  \
    do {                              \
        ag_status status_ = (call);   \
        if (status_) return status_;  \
    } while (0)

#define AG_ASSERT(condition) ((condition) ? (void)0 : ag_assert_failed(#condition, __FILE__, __LINE__))
_Noreturn void ag_assert_failed(const char *condition, const char *file, int line);

#endif
