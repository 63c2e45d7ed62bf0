/* Running another program: no shell, a limit of time, its output in a file or in memory. */
#ifndef BKL_PROCESS_H
#define BKL_PROCESS_H

#include "base/arena.h"
#include "base/str.h"

/* The path of a program: the environment variable `override` (may be NULL), then PATH, then CUDA's usual folder; NULL: nowhere. */
const char *bkl_program_find(const char *name, const char *override, ag_arena *arena);

typedef struct {
    int exit_code;  /* 128 + signal where a signal ended it; 124 where the limit did; 127 where it could not be started */
    bool timed_out;
} bkl_exit;
/* argv ends in NULL. Standard output and error go to the file `log` (made new), or where it is NULL standard output is added to *out (at most
 * 16 MiB) and standard error is dropped. limit_s 0: no limit. When the limit is over, the whole process group is ended. */
AG_MUST_USE ag_status bkl_process_run(bkl_exit *exit_status, ag_str *out, const char *const *argv, const char *log, int limit_s, ag_err *err);

#endif
