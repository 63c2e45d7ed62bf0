#include "data/split.h"

#include "base/canonical_json.h"
#include "base/fs.h"
#include "data/split_manifest.h"
#include "data/split_table.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const ag_split_freeze_options *o;
    ag_split_identity identity;
    const char *source; /* absolute */
    ag_map map;
    ag_sha256 source_sha256;
    ag_split_lines lines;
    ag_split_table table;
    atomic_uint n_read;           /* rows read again since the start */
    uint32_t *order[AG_N_SPLITS]; /* rows of each split, by canonical id */
    size_t n_of[AG_N_SPLITS];
    ag_sha256 part_sha256[AG_N_SPLITS];
    ag_arena arena;
} freezer;

/* ---- what was asked ---------------------------------------------------------------------------------------------- */
static ag_status need(const char *text, const char *option, ag_err *err)
{
    if (text && text[strspn(text, " \t\n\r\v\f")]) return AG_OK;
    return ag_fail(err, AG_E_CONFIG, "--%s is blank; give it, because the manifest records it", option);
}

static ag_status check(const ag_split_freeze_options *o, ag_err *err)
{
    static const char *const weights[] = {"train-weight", "validation-weight", "held-out-weight"};
    AG_TRY(need(o->source_repository, "source-repository", err));
    AG_TRY(need(o->dataset_version, "dataset-version", err));
    AG_TRY(need(o->policy.salt, "salt", err));
    AG_TRY(need(o->identity.canonical_id_field, "canonical-id-field", err));
    AG_TRY(need(o->identity.lineage_id_field, "lineage-id-field", err));
    AG_TRY(need(o->identity.group_id_field, "group-id-field", err));
    AG_TRY(ag_path_check_repository_relative(o->source_path, err));
    if (!ag_revision_is_immutable(o->source_revision))
        return ag_fail(err, AG_E_CONFIG,
                       "--source-revision '%s' may move; give the commit (40 to 64 hexadecimal digits in lower case)",
                       o->source_revision ? o->source_revision : "");
    for (int i = 0; i < AG_N_SPLITS; i++)
        if (o->policy.weight[i] < 1 || o->policy.weight[i] > AG_SPLIT_MAX_WEIGHT)
            return ag_fail(err, AG_E_CONFIG, "--%s is %lld; each split needs a weight from 1 to %d", weights[i],
                           (long long)o->policy.weight[i], AG_SPLIT_MAX_WEIGHT);
    return AG_OK;
}

/* ---- keys of all rows -------------------------------------------------------------------------------------------- */
static ag_status read_keys(freezer *f, ag_err *err)
{
    enum { ROWS_AT_A_TIME = 16384 };
    size_t failed_at = SIZE_MAX;
    ag_err first;
    for (size_t from = 0; from < f->lines.n && failed_at == SIZE_MAX; from += ROWS_AT_A_TIME) {
        const size_t end = from + ROWS_AT_A_TIME < f->lines.n ? from + ROWS_AT_A_TIME : f->lines.n;
#pragma omp parallel num_threads(f->o->n_threads)
        {
            ag_split_row row = {0};
            ag_err own;
#pragma omp for schedule(dynamic, 64)
            for (size_t i = from; i < end; i++) {
                const ag_split_line line = f->lines.line[i];
                if (!ag_split_row_read(&row, (const char *)f->map.bytes + line.start, line.n, &f->identity, true, f->source,
                                       line.number, &own)) {
                    ag_split_table_set(&f->table, i, &row, &f->o->policy);
                    continue;
                }
#pragma omp critical(ag_split_freeze)
                if (i < failed_at) {
                    failed_at = i;
                    first = own;
                }
            }
            ag_split_row_free(&row);
        }
        const size_t start = f->lines.line[from].start;
        ag_map_forget(&f->map, start, f->lines.line[end - 1].start + f->lines.line[end - 1].n - start);
    }
    if (failed_at == SIZE_MAX) return AG_OK;
    if (err) *err = first;
    return first.code;
}

