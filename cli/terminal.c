#define _GNU_SOURCE
#include "cli/terminal.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const uint64_t REDRAW_NS = 100000000ull, LINE_NS = 10000000000ull;

bool cli_stderr_is_terminal(void) { return isatty(STDERR_FILENO); }
bool cli_stdout_is_terminal(void) { return isatty(STDOUT_FILENO); }

static bool bar_is_on_line; /* a log line must not start behind a bar */

static void log_line(void *user, ag_log_level level, const char *text)
{
    (void)user;
    if (bar_is_on_line) fprintf(stderr, "\r\033[K");
    bar_is_on_line = false;
    fprintf(stderr, "%s%s\n", level == AG_LOG_WARN ? "warning: " : "", text);
}

void cli_log_to_stderr(void) { ag_log_set_sink(log_line, NULL); }

const char *cli_duration(double seconds)
{
    static char text[8][32];
    static int at;
    char *out = text[at = (at + 1) % 8];
    const long s = (long)(seconds + 0.5);
    if (s < 60)
        snprintf(out, sizeof text[0], "%lds", s);
    else if (s < 3600)
        snprintf(out, sizeof text[0], "%ldm%02lds", s / 60, s % 60);
    else
        snprintf(out, sizeof text[0], "%ldh%02ldm", s / 3600, s / 60 % 60);
    return out;
}

const char *cli_bytes(uint64_t bytes)
{
    static char text[8][32];
    static int at;
    char *out = text[at = (at + 1) % 8];
    const double kib = 1024;
    if (bytes < 1024)
        snprintf(out, sizeof text[0], "%llu B", (unsigned long long)bytes);
    else if ((double)bytes < kib * kib)
        snprintf(out, sizeof text[0], "%.1f KiB", (double)bytes / kib);
    else if ((double)bytes < kib * kib * kib)
        snprintf(out, sizeof text[0], "%.1f MiB", (double)bytes / kib / kib);
    else
        snprintf(out, sizeof text[0], "%.2f GiB", (double)bytes / kib / kib / kib);
    return out;
}

void cli_progress_begin(cli_progress *p, const char *label, int64_t total, int64_t done)
{
    *p = (cli_progress){.label = label, .total = total, .done = done, .start_done = done, .start_ns = ag_clock_ns()};
}

static int terminal_width(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

static void draw(cli_progress *p, const char *text, bool in_place)
{
    const double seconds = (double)(ag_clock_ns() - p->start_ns) * 1e-9;
    const int64_t here = p->done - p->start_done;
    const char *left = here > 0 && p->done < p->total ? cli_duration(seconds / (double)here * (double)(p->total - p->done)) : "";
    char line[512], bar[21];
    const int filled = p->total > 0 ? (int)(20 * p->done / p->total) : 0;
    for (int i = 0; i < 20; i++) bar[i] = i < filled ? '#' : '.';
    bar[20] = 0;
    snprintf(line, sizeof line, "%s %s %lld/%lld  %s  %s%s%s", p->label, in_place ? bar : "", (long long)p->done,
             (long long)p->total, text, cli_duration(seconds), *left ? ", left " : "", left);
    if (in_place) {
        fprintf(stderr, "\r\033[K%.*s", terminal_width() - 1, line);
        bar_is_on_line = true;
    } else {
        fprintf(stderr, "%s\n", line);
    }
    p->drawn = true;
}

void cli_progress_update(cli_progress *p, int64_t done, const char *text)
{
    const uint64_t now = ag_clock_ns();
    const bool in_place = cli_stderr_is_terminal(), is_last = done >= p->total;
    const bool is_tenth = p->total > 0 && done * 10 / p->total != p->done * 10 / p->total;
    const bool due = in_place ? now - p->last_ns >= REDRAW_NS : is_tenth || now - p->last_ns >= LINE_NS;
    p->done = done;
    if (!due && !is_last && p->drawn) return;
    p->last_ns = now;
    draw(p, text, in_place);
}

void cli_progress_end(cli_progress *p)
{
    if (p->drawn && bar_is_on_line) fprintf(stderr, "\n");
    bar_is_on_line = false;
}
