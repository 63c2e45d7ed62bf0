#include "cli/run_options.h"

#include "cli/hub_access.h"

#include <omp.h>

const char *const cli_report_formats[] = {"json", "table", NULL};

const char *cli_hub_cache(ag_arena *arena)
{
    ag_hub_options hub;
    ag_err ignored; /* without a home there is no cache, and a base that is a hub id is not there */
    return cli_hub_options(&hub, arena, &ignored) == AG_OK ? hub.cache_dir : NULL;
}

int cli_all_threads(void) { return omp_get_num_procs(); }
