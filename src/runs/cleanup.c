#define _GNU_SOURCE
#include "runs/cleanup.h"

#include "base/fs.h"
#include "runs/adapter_check.h"
#include "runs/run_tree.h"
#include "seal/artifact_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A checkpoint without it is unfinished by every command's rule, so that it goes first. */
static const char FIRST[] = "trainer_state.json";

typedef struct {
    const char *name;
    int64_t step;
    bool is_kept, is_empty;
    ag_tree_entry entry;
} candidate;

typedef struct {
    ag_cleanup *out;
    const ag_cleanup_options *options;
    ag_arena *arena;
    int fd;             /* of the run's folder */
    const char *access; /* a path that names that descriptor */
    ag_lock lock;
    candidate *items;
    size_t n;
} cleanup;

/* ---- may it begin? ----------------------------------------------------------------------------------------------- */
/* A run that is being trained is left alone. Where no lock can be made (a parent that may not be written to) nobody can have
 * one. */
static ag_status take_lock(cleanup *c, ag_err *err)
{
    const char *real = c->out->place.logical, *name = ag_arena_printf(c->arena, ".%s.lock", ag_path_base(real));
    const char *parent = ag_path_dir(c->arena, real);
    ag_err why;
    if (c->options->dry_run && !ag_path_is_file(ag_path_join(c->arena, parent, name)))
        return AG_OK; /* a plan leaves no trace */
    const ag_status status = ag_lock_take(&c->lock, parent, name, &why);
    if (status != AG_E_BUSY) return AG_OK;
    return ag_fail(err, AG_E_BUSY, "%s: a training run is at work here; clean up when it has ended", real);
}

