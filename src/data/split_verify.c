#define _GNU_SOURCE
#include "data/split.h"

#include "base/canonical_json.h"
#include "base/fs.h"
#include "data/split_manifest.h"
#include "data/split_table.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
    ag_split *split;
    const ag_split_check *check;
    ag_map manifest;
    ag_split_skeleton skeleton;
    ag_map map[AG_N_SPLITS];
    ag_split_lines lines[AG_N_SPLITS];
    ag_split_table table;      /* rows of train, then validation, then held_out */
    size_t first[AG_N_SPLITS]; /* row of each split in the table */
    uint32_t *line_number;     /* [n] of the source */
    ag_split_key *raw;         /* [n] of the raw line's digest */
    atomic_uint n_read;        /* rows read again since the start */
    void *block;
    size_t block_bytes;
} verifier;

static const char *name_of(const verifier *v) { return v->split->path; }

/* ---- files ------------------------------------------------------------------------------------------------------- */
/* The part's path as it is written, without a link on the way, so that it stays inside the manifest's folder. */
static ag_status find_part(verifier *v, ag_split_part *part, ag_err *err)
{
    const char *dir = ag_path_dir(&v->split->arena, v->split->path), *relative = part->path;
    for (size_t i = 0; i <= strlen(relative); i++) {
        if (relative[i] != '/' && relative[i] != 0) continue;
        const char *path = ag_path_join(&v->split->arena, dir, ag_arena_strndup(&v->split->arena, relative, i));
        struct stat st;
        if (lstat(path, &st))
            return ag_fail_errno(err, errno, "%s: its file %s is not there; restore it, or freeze again", name_of(v), path);
        if (S_ISLNK(st.st_mode))
            return ag_fail(
                err, AG_E_VERIFY,
                "%s: %s is a symbolic link; split files must lie in the manifest's folder, put the file itself there",
                name_of(v), path);
        part->path = path;
    }
    return AG_OK;
}

static ag_status open_part(verifier *v, ag_split_name s, ag_err *err)
{
    ag_split_part *part = &v->split->part[s];
    ag_sha256 digest;
    AG_TRY(find_part(v, part, err));
    AG_TRY(ag_map_open_no_link(&v->map[s], part->path, err));
    AG_TRY(ag_split_lines_find(&v->lines[s], &digest, &v->map[s], part->path, err));
    if (strcmp(digest.hex, part->sha256.hex) != 0)
        return ag_fail(
            err, AG_E_VERIFY,
            "%s: its SHA-256 is %s, the manifest says %s: the split was changed after it was frozen; restore the file, "
            "or freeze a new version",
            part->path, digest.hex, part->sha256.hex);
    if ((int64_t)v->lines[s].n != part->n_rows)
        return ag_fail(err, AG_E_VERIFY, "%s: has %zu records, the manifest says %lld; freeze the split again", part->path,
                       v->lines[s].n, (long long)part->n_rows);
    return AG_OK;
}

/* ---- members against rows ---------------------------------------------------------------------------------------- */
typedef struct {
    ag_split_row row;
    ag_str line, previous_id;
} row_check;

static bool same_text(const ag_str *a, const ag_str *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->text, b->text, a->n) == 0);
}

static ag_status lies(const verifier *v, ag_split_name s, size_t i, const char *what, ag_err *err)
{
    return ag_fail(
        err, AG_E_VERIFY,
        "%s: the member of %s line %u has another %s than the row; the manifest or the file was changed, restore them, "
        "or freeze again",
        name_of(v), v->split->part[s].path, v->lines[s].line[i].number, what);
}

