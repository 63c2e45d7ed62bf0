/* Time, and what the process uses. */
#ifndef AG_CLOCK_H
#define AG_CLOCK_H

#include <stddef.h>
#include <stdint.h>

uint64_t ag_clock_ns(void);                      /* monotonic */
void ag_clock_utc(char out[32]);                 /* now, "2030-01-02T03:04:05Z" */
void ag_clock_utc_stamp(char out[32]);           /* now, "20300102T030405123456Z" (microseconds), for names */
uint64_t ag_process_peak_rss(void);              /* bytes */
uint64_t ag_memory_available(void);              /* bytes: MemAvailable, or less where a cgroup says so */
int ag_physical_cores(void);                     /* that this process may run on; at least 1 */

#endif
