/* What the commands on a run's folder share: formats, and where the environment puts the hub cache. */
#ifndef AGOGE_CLI_RUN_OPTIONS_H
#define AGOGE_CLI_RUN_OPTIONS_H

#include "base/arena.h"

extern const char *const cli_report_formats[]; /* json, table */

/* The hub cache as hub_access.h finds it; NULL: there is none. */
const char *cli_hub_cache(ag_arena *arena);
int cli_all_threads(void); /* the processors that the process may use */

#endif