static ag_status check_member(verifier *v, ag_split_name s, size_t i, const ag_split_member *m, row_check *c, ag_err *err)
{
    const ag_split_line line = v->lines[s].line[i];
    const char *bytes = (const char *)v->map[s].bytes + line.start;
    const size_t at = v->first[s] + i;
    AG_TRY(ag_split_row_read(&c->row, bytes, line.n, &v->split->identity, false, v->split->part[s].path, line.number, err));
    if (!same_text(&c->row.canonical_id, &m->canonical_id)) return lies(v, s, i, "canonical_id", err);
    if (!same_text(&c->row.lineage_id, &m->lineage_id)) return lies(v, s, i, "lineage_id", err);
    if (!same_text(&c->row.group_id, &m->group_id)) return lies(v, s, i, "group_id", err);
    if (strcmp(c->row.content.hex, m->content.hex) != 0) return lies(v, s, i, "content_sha256", err);
    ag_str_clear(&c->line);
    ag_json_add_canonical(&c->line, c->row.root);
    if (c->line.n != line.n || memcmp(c->line.text, bytes, line.n) != 0)
        return ag_fail(err, AG_E_VERIFY, "%s: line %u is not canonical JSON; the file was changed, restore it, or freeze again",
                       v->split->part[s].path, line.number);
    if (strcmp(ag_sha256_bytes(bytes, line.n).hex, m->materialized_line.hex) != 0)
        return lies(v, s, i, "materialized_line_sha256", err);
    const ag_str *id = &c->row.canonical_id;
    const int order = i == 0 ? -1 : memcmp(c->previous_id.text, id->text, c->previous_id.n < id->n ? c->previous_id.n : id->n);
    if (order > 0 || (order == 0 && c->previous_id.n >= id->n))
        return ag_fail(err, AG_E_VERIFY,
                       "%s: line %u is not in the order of canonical ids, or its id stands twice; freeze the split again",
                       v->split->part[s].path, line.number);
    ag_str_clear(&c->previous_id);
    ag_str_add_n(&c->previous_id, id->text, id->n);
    ag_split_table_set(&v->table, at, &c->row, &v->split->policy);
    v->line_number[at] = m->line_number;
    v->raw[at] = ag_split_key_of_digest(&m->raw_line);
    return AG_OK;
}

static ag_status check_members(verifier *v, ag_split_name s, ag_err *err)
{
    size_t at = v->skeleton.start[s] + 1;
    row_check c = {0};
    ag_status status = v->skeleton.end[s]
                           ? AG_OK
                           : ag_fail(err, AG_E_FORMAT, "%s: splits.%s.members must be a list; freeze the split again",
                                     name_of(v), ag_split_name_text(s));
    for (size_t i = 0; !status; i++) {
        json_t *value = NULL;
        ag_split_member member;
        status = ag_split_member_next(&value, &at, &v->manifest, v->skeleton.end[s], name_of(v), err);
        if (status) break;
        const bool is_there = value != NULL, fits = i < v->lines[s].n;
        if (is_there != fits)
            status =
                ag_fail(err, AG_E_VERIFY, "%s: splits.%s has %s members than the %zu rows of its file; freeze the split again",
                        name_of(v), ag_split_name_text(s), is_there ? "more" : "fewer", v->lines[s].n);
        if (!status && is_there) status = ag_split_member_read(&member, value, v->split->source_path, name_of(v), err);
        if (!status && is_there) status = check_member(v, s, i, &member, &c, err);
        if (value) ag_json_free(&value);
        if (!is_there) break;
        if (i % AG_SPLIT_FORGET_ROWS == 0) {
            ag_map_forget(&v->manifest, 0, at);
            ag_map_forget(&v->map[s], 0, v->map[s].n);
        }
    }
    ag_split_row_free(&c.row);
    ag_str_free(&c.line);
    ag_str_free(&c.previous_id);
    return status;
}

/* ---- what holds between rows ------------------------------------------------------------------------------------- */
static ag_split_name split_of(const verifier *v, size_t row)
{
    return row < v->first[AG_SPLIT_VALIDATION] ? AG_SPLIT_TRAIN
           : row < v->first[AG_SPLIT_HELD_OUT] ? AG_SPLIT_VALIDATION
                                               : AG_SPLIT_HELD_OUT;
}

static void forget_parts(verifier *v)
{
    for (int s = 0; s < AG_N_SPLITS; s++) ag_map_forget(&v->map[s], 0, v->map[s].n);
}

static ag_status read_ids(void *user, size_t i, ag_split_row *row, ag_err *err)
{
    verifier *v = user;
    const ag_split_name s = split_of(v, i);
    const ag_split_line line = v->lines[s].line[i - v->first[s]];
    if (atomic_fetch_add(&v->n_read, 1) % AG_SPLIT_FORGET_ROWS == 0) forget_parts(v);
    return ag_split_row_read_ids(row, (const char *)v->map[s].bytes + line.start, line.n, &v->split->identity,
                                 v->split->part[s].path, line.number, err);
}

static ag_status audit(verifier *v, ag_err *err)
{
    static const char *const what[AG_N_SPLIT_KEYS] = {"canonical ids", "lineages", "declared groups", "contents"};
    const size_t n = v->table.n;
    uint8_t *split = malloc(n);
    if (!split) ag_out_of_memory(n);
    for (size_t i = 0; i < n; i++) split[i] = (uint8_t)split_of(v, i);
    size_t crossing = 0;
    int kind = 0;
    for (; kind < AG_N_SPLIT_KEYS && !crossing; kind++) crossing = ag_split_table_count_crossing(v->table.key[kind], split, n);
    free(split);
    if (crossing)
        return ag_fail(
            err, AG_E_VERIFY,
            "%s: leakage: %zu %s stand in more than one split, the manifest says none; the splits were changed, freeze "
            "them again",
            name_of(v), crossing, what[kind - 1]);
    return AG_OK;
}

