#define _GNU_SOURCE
#include "train/quarantine.h"

#include "base/fs.h"
#include "base/json.h"
#include "base/log.h"
#include "train/run_scan.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MOST_COLLISIONS = 999 };
static const char REASON_FILE[] = "quarantine_reason.json";

static const char *const reason_texts[] = {
#define X(reason, text) [reason] = text,
    AG_QUARANTINE_REASONS(X)
#undef X
};

/* ---- one entry --------------------------------------------------------------------------------------------------- */
static ag_status write_reason(const char *path, ag_quarantine_reason reason, const struct tm *when, const char *const *missing,
                              size_t n_missing, ag_arena *arena, ag_err *err)
{
    char at[32];
    strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%SZ", when);
    ag_str text = {0};
    ag_json_writer w = {.out = &text, .indent = 2, .ascii = true};
    ag_jw_object(&w, NULL);
    ag_jw_int(&w, "schema_version", 1);
    ag_jw_string(&w, "reason", reason_texts[reason]);
    ag_jw_string(&w, "original_path", path);
    ag_jw_string(&w, "quarantined_at", at);
    ag_jw_object(&w, "details");
    if (n_missing > 0) {
        ag_jw_array(&w, "missing");
        for (size_t i = 0; i < n_missing; i++) ag_jw_string(&w, NULL, missing[i]);
        ag_jw_end(&w);
    }
    ag_jw_end(&w);
    ag_jw_end(&w);
    ag_str_add_char(&text, '\n');
    const ag_status status = ag_file_publish(ag_path_join(arena, path, REASON_FILE), text.text, text.n, err);
    ag_str_free(&text);
    return status;
}

static ag_status need_dir(const char *path, ag_err *err)
{
    struct stat st;
    if (lstat(path, &st)) return ag_fail_errno(err, errno, "%s cannot be looked at", path);
    if (S_ISDIR(st.st_mode)) return AG_OK;
    return ag_fail(err, AG_E_IO, "%s is no directory of its own (a symbolic link or a file); move it away", path);
}

/* The first free name; an entry of the same name, reason and microsecond is there only where clocks are coarse. */
static ag_status move_to_free_name(const char *from, const char *head, ag_arena *arena, ag_err *err)
{
    for (int i = 0; i <= MOST_COLLISIONS; i++) {
        const char *to = i == 0 ? head : ag_arena_printf(arena, "%s-%d", head, i);
        const ag_status status = ag_rename_synced(from, to, err);
        if (status != AG_E_EXISTS) return status;
    }
    return ag_fail(err, AG_E_EXISTS, "%s: this name and %d more are taken in the quarantine; empty it", head, MOST_COLLISIONS);
}

static ag_status move_entry(const char *run_dir, const char *name, ag_quarantine_reason reason, const char *const *missing,
                            size_t n_missing, ag_arena *arena, ag_err *err)
{
    struct timespec now;
    struct tm utc;
    char stamp[64];
    const char *from = ag_path_join(arena, run_dir, name), *quarantine = ag_path_join(arena, run_dir, AG_QUARANTINE_DIR);
    AG_TRY(need_dir(from, err));
    AG_TRY(ag_make_dirs(quarantine, err));
    AG_TRY(need_dir(quarantine, err));
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    const size_t n = strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%S", &utc);
    snprintf(stamp + n, sizeof stamp - n, "%06ldZ", now.tv_nsec / 1000);
    AG_TRY(write_reason(from, reason, &utc, missing, n_missing, arena, err));
    AG_TRY(move_to_free_name(from, ag_arena_printf(arena, "%s/%s.%s.%s", quarantine, name, reason_texts[reason], stamp), arena,
                             err));
    ag_log(AG_LOG_WARN, "%s was moved to %s (%s); delete it there when it is of no use", from, quarantine,
           reason_texts[reason]);
    return AG_OK;
}

ag_status ag_quarantine_move(const char *run_dir, const char *name, ag_quarantine_reason reason, const char *const *missing,
                             size_t n_missing, ag_err *err)
{
    ag_arena arena = {0};
    const ag_status status = move_entry(run_dir, name, reason, missing, n_missing, &arena, err);
    ag_arena_free(&arena);
    return status;
}

/* ---- all of a run ------------------------------------------------------------------------------------------------ */
/* The first thing that is amiss names the reason; details.missing has them all. */
static ag_status move_checkpoint(const char *run_dir, const ag_checkpoint_entry *entry, ag_err *err)
{
    static const struct {
        unsigned lacks;
        ag_quarantine_reason reason;
        const char *word;
    } faults[] = {{AG_LACKS_STATE, AG_QUARANTINE_NO_STATE, "trainer_state.json"},
                  {AG_LACKS_CONFIG, AG_QUARANTINE_NO_CONFIG, "adapter_config.json"},
                  {AG_LACKS_WEIGHTS, AG_QUARANTINE_NO_WEIGHTS, "adapter_model.safetensors"}};
    enum { N_FAULTS = sizeof faults / sizeof *faults };
    const char *missing[N_FAULTS];
    size_t n_missing = 0;
    ag_quarantine_reason reason = AG_QUARANTINE_UNSAFE;
    for (int i = 0; i < N_FAULTS; i++) {
        if (!(entry->lacks & faults[i].lacks)) continue;
        if (n_missing == 0) reason = faults[i].reason;
        missing[n_missing++] = faults[i].word;
    }
    return ag_quarantine_move(run_dir, entry->name, reason, missing, n_missing, err);
}

static ag_status sweep_checkpoints(const char *run_dir, ag_arena *arena, ag_err *err)
{
    ag_run_scan scan;
    AG_TRY(ag_run_scan_make(&scan, run_dir, false, arena, err));
    for (size_t i = 0; i < scan.n; i++)
        if (scan.entries[i].lacks && !scan.entries[i].is_link) AG_TRY(move_checkpoint(run_dir, &scan.entries[i], err));
    return AG_OK;
}

static ag_status sweep_staging(const char *run_dir, ag_arena *arena, ag_err *err)
{
    char **names;
    size_t n;
    AG_TRY(ag_dir_list(&names, &n, run_dir, arena, err));
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        if (!ag_str_starts(names[i], AG_CHECKPOINT_STAGING) && !ag_str_starts(names[i], AG_EXPORT_STAGING)) continue;
        if (lstat(ag_path_join(arena, run_dir, names[i]), &st) || !S_ISDIR(st.st_mode)) continue;
        AG_TRY(ag_quarantine_move(run_dir, names[i], AG_QUARANTINE_STAGING, NULL, 0, err));
    }
    return AG_OK;
}

ag_status ag_quarantine_sweep(const char *run_dir, ag_err *err)
{
    ag_arena arena = {0};
    ag_status status = AG_OK;
    if (ag_path_is_dir(run_dir)) {
        status = sweep_checkpoints(run_dir, &arena, err);
        if (!status) status = sweep_staging(run_dir, &arena, err);
    }
    ag_arena_free(&arena);
    return status;
}
