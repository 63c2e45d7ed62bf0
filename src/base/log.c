#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static ag_log_fn *log_sink;
static void *log_user;

void ag_log_set_sink(ag_log_fn *sink, void *user)
{
    log_sink = sink;
    log_user = user;
}

void ag_log(ag_log_level level, const char *format, ...)
{
    if (!log_sink) return;
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    log_sink(log_user, level, text);
}