/* A source row stands once in all splits. The table's canonical keys are no longer needed and give their memory. */
static ag_status check_coordinates(verifier *v, ag_err *err)
{
    ag_split_key *key = v->table.key[AG_SPLIT_KEY_CANONICAL];
    for (size_t i = 0; i < v->table.n; i++) key[i] = (ag_split_key){1, v->line_number[i]};
    size_t first, second;
    if (!ag_split_table_find_twice(key, v->table.n, &first, &second)) return AG_OK;
    return ag_fail(err, AG_E_VERIFY, "%s: the source row %s:%u stands twice in the splits; freeze them again", name_of(v),
                   v->split->source_path, v->line_number[first]);
}

static ag_status check_ownership(verifier *v, ag_err *err)
{
    const ag_split_reader reader = {read_ids, v};
    AG_TRY(ag_split_table_assign(&v->table, &v->split->policy, &reader, v->check->n_threads, err));
    for (size_t i = 0; i < v->table.n; i++) {
        const ag_split_name s = split_of(v, i);
        if (v->table.split[i] != s)
            return ag_fail(
                err, AG_E_VERIFY,
                "%s: line %u belongs to the split %s by the manifest's policy; rows were moved, freeze the split again",
                v->split->part[s].path, v->lines[s].line[i - v->first[s]].number, ag_split_name_text(v->table.split[i]));
    }
    return AG_OK;
}

/* ---- against the source ------------------------------------------------------------------------------------------ */
typedef struct {
    uint32_t number, row;
} numbered;

