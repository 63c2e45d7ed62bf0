/* What people see while something runs: a progress bar where stderr is a terminal, plain lines elsewhere. Results go to stdout,
 * progress and words to stderr, always. */
#ifndef AGOGE_CLI_TERMINAL_H
#define AGOGE_CLI_TERMINAL_H

#include <stdbool.h>
#include <stdint.h>

bool cli_stderr_is_terminal(void);
bool cli_stdout_is_terminal(void);

/* Sends the library's words to stderr. */
void cli_log_to_stderr(void);

/* A bar of `total` units. `text` stands behind it (loss, rate …). On a terminal it is redrawn in place at most ten times a second,
 * elsewhere a line appears at each tenth of the way and at most every 10 seconds in between. */
typedef struct {
    const char *label;
    int64_t total, done;
    uint64_t start_ns, last_ns;
    int64_t start_done; /* what was done before this run, so that the time left is not flattered by it */
    bool drawn;
} cli_progress;
void cli_progress_begin(cli_progress *p, const char *label, int64_t total, int64_t done);
void cli_progress_update(cli_progress *p, int64_t done, const char *text);
void cli_progress_end(cli_progress *p); /* leaves the last state standing */

/* "1m02s", "3h07m" in a static buffer for one call. */
const char *cli_duration(double seconds);
/* "1.5 GiB" likewise. */
const char *cli_bytes(uint64_t bytes);

#endif
