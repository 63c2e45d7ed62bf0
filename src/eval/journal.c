#define _GNU_SOURCE
#include "eval/journal.h"

#include "base/canonical_json.h"
#include "eval/contract.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIGITS = 16, MAX_CONTRACT_BYTES = 1 << 30 };

/* ---- identity ---------------------------------------------------------------------------------------------------- */
static ag_status publish(const ag_journal *j, ag_arena *arena, const char *name, const json_t *value, ag_err *err)
{
    ag_str text = {0};
    ag_json_add_canonical(&text, value);
    ag_str_add_char(&text, '\n');
    ag_status status = ag_file_publish(ag_path_join(arena, j->dir, name), text.text, text.n, err);
    ag_str_free(&text);
    return status;
}

static ag_status hold_against(const ag_journal *j, const char *path, const json_t *wanted, ag_err *err)
{
    json_t *found;
    AG_TRY(ag_json_load(&found, path, MAX_CONTRACT_BYTES, err));
    ag_str differences = {0};
    ag_contract_differences(&differences, wanted, found);
    ag_status status = AG_OK;
    if (differences.n)
        status =
            ag_fail(err, AG_E_CONFIG,
                    "%s: an unfinished evaluation lies there that was asked something else: %s differ; finish it with its own "
                    "options, give another --output-dir, or throw it away with --restart",
                    j->dir, differences.text);
    ag_str_free(&differences);
    ag_json_free(&found);
    return status;
}

static ag_status begin(ag_journal *j, const json_t *contract, const json_t *engine, ag_err *err)
{
    const char *contract_path = ag_path_join(&j->arena, j->dir, "contract.json"),
               *engine_path = ag_path_join(&j->arena, j->dir, "engine.json");
    if (ag_path_is_file(contract_path) && ag_path_is_file(engine_path)) {
        AG_TRY(hold_against(j, contract_path, contract, err));
        return hold_against(j, engine_path, engine, err);
    }
    AG_TRY(publish(j, &j->arena, "engine.json", engine, err));
    return publish(j, &j->arena, "contract.json", contract, err);
}

ag_status ag_journal_open(ag_journal *j, const char *output, const json_t *contract, const json_t *engine, bool restart,
                          ag_err *err)
{
    *j = (ag_journal){.lock = {.fd = -1}};
    j->dir = ag_path_join(&j->arena, ag_path_dir(&j->arena, output),
                          ag_arena_printf(&j->arena, ".agoge-eval-%s", ag_path_base(output)));
    ag_status status = ag_make_dirs(j->dir, err);
    if (!status) status = ag_lock_take(&j->lock, j->dir, "lock", err);
    if (!status && restart) {
        ag_lock_release(&j->lock);
        status = ag_remove_tree(j->dir, err);
        if (!status) status = ag_make_dirs(j->dir, err);
        if (!status) status = ag_lock_take(&j->lock, j->dir, "lock", err);
    }
    if (!status) status = begin(j, contract, engine, err);
    if (status) ag_journal_close(j);
    return status;
}

void ag_journal_close(ag_journal *j)
{
    ag_lock_release(&j->lock);
    ag_arena_free(&j->arena);
    *j = (ag_journal){.lock = {.fd = -1}};
}

ag_status ag_journal_remove(ag_journal *j, ag_err *err)
{
    ag_status status = ag_remove_tree(j->dir, err);
    ag_journal_close(j);
    return status;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */
static const char *arm_path(const ag_journal *j, const char *arm, ag_arena *arena)
{
    return ag_path_join(arena, j->dir, ag_arena_printf(arena, "%s.jsonl", arm));
}

static bool is_whole(const char *line, size_t n)
{
    return n > DIGITS + 1 && line[DIGITS] == ' ' &&
           memcmp(ag_sha256_bytes(line + DIGITS + 1, n - DIGITS - 1).hex, line, DIGITS) == 0;
}

static int by_id(const void *id, const void *task) { return strcmp(id, ((const ag_task *)task)->id); }

/* Tasks are in the order of their ids, as the split has them. */
static const ag_task *task_of(const ag_task_list *tasks, const json_t *row)
{
    const char *id = json_string_value(json_object_get(row, "task_id"));
    return id ? bsearch(id, tasks->task, tasks->n, sizeof *tasks->task, by_id) : NULL;
}

static ag_status read_line(const char *line, size_t n, const ag_task_list *tasks, const char *path, ag_generation *out,
                           bool *found, ag_arena *arena, ag_err *err)
{
    json_t *row;
    AG_TRY(ag_json_parse(&row, line, n, path, err));
    const ag_task *task = task_of(tasks, row);
    ag_status status =
        task ? AG_OK : ag_fail(err, AG_E_DATA, "%s: has a task that the split has not; start anew with --restart", path);
    if (!status) status = ag_generation_read(&out[task - tasks->task], row, task, path, arena, err);
    if (!status) found[task - tasks->task] = true;
    ag_json_free(&row);
    return status;
}

ag_status ag_journal_read(const ag_journal *j, const char *arm, const ag_task_list *tasks, ag_generation *out, bool *found,
                          ag_arena *arena, ag_err *err)
{
    const char *path = arm_path(j, arm, arena);
    memset(found, 0, tasks->n * sizeof *found);
    if (!ag_path_is_file(path)) return AG_OK;
    ag_map map;
    AG_TRY(ag_map_open_no_link(&map, path, err));
    ag_status status = AG_OK;
    size_t at = 0;
    while (at < map.n && !status) {
        const char *line = (const char *)map.bytes + at, *newline = memchr(line, '\n', map.n - at);
        const size_t n = newline ? (size_t)(newline - line) : 0;
        if (!newline || !is_whole(line, n)) break;
        status = read_line(line + DIGITS + 1, n - DIGITS - 1, tasks, path, out, found, arena, err);
        at += n + 1;
    }
    const bool is_torn = at < map.n;
    ag_map_close(&map);
    if (!status && is_torn && truncate(path, (off_t)at)) status = ag_fail_errno(err, errno, "%s cannot be mended", path);
    return status;
}

ag_status ag_journal_arm_open(ag_journal_arm *a, ag_journal *j, const char *arm, ag_err *err)
{
    a->path = arm_path(j, arm, &j->arena);
    a->fd = ag_fs_calls_used.open(a->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    return a->fd < 0 ? ag_fail_errno(err, errno, "%s cannot be opened", a->path) : AG_OK;
}

ag_status ag_journal_add(ag_journal_arm *a, const ag_generation *g, ag_err *err)
{
    ag_str row = {0}, line = {0};
    ag_generation_write(&row, g);
    ag_str_printf(&line, "%.*s ", DIGITS, ag_sha256_bytes(row.text, row.n).hex);
    ag_str_add_n(&line, row.text, row.n);
    ag_str_add_char(&line, '\n');
    ag_status status = AG_OK;
    for (size_t at = 0; at < line.n && !status;) {
        const ssize_t wrote = ag_fs_calls_used.write(a->fd, line.text + at, line.n - at);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0)
            status = ag_fail_errno(err, wrote < 0 ? errno : EIO, "%s cannot be written", a->path);
        else
            at += (size_t)wrote;
    }
    ag_str_free(&row);
    ag_str_free(&line);
    return status;
}

ag_status ag_journal_arm_close(ag_journal_arm *a, ag_err *err)
{
    if (a->fd < 0) return AG_OK;
    const int failed = ag_fs_calls_used.close(a->fd);
    a->fd = -1;
    return failed && errno != EINTR ? ag_fail_errno(err, errno, "%s cannot be written", a->path) : AG_OK;
}
