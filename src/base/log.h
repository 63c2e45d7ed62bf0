/* What the library has to say while it works. It never prints: it calls the sink that the program set. No sink, no words. */
#ifndef AG_LOG_H
#define AG_LOG_H

typedef enum { AG_LOG_INFO, AG_LOG_WARN } ag_log_level;
typedef void ag_log_fn(void *user, ag_log_level level, const char *text);

/* Set once by the program, before it starts threads. */
void ag_log_set_sink(ag_log_fn *sink, void *user);
void ag_log(ag_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
