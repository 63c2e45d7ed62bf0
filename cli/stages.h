/* The program's own commands as separate processes: what an experiment runs one after the other, each from a fresh start. */
#ifndef AGOGE_CLI_STAGES_H
#define AGOGE_CLI_STAGES_H

#include "base/status.h"

/* Runs this program with these words (NULL-terminated, the program's name left out); its standard output goes to `output` (a
 * file that is written over), its words on stderr are seen as they come. A failure is AG_E_VERIFY with `what` and the exit
 * code; a signal that ended it, or that this process got meanwhile, is AG_E_INTERRUPTED or AG_E_TERMINATED. */
AG_MUST_USE ag_status cli_stage_run(const char *const *words, const char *output, const char *what, ag_err *err);

#endif