/* For ag_split_reader: the ids of a row once more. Rows come in any order, and each brings some pages around it into memory. */
static ag_status read_ids(void *user, size_t i, ag_split_row *row, ag_err *err)
{
    freezer *f = user;
    if (atomic_fetch_add(&f->n_read, 1) % AG_SPLIT_FORGET_ROWS == 0) ag_map_forget(&f->map, 0, f->map.n);
    const ag_split_line line = f->lines.line[i];
    AG_TRY(
        ag_split_row_read_ids(row, (const char *)f->map.bytes + line.start, line.n, &f->identity, f->source, line.number, err));
    const ag_split_key key = ag_split_key_of(row->canonical_id.text, row->canonical_id.n);
    const ag_split_key *before = &f->table.key[AG_SPLIT_KEY_CANONICAL][i];
    if (key.high == before->high && key.low == before->low) return AG_OK;
    return ag_fail(err, AG_E_DATA, "%s: line %u changed while it was read; freeze again when nobody writes to it", f->source,
                   line.number);
}

static ag_status refuse_twice(freezer *f, ag_err *err)
{
    size_t first, second;
    if (!ag_split_table_find_twice(f->table.key[AG_SPLIT_KEY_CANONICAL], f->table.n, &first, &second)) return AG_OK;
    ag_split_row row = {0};
    AG_TRY(read_ids(f, first, &row, err));
    ag_status status = ag_fail(
        err, AG_E_DATA, "%s: the canonical id '%.200s' stands twice, at %s:%u and %s:%u; give each row its own", f->source,
        row.canonical_id.text, f->o->source_path, f->lines.line[first].number, f->o->source_path, f->lines.line[second].number);
    ag_split_row_free(&row);
    return status;
}

