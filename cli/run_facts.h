/* What this program says about itself in manifests: versions, libraries, the git state of the working directory, rank. */
#ifndef AGOGE_CLI_RUN_FACTS_H
#define AGOGE_CLI_RUN_FACTS_H

#include "base/arena.h"
#include "train/run_record.h"

/* Texts in the arena. Asks git where there is one; what cannot be learned is left unknown, never guessed. */
void cli_run_facts(ag_run_record *out, ag_arena *arena);

#endif
