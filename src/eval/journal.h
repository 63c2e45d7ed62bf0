/* What an evaluation has behind it, kept beside its output until that is published, so that a killed one goes on where it was.
 *
 *     <parent>/.agoge-eval-<leaf>/  contract.json, engine.json, <arm>.jsonl: "<16 digits> <generation>\n", the digits of the
 * line's digest
 *
 * A line that a kill or a power cut left half is dropped, with what is behind it. One process at a time holds it. */
#ifndef AG_JOURNAL_H
#define AG_JOURNAL_H

#include "base/fs.h"
#include "eval/generation.h"

typedef struct {
    char *dir;
    ag_lock lock;
    ag_arena arena;
} ag_journal;

/* Opens the journal of `output` (absolute), or begins one. What lies there must be of the same contract and engine ({"cpu": …}:
 * what may change bits); AG_E_CONFIG names what differs. restart: what lies there is thrown away. */
AG_MUST_USE ag_status ag_journal_open(ag_journal *j, const char *output, const json_t *contract, const json_t *engine,
                                      bool restart, ag_err *err);
void ag_journal_close(ag_journal *j);                                /* keeps the files */
AG_MUST_USE ag_status ag_journal_remove(ag_journal *j, ag_err *err); /* and closes */

/* The generations of an arm that are there already: found[i] of tasks->n. Cuts off what is half. Texts go to the arena. */
AG_MUST_USE ag_status ag_journal_read(const ag_journal *j, const char *arm, const ag_task_list *tasks, ag_generation *out,
                                      bool *found, ag_arena *arena, ag_err *err);
/* One more of them; it is in the file when this returns. */
typedef struct {
    int fd;
    const char *path;
} ag_journal_arm;
AG_MUST_USE ag_status ag_journal_arm_open(ag_journal_arm *a, ag_journal *j, const char *arm, ag_err *err);
AG_MUST_USE ag_status ag_journal_add(ag_journal_arm *a, const ag_generation *g, ag_err *err);
AG_MUST_USE ag_status ag_journal_arm_close(ag_journal_arm *a, ag_err *err);

#endif