static ag_status divide(freezer *f, ag_err *err)
{
    const ag_split_reader reader = {read_ids, f};
    AG_TRY(ag_split_table_assign(&f->table, &f->o->policy, &reader, f->o->n_threads, err));
    ag_map_forget(&f->map, 0, f->map.n);
    for (size_t i = 0; i < f->table.n; i++) f->n_of[f->table.split[i]]++;
    for (int s = 0; s < AG_N_SPLITS; s++)
        if (f->n_of[s] == 0)
            return ag_fail(err, AG_E_DATA,
                           "%s: the split %s would be empty with %zu rows; take a larger source, or another versioned salt",
                           f->source, ag_split_name_text(s), f->table.n);
    size_t filled[AG_N_SPLITS] = {0};
    for (int s = 0; s < AG_N_SPLITS; s++) {
        f->order[s] = malloc(f->n_of[s] * sizeof **f->order);
        if (!f->order[s]) ag_out_of_memory(f->n_of[s] * sizeof **f->order);
    }
    for (size_t i = 0; i < f->table.n; i++) f->order[f->table.split[i]][filled[f->table.split[i]]++] = (uint32_t)i;
    for (int s = 0; s < AG_N_SPLITS; s++) {
        AG_TRY(ag_split_table_order(f->order[s], f->n_of[s], &reader, f->o->n_threads, err));
        ag_map_forget(&f->map, 0, f->map.n);
    }
    return AG_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
typedef struct {
    ag_str line, member; /* of one row, as they are written */
    ag_status status;
    ag_err err;
} made_row;

static void make_row(freezer *f, made_row *made, size_t i, ag_split_row *row)
{
    const ag_split_line line = f->lines.line[i];
    const char *bytes = (const char *)f->map.bytes + line.start;
    ag_str_clear(&made->line);
    ag_str_clear(&made->member);
    made->status = ag_split_row_read(row, bytes, line.n, &f->identity, true, f->source, line.number, &made->err);
    if (made->status) return;
    const ag_split_key key = ag_split_key_of(row->canonical_id.text, row->canonical_id.n),
                       content = ag_split_key_of_digest(&row->content);
    const ag_split_key *was = &f->table.key[AG_SPLIT_KEY_CANONICAL][i], *had = &f->table.key[AG_SPLIT_KEY_CONTENT][i];
    if (key.high != was->high || key.low != was->low || content.high != had->high || content.low != had->low) {
        made->status =
            ag_fail(&made->err, AG_E_DATA, "%s: line %u changed while it was read; freeze again when nobody writes to it",
                    f->source, line.number);
        return;
    }
    ag_json_add_canonical(&made->line, row->root);
    const ag_sha256 raw = ag_sha256_bytes(bytes, line.n), materialized = ag_sha256_bytes(made->line.text, made->line.n);
    ag_str_add_char(&made->line, '\n');
    ag_split_member_write(&made->member,
                          &(ag_split_member){.canonical_id = row->canonical_id,
                                             .lineage_id = row->lineage_id,
                                             .group_id = row->group_id,
                                             .line_number = line.number,
                                             .content = row->content,
                                             .raw_line = raw,
                                             .materialized_line = materialized},
                          f->o->source_path);
}

/* One split's file, and its members into the manifest. */
static ag_status write_part(freezer *f, ag_split_name s, const char *path, ag_file_writer *manifest, ag_err *err)
{
    enum { ROWS_AT_A_TIME = 512 };
    made_row *made = calloc(ROWS_AT_A_TIME, sizeof *made);
    if (!made) ag_out_of_memory(ROWS_AT_A_TIME * sizeof *made);
    ag_sha256_state *sha = ag_sha256_begin();
    ag_file_writer w;
    ag_status status = ag_file_begin(&w, path, err);
    for (size_t from = 0; from < f->n_of[s] && !status; from += ROWS_AT_A_TIME) {
        const size_t n = f->n_of[s] - from < ROWS_AT_A_TIME ? f->n_of[s] - from : ROWS_AT_A_TIME;
#pragma omp parallel num_threads(f->o->n_threads)
        {
            ag_split_row row = {0};
#pragma omp for schedule(dynamic, 16)
            for (size_t i = 0; i < n; i++) make_row(f, &made[i], f->order[s][from + i], &row);
            ag_split_row_free(&row);
        }
        for (size_t i = 0; i < n && !status; i++) {
            status = made[i].status;
            if (status && err) *err = made[i].err;
            if (!status) ag_sha256_add(sha, made[i].line.text, made[i].line.n);
            if (!status) status = ag_file_write(&w, made[i].line.text, made[i].line.n, err);
            if (!status && from + i > 0) status = ag_file_write(manifest, ",", 1, err);
            if (!status) status = ag_file_write(manifest, made[i].member.text, made[i].member.n, err);
        }
        ag_map_forget(&f->map, 0, f->map.n);
    }
    if (status)
        ag_file_abort(&w);
    else
        status = ag_file_commit(&w, err);
    f->part_sha256[s] = ag_sha256_end(sha);
    for (size_t i = 0; i < ROWS_AT_A_TIME; i++) {
        ag_str_free(&made[i].line);
        ag_str_free(&made[i].member);
    }
    free(made);
    return status;
}

static ag_split_manifest_head head_of(const freezer *f)
{
    return (ag_split_manifest_head){.repository = f->o->source_repository,
                                    .revision = f->o->source_revision,
                                    .dataset_version = f->o->dataset_version,
                                    .source_path = f->o->source_path,
                                    .source_sha256 = f->source_sha256,
                                    .n_rows = (int64_t)f->table.n,
                                    .identity = f->identity,
                                    .policy = f->o->policy};
}

static ag_status put(ag_file_writer *w, const ag_str *text, ag_err *err) { return ag_file_write(w, text->text, text->n, err); }

/* The manifest and the splits are written side by side, so that nothing of a large dataset waits in memory. */
static ag_status write_manifest(freezer *f, const char *dir, ag_file_writer *w, ag_err *err)
{
    static const ag_split_name by_key[AG_N_SPLITS] = {AG_SPLIT_HELD_OUT, AG_SPLIT_TRAIN, AG_SPLIT_VALIDATION};
    const ag_split_manifest_head head = head_of(f);
    ag_str text = {0};
    ag_split_manifest_write_begin(&text, &head);
    ag_status status = put(w, &text, err);
    for (int i = 0; i < AG_N_SPLITS && !status; i++) {
        const ag_split_name s = by_key[i];
        const char *path = ag_arena_printf(&f->arena, "splits/%s.jsonl", ag_split_name_text(s));
        ag_str_clear(&text);
        ag_str_printf(&text, "%s\"%s\":{\"members\":[", i ? "," : "", ag_split_name_text(s));
        status = put(w, &text, err);
        if (!status) status = write_part(f, s, ag_path_join(&f->arena, dir, path), w, err);
        ag_str_clear(&text);
        ag_str_printf(&text, "],\"path\":\"%s\",\"record_count\":%zu,\"sha256\":\"%s\"}", path, f->n_of[s],
                      f->part_sha256[s].hex);
        if (!status) status = put(w, &text, err);
    }
    ag_str_clear(&text);
    ag_split_manifest_write_end(&text);
    if (!status) status = put(w, &text, err);
    ag_str_free(&text);
    return status;
}

static ag_status write_all(freezer *f, const char *dir, ag_err *err)
{
    ag_file_writer w;
    AG_TRY(ag_make_dirs(ag_path_join(&f->arena, dir, "splits"), err));
    AG_TRY(ag_file_begin(&w, ag_path_join(&f->arena, dir, AG_SPLIT_MANIFEST_FILE), err));
    ag_status status = write_manifest(f, dir, &w, err);
    if (status)
        ag_file_abort(&w);
    else
        status = ag_file_commit(&w, err);
    if (status) return status;

    ag_str report = {0};
    const ag_split_manifest_head head = head_of(f);
    const int64_t n_of[AG_N_SPLITS] = {(int64_t)f->n_of[0], (int64_t)f->n_of[1], (int64_t)f->n_of[2]};
    ag_split_report_write(&report, &head, n_of);
    status = ag_file_publish(ag_path_join(&f->arena, dir, "split_report.md"), report.text, report.n, err);
    ag_str_free(&report);
    return status;
}

static ag_status publish(freezer *f, const char *output, ag_split_freeze_result *result, ag_err *err)
{
    ag_dir_writer w;
    AG_TRY(ag_dir_begin(&w, output, ".agoge-split-staging-", err));
    ag_status status = write_all(f, w.staging, err);
    if (!status)
        status = ag_sha256_file(&result->manifest_sha256, ag_path_join(&f->arena, w.staging, AG_SPLIT_MANIFEST_FILE), err);
    if (status)
        ag_dir_abort(&w);
    else
        status = ag_dir_commit(&w, err);
    return status;
}

static ag_status freeze(freezer *f, ag_split_freeze_result *result, ag_err *err)
{
    char *source, *output;
    AG_TRY(check(f->o, err));
    AG_TRY(ag_path_absent_dir(&output, f->o->output_dir, &f->arena, err));
    AG_TRY(ag_path_existing_file(&source, f->o->source, &f->arena, err));
    f->source = source;
    AG_TRY(ag_map_open(&f->map, source, err));
    AG_TRY(ag_split_lines_find(&f->lines, &f->source_sha256, &f->map, source, err));
    AG_TRY(ag_split_table_init(&f->table, f->lines.n, err));
    AG_TRY(read_keys(f, err));
    AG_TRY(refuse_twice(f, err));
    AG_TRY(divide(f, err));
    AG_TRY(publish(f, output, result, err));
    result->n_rows = (int64_t)f->table.n;
    for (int s = 0; s < AG_N_SPLITS; s++) result->n_of[s] = (int64_t)f->n_of[s];
    result->source_sha256 = f->source_sha256;
    return AG_OK;
}

ag_status ag_split_freeze(ag_split_freeze_result *result, const ag_split_freeze_options *options, ag_err *err)
{
    freezer f = {.o = options, .identity = options->identity};
    f.identity.content = AG_SPLIT_CONTENT_PAYLOAD;
    *result = (ag_split_freeze_result){0};
    ag_status status = freeze(&f, result, err);
    for (int s = 0; s < AG_N_SPLITS; s++) free(f.order[s]);
    ag_split_table_free(&f.table);
    ag_split_lines_free(&f.lines);
    ag_map_close(&f.map);
    ag_arena_free(&f.arena);
    return status;
}