static int by_number(const void *a, const void *b)
{
    const numbered *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Every row of the source is a row of the splits: same line, same bytes, same canonical JSON. */
static ag_status match_rows(verifier *v, const ag_map *map, const ag_split_lines *lines, const numbered *order,
                            const char *path, ag_err *err)
{
    ag_split_row row = {0};
    ag_str text = {0};
    ag_status status = AG_OK;
    for (size_t i = 0; i < lines->n && !status; i++) {
        const ag_split_line line = lines->line[i];
        const char *bytes = (const char *)map->bytes + line.start;
        const size_t at = order[i].row;
        const ag_split_name s = split_of(v, at);
        const ag_split_line frozen = v->lines[s].line[at - v->first[s]];
        const ag_split_key raw = ag_split_key_of(bytes, line.n);
        bool same = line.number == order[i].number && raw.high == v->raw[at].high && raw.low == v->raw[at].low;
        if (same) status = ag_split_row_read(&row, bytes, line.n, &v->split->identity, false, path, line.number, err);
        ag_str_clear(&text);
        if (same && !status) ag_json_add_canonical(&text, row.root);
        same = same && (status || (text.n == frozen.n && memcmp(text.text, v->map[s].bytes + frozen.start, text.n) == 0));
        if (!same)
            status = ag_fail(err, AG_E_VERIFY,
                             "%s: line %u is not the row that %s has from it; the splits were made from another file", path,
                             line.number, v->split->part[s].path);
        if (i % AG_SPLIT_FORGET_ROWS == 0) {
            ag_map_forget(map, 0, line.start);
            forget_parts(v);
        }
    }
    ag_split_row_free(&row);
    ag_str_free(&text);
    return status;
}

static ag_status check_source(verifier *v, ag_err *err)
{
    char *path;
    ag_map map;
    ag_split_lines lines = {0};
    ag_sha256 digest;
    AG_TRY(ag_path_existing_file(&path, v->check->source, &v->split->arena, err));
    AG_TRY(ag_map_open(&map, path, err));
    ag_status status = ag_split_lines_find(&lines, &digest, &map, path, err);
    if (!status && strcmp(digest.hex, v->split->source_sha256.hex) != 0)
        status =
            ag_fail(err, AG_E_VERIFY,
                    "%s: its SHA-256 is %s, the manifest says %s: the source was changed after it was frozen; take the file "
                    "that was frozen, or freeze a new version",
                    path, digest.hex, v->split->source_sha256.hex);
    if (!status && lines.n != v->table.n)
        status = ag_fail(err, AG_E_VERIFY, "%s: has %zu records, the splits have %zu; freeze the split again", path, lines.n,
                         v->table.n);
    numbered *order = malloc((v->table.n + 1) * sizeof *order);
    if (!order) ag_out_of_memory(v->table.n * sizeof *order);
    for (size_t i = 0; i < v->table.n; i++) order[i] = (numbered){v->line_number[i], (uint32_t)i};
    qsort(order, v->table.n, sizeof *order, by_number);
    if (!status) status = match_rows(v, &map, &lines, order, path, err);
    free(order);
    ag_split_lines_free(&lines);
    ag_map_close(&map);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */
static ag_status allocate(verifier *v, ag_err *err)
{
    size_t n = 0;
    for (int s = 0; s < AG_N_SPLITS; s++) {
        v->first[s] = n;
        n += v->lines[s].n;
    }
    AG_TRY(ag_split_table_init(&v->table, n, err));
    ag_layout layout = {0};
    (void)ag_layout_place(&layout, n * sizeof *v->raw);
    (void)ag_layout_place(&layout, n * sizeof *v->line_number);
    v->block_bytes = layout.bytes;
    AG_TRY(ag_pages_alloc(&v->block, layout.bytes, "the digests of the rows", err));
    layout = (ag_layout){.base = v->block};
    v->raw = ag_layout_place(&layout, n * sizeof *v->raw);
    v->line_number = ag_layout_place(&layout, n * sizeof *v->line_number);
    return AG_OK;
}

/* In pieces, so that a large manifest does not count as memory. */
static ag_sha256 digest_map(const ag_map *map)
{
    enum { PIECE_BYTES = 32 << 20 };
    ag_sha256_state *sha = ag_sha256_begin();
    for (size_t at = 0; at < map->n; at += PIECE_BYTES) {
        const size_t n = map->n - at < PIECE_BYTES ? map->n - at : PIECE_BYTES;
        ag_sha256_add(sha, map->bytes + at, n);
        ag_map_forget(map, at, n);
    }
    return ag_sha256_end(sha);
}

static ag_status verify(verifier *v, ag_err *err)
{
    AG_TRY(ag_map_open_no_link(&v->manifest, v->split->path, err));
    v->split->manifest_sha256 = digest_map(&v->manifest);
    AG_TRY(ag_split_skeleton_read(&v->skeleton, &v->manifest, v->split->path, err));
    AG_TRY(ag_split_head_read(v->split, v->skeleton.root, v->split->path, err));
    for (int s = 0; s < AG_N_SPLITS; s++) AG_TRY(open_part(v, s, err));
    AG_TRY(allocate(v, err));
    for (int s = 0; s < AG_N_SPLITS; s++) AG_TRY(check_members(v, s, err));
    AG_TRY(audit(v, err));
    AG_TRY(check_coordinates(v, err));
    AG_TRY(check_ownership(v, err));
    return v->check->source ? check_source(v, err) : AG_OK;
}

ag_status ag_split_open(ag_split **out, const char *manifest_path, const ag_split_check *check, ag_err *err)
{
    ag_split *split = calloc(1, sizeof *split);
    if (!split) ag_out_of_memory(sizeof *split);
    verifier v = {.split = split, .check = check};
    char *path;
    *out = NULL;
    ag_status status = ag_path_existing_file(&path, manifest_path, &split->arena, err);
    split->path = path;
    if (!status) status = verify(&v, err);
    if (v.skeleton.root) ag_json_free(&v.skeleton.root);
    ag_map_close(&v.manifest);
    for (int s = 0; s < AG_N_SPLITS; s++) {
        ag_split_lines_free(&v.lines[s]);
        ag_map_close(&v.map[s]);
    }
    ag_split_table_free(&v.table);
    ag_pages_free(v.block, v.block_bytes);
    if (status) ag_split_close(&split);
    *out = split;
    return status;
}

void ag_split_close(ag_split **split)
{
    if (!split || !*split) return;
    ag_arena_free(&(*split)->arena);
    free(*split);
    *split = NULL;
}

char *ag_split_manifest_find(const char *dataset_file, ag_arena *arena)
{
    const char *dir = ag_path_dir(arena, dataset_file);
    for (int level = 0; level < 2; level++) {
        char *path = ag_path_join(arena, dir, AG_SPLIT_MANIFEST_FILE);
        if (ag_path_is_file(path)) return path;
        dir = ag_path_dir(arena, dir);
    }
    return NULL;
}

ag_sha256 ag_split_cache_key(const ag_split *split, ag_split_name name)
{
    ag_str text = {0};
    ag_str_printf(&text, "%s\n%s\n%s\n", split->manifest_sha256.hex, ag_split_name_text(name), split->part[name].sha256.hex);
    const ag_sha256 key = ag_sha256_bytes(text.text, text.n);
    ag_str_free(&text);
    return key;
}
