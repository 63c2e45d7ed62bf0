/* Frees the disk that a finished run's checkpoints take. docs/runs.md says for users how it decides.
 *
 *     ag_cleanup c;
 *     AG_TRY(ag_cleanup_run(&c, &(ag_cleanup_options){.run_dir = "adapters/demo", .keep_latest = 1}, &arena, err));
 *     ag_cleanup_json(&out, &c);      // what was done; c.n_failed says how often it was not
 *
 * Only folders named checkpoint-<digits> directly in the run are ever candidates. Nothing is deleted unless a sound final
 * adapter or a usable merged model is there (or force says so), nor in a run that another process trains. A symbolic link
 * anywhere in the run's path is refused; a checkpoint that is a link or holds a mount point is skipped. The run is opened once
 * and worked on by descriptor (run_tree.h). */
#ifndef AG_CLEANUP_H
#define AG_CLEANUP_H

#include "runs/run_status.h"

typedef struct {
    const char *run_dir, *merged_dir; /* as typed; merged_dir may be NULL */
    bool dry_run, force, allow_unsafe;
    int64_t keep_latest;              /* the newest valid checkpoints that stay */
    const char *hub_cache;
    int n_threads;                    /* that hash */
    /* For tests: called between the plan and the first deletion. */
    void (*planned)(void *user);
    void *user;
} ag_cleanup_options;

typedef struct {
    const char *path;
    int64_t step;
    uint64_t bytes;
} ag_cleanup_removed;
typedef struct {
    const char *path, *why;
} ag_cleanup_note;

typedef struct {
    ag_run_place place;
    bool dry_run, allow_unsafe;
    int64_t keep_latest;
    bool final_artifact; /* what the guard asks for is there */
    bool forced;         /* it is not, and --force was given */
    ag_cleanup_removed *removed; /* planned, in a dry run */
    const char **kept;
    ag_cleanup_note *skipped;    /* "symlink" or "mount" */
    ag_cleanup_note *failed;
    size_t n_removed, n_kept, n_skipped, n_failed;
    uint64_t bytes_reclaimed;
    bool index_rewritten;
} ag_cleanup;

/* Fails where nothing was tried. What failed while deleting stands in out->failed, and the status is AG_OK. Texts lie in the
 * arena. */
AG_MUST_USE ag_status ag_cleanup_run(ag_cleanup *out, const ag_cleanup_options *options, ag_arena *arena, ag_err *err);

void ag_cleanup_json(ag_str *out, const ag_cleanup *c);
void ag_cleanup_table(ag_str *out, const ag_cleanup *c);
/* One line for each entry, and the warnings: what stands before the table. */
void ag_cleanup_words(ag_str *out, const ag_cleanup *c);

/* ---- the index after a cleanup (cleanup_index.c) ----------------------------------------------------------------- */
/* Rewrites the run's artifact_index.json over what is left, where there is one (*rewritten). `access` is the path by which the
 * run is read. An index with a provenance is verified first: every file that is there has its digest, only checkpoints' files
 * are gone, and nothing else lies in the run; otherwise AG_E_VERIFY, and the index stays as it was. */
AG_MUST_USE ag_status ag_cleanup_index(bool *rewritten, const char *access, const char *shown, int n_threads, ag_err *err);

#endif