static ag_status guard(cleanup *c, const ag_run_status *status, ag_err *err)
{
    ag_cleanup *out = c->out;
    const ag_adapter_check_options options = {.allow_unsafe = c->options->allow_unsafe, .hub_cache = c->options->hub_cache};
    const bool is_sound = status->scan.has_final_adapter && ag_adapter_is_sound(c->access, out->place.real, &options, c->arena);
    out->final_artifact = is_sound || status->merged_path;
    out->forced = c->options->force && !out->final_artifact;
    if (out->final_artifact || out->forced) return AG_OK;
    return ag_fail(
        err, AG_E_CONFIG,
        "%s: the checkpoints are the only recoverable artifact of this run (%s; no usable merged model). Finish the run "
        "or merge a checkpoint first (agoge export-final-model), or pass --force to delete them all the same",
        out->place.real, status->scan.has_final_adapter ? "its final adapter is damaged" : "it has no final adapter");
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */
static int by_step(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->step != y->step ? (x->step > y->step) - (x->step < y->step) : strcmp(x->name, y->name);
}

static ag_status find_candidates(cleanup *c, ag_err *err)
{
    char **names;
    size_t n;
    AG_TRY(ag_dir_list(&names, &n, c->access, c->arena, err));
    c->items = ag_arena_array(c->arena, n + 1, sizeof *c->items);
    for (size_t i = 0; i < n; i++) {
        candidate *item = &c->items[c->n];
        *item = (candidate){.name = names[i], .step = ag_checkpoint_number(names[i])};
        if (item->step < 0) continue;
        const ag_status status = ag_tree_look(&item->entry, c->fd, item->name, err);
        if (status) {
            (void)ag_err_prefix(err, "%s", c->out->place.real);
            return status;
        }
        if (item->entry.kind != AG_TREE_OTHER && item->entry.kind != AG_TREE_GONE) c->n++;
    }
    qsort(c->items, c->n, sizeof *c->items, by_step);
    return AG_OK;
}

static bool is_valid(const ag_run_scan *scan, const char *name)
{
    for (size_t i = 0; i < scan->n; i++)
        if (strcmp(scan->entries[i].name, name) == 0) return scan->entries[i].lacks == 0;
    return false;
}

/* The newest valid folders take the slots; a half-written one is no resume point, whatever its step. */
static void choose_kept(cleanup *c, const ag_run_scan *scan)
{
    int64_t left = c->options->keep_latest;
    for (size_t i = c->n; i-- > 0 && left > 0;) {
        if (c->items[i].entry.kind != AG_TREE_DIR || !is_valid(scan, c->items[i].name)) continue;
        c->items[i].is_kept = true;
        left--;
    }
}

static const char *shown(const cleanup *c, const candidate *item)
{
    return ag_path_join(c->arena, c->out->place.real, item->name);
}

/* Sentences of what was read through the descriptor name the run as its user knows it. */
static const char *readable(const cleanup *c, const char *text)
{
    const char *at;
    for (const size_t n = strlen(c->access); (at = strstr(text, c->access)) != NULL && at[n] != 0;)
        text = ag_arena_printf(c->arena, "%.*s%s%s", (int)(at - text), text, c->out->place.real, at + n);
    return text;
}

static void note_failure(cleanup *c, const char *path, const char *why)
{
    c->out->failed[c->out->n_failed++] = (ag_cleanup_note){path, ag_arena_strdup(c->arena, readable(c, why))};
}

static void note_removed(cleanup *c, const candidate *item)
{
    c->out->removed[c->out->n_removed++] = (ag_cleanup_removed){shown(c, item), item->step, item->entry.bytes};
    c->out->bytes_reclaimed += item->entry.bytes;
}

static void tell_plan(cleanup *c)
{
    ag_cleanup *out = c->out;
    out->removed = ag_arena_array(c->arena, c->n + 1, sizeof *out->removed);
    out->kept = ag_arena_array(c->arena, c->n + 1, sizeof *out->kept);
    out->skipped = ag_arena_array(c->arena, c->n + 1, sizeof *out->skipped);
    out->failed = ag_arena_array(c->arena, c->n + 2, sizeof *out->failed);
    for (size_t i = 0; i < c->n; i++) {
        const candidate *item = &c->items[i];
        if (item->entry.kind != AG_TREE_DIR)
            out->skipped[out->n_skipped++] = (ag_cleanup_note){shown(c, item), ag_tree_kind_text(item->entry.kind)};
        else if (item->is_kept)
            out->kept[out->n_kept++] = shown(c, item);
        else if (out->dry_run)
            note_removed(c, item);
    }
}

/* ---- the deed ---------------------------------------------------------------------------------------------------- */
static void rewrite_index(cleanup *c)
{
    ag_err why;
    const char *real = c->out->place.real;
    const ag_status status = ag_cleanup_index(&c->out->index_rewritten, c->access, real,
                                              c->options->n_threads > 0 ? c->options->n_threads : 1, &why);
    if (status) note_failure(c, ag_path_join(c->arena, real, AG_ARTIFACT_INDEX_FILE), why.text);
}

/* The index is rewritten while the emptied folders still stand: whoever is killed before that leaves candidates, so that the
 * next cleanup comes to the index. */
static void remove_all(cleanup *c)
{
    ag_err why;
    bool any = false;
    for (size_t i = 0; i < c->n; i++) {
        candidate *item = &c->items[i];
        if (item->entry.kind != AG_TREE_DIR || item->is_kept) continue;
        any = true;
        item->is_empty = ag_tree_empty(c->fd, item->name, &item->entry, FIRST, &why) == AG_OK;
        if (!item->is_empty) note_failure(c, shown(c, item), why.text);
    }
    if (!any) return;
    rewrite_index(c);
    for (size_t i = 0; i < c->n; i++) {
        const candidate *item = &c->items[i];
        if (!item->is_empty) continue;
        if (ag_tree_drop(c->fd, item->name, &item->entry, &why)) note_failure(c, shown(c, item), why.text);
        else note_removed(c, item);
    }
    if (ag_tree_sync(c->fd, c->out->place.real, &why)) note_failure(c, c->out->place.real, why.text);
}

static ag_status clean(cleanup *c, ag_err *err)
{
    ag_run_status status;
    AG_TRY(take_lock(c, err));
    AG_TRY(ag_run_status_make(&status, &c->out->place,
                              &(ag_run_status_options){.allow_unsafe = c->options->allow_unsafe,
                                                       .hub_cache = c->options->hub_cache,
                                                       .n_threads = c->options->n_threads,
                                                       .access = c->access},
                              c->arena, err));
    AG_TRY(guard(c, &status, err));
    AG_TRY(find_candidates(c, err));
    choose_kept(c, &status.scan);
    tell_plan(c);
    if (c->options->dry_run) return AG_OK;
    if (c->options->planned) c->options->planned(c->options->user);
    remove_all(c);
    return AG_OK;
}

ag_status ag_cleanup_run(ag_cleanup *out, const ag_cleanup_options *options, ag_arena *arena, ag_err *err)
{
    cleanup c = {.out = out, .options = options, .arena = arena, .lock = {.fd = -1}};
    *out =
        (ag_cleanup){.dry_run = options->dry_run, .allow_unsafe = options->allow_unsafe, .keep_latest = options->keep_latest};
    AG_TRY(ag_run_place_find(&out->place, options->run_dir, options->merged_dir, arena, err));
    if (options->keep_latest < 0)
        return ag_fail(err, AG_E_CONFIG, "--keep-latest is %lld; give the number of checkpoints to keep, 0 or more",
                       (long long)options->keep_latest);
    AG_TRY(ag_tree_open(&c.fd, out->place.logical, err));
    c.access = ag_arena_printf(arena, "/proc/self/fd/%d", c.fd);
    const ag_status status = clean(&c, err);
    if (status && err) snprintf(err->text, sizeof err->text, "%s", readable(&c, ag_arena_strdup(arena, err->text)));
    ag_lock_release(&c.lock);
    close(c.fd);
    return status;
}
