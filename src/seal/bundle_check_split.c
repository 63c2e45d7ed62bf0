#define _GNU_SOURCE
#include "seal/bundle_checks.h"

#include "seal/portable_path.h"
#include "seal/split_reader.h"
#include "seal/strict.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPLIT_VERSION "agoge.split-manifest.v1"
enum { READ_BYTES = 256 << 10, N_SPLITS = AG_N_SPLIT_LISTS };
static const uint64_t MANIFEST_MAX_BYTES = (uint64_t)8 << 30; /* members take a twelfth of it in memory */
#define split_names ag_split_list_names

#define FIELDS(table) table, sizeof table / sizeof *table

/* ---- schema ---------------------------------------------------------------------------------------------------------- */
static const ag_strict_field root_fields[] = {
    {"schema_version", AG_STRICT_TEXT, 0},   {"source", AG_STRICT_OBJECT, 0},           {"canonical_identity", AG_STRICT_OBJECT, 0},
    {"split_policy", AG_STRICT_OBJECT, 0},   {"splits", AG_STRICT_OBJECT, 0},           {"leakage_audit", AG_STRICT_OBJECT, 0},
    {"token_statistics", AG_STRICT_OBJECT, 0}, {"exclusions", AG_STRICT_TEXTS, 0},      {"limitations", AG_STRICT_TEXTS, 0},
};
static const ag_strict_field source_fields[] = {
    {"repository", AG_STRICT_TEXT, 0}, {"revision", AG_STRICT_REVISION, 0}, {"dataset_version", AG_STRICT_TEXT, 0},
    {"path", AG_STRICT_TEXT, 0},       {"sha256", AG_STRICT_DIGEST, 0},     {"record_count", AG_STRICT_POSITIVE, 0},
};
static const ag_strict_field identity_fields[] = {
    {"canonical_id_field", AG_STRICT_TEXT, 0}, {"lineage_id_field", AG_STRICT_TEXT, 0}, {"group_id_field", AG_STRICT_TEXT, 0},
    {"missing_lineage", AG_STRICT_TEXT, 0},    {"source_coordinate_policy", AG_STRICT_TEXT, 0},
    {"content_hash_policy", AG_STRICT_TEXT, AG_STRICT_OPTIONAL}, /* manifests without it mean the older policy */
};
static const ag_strict_field policy_fields[] = {{"algorithm_version", AG_STRICT_TEXT, 0},
                                                {"seed", AG_STRICT_INTEGER, 0},
                                                {"salt", AG_STRICT_TEXT, 0},
                                                {"weights", AG_STRICT_OBJECT, 0}};
static const ag_strict_field weight_fields[] = {
    {"train", AG_STRICT_POSITIVE, 0}, {"validation", AG_STRICT_POSITIVE, 0}, {"held_out", AG_STRICT_POSITIVE, 0}};
static const ag_strict_field splits_fields[] = {
    {"train", AG_STRICT_OBJECT, 0}, {"validation", AG_STRICT_OBJECT, 0}, {"held_out", AG_STRICT_OBJECT, 0}};
static const ag_strict_field split_fields[] = {
    {"path", AG_STRICT_TEXT, 0}, {"sha256", AG_STRICT_DIGEST, 0}, {"record_count", AG_STRICT_POSITIVE, 0}, {"members", AG_STRICT_LIST, 0}};
static const ag_strict_field audit_fields[] = {
    {"status", AG_STRICT_TEXT, 0},
    {"exact_content_cross_split", AG_STRICT_COUNT, 0}, {"canonical_id_cross_split", AG_STRICT_COUNT, 0},
    {"source_coordinate_cross_split", AG_STRICT_COUNT, 0}, {"lineage_cross_split", AG_STRICT_COUNT, 0},
    {"declared_group_cross_split", AG_STRICT_COUNT, 0}, {"deterministic_guarantees", AG_STRICT_TEXTS, 0},
};
static const ag_strict_field token_fields[] = {
    {"artifact_schema_version", AG_STRICT_TEXT, 0}, {"storage", AG_STRICT_TEXT, 0}, {"invariant", AG_STRICT_TEXT, 0},
    {"required_keys", AG_STRICT_TEXTS, 0}};

static const json_t *split_of(const json_t *root, int i) { return json_object_get(json_object_get(root, "splits"), split_names[i]); }

static ag_status check_schema(const json_t *root, ag_err *err)
{
    AG_TRY(ag_strict_object(root, "the split manifest", FIELDS(root_fields), err));
    AG_TRY(ag_strict_object(json_object_get(root, "source"), "source", FIELDS(source_fields), err));
    AG_TRY(ag_strict_object(json_object_get(root, "canonical_identity"), "canonical_identity", FIELDS(identity_fields), err));
    const json_t *policy = json_object_get(root, "split_policy");
    AG_TRY(ag_strict_object(policy, "split_policy", FIELDS(policy_fields), err));
    AG_TRY(ag_strict_object(json_object_get(policy, "weights"), "split_policy.weights", FIELDS(weight_fields), err));
    AG_TRY(ag_strict_object(json_object_get(root, "leakage_audit"), "leakage_audit", FIELDS(audit_fields), err));
    AG_TRY(ag_strict_object(json_object_get(root, "token_statistics"), "token_statistics", FIELDS(token_fields), err));
    AG_TRY(ag_strict_object(json_object_get(root, "splits"), "splits", FIELDS(splits_fields), err));
    for (int s = 0; s < N_SPLITS; s++) AG_TRY(ag_strict_object(split_of(root, s), split_names[s], FIELDS(split_fields), err));
    return AG_OK;
}

/* ---- what the manifest says of itself -------------------------------------------------------------------------------- */
typedef struct {
    ag_member_key key;
    int split;
    size_t member;
} owned;

static int by_key(const void *a, const void *b)
{
    const owned *x = a, *y = b;
    if (x->key.high != y->key.high) return x->key.high < y->key.high ? -1 : 1;
    if (x->key.low != y->key.low) return x->key.low < y->key.low ? -1 : 1;
    if (x->split != y->split) return x->split - y->split;
    return (x->member > y->member) - (x->member < y->member);
}

/* The first two members that share what they must not; the first two of a split or of two splits. False: there are none. */
static bool find_shared(const ag_split_reader *r, int which, owned *room, const owned **first)
{
    size_t n = 0;
    const bool unique = which == AG_MEMBER_CANONICAL_ID || which == AG_MEMBER_SOURCE_COORDINATE;
    for (int s = 0; s < N_SPLITS; s++)
        for (size_t i = 0; i < r->list[s].n; i++) {
            const ag_member_key key = r->list[s].members[i].key[which];
            if (key.high || key.low) room[n++] = (owned){key, s, i};
        }
    if (n) qsort(room, n, sizeof *room, by_key);
    for (size_t i = 1; i < n; i++)
        if (room[i - 1].key.high == room[i].key.high && room[i - 1].key.low == room[i].key.low &&
            (unique || room[i - 1].split != room[i].split)) {
            *first = &room[i - 1];
            return true;
        }
    return false;
}

static void check_audit(ag_bundle *b, const json_t *root, const char *path)
{
    static const char *const counters[] = {"exact_content_cross_split", "canonical_id_cross_split", "source_coordinate_cross_split",
                                           "lineage_cross_split", "declared_group_cross_split"};
    const json_t *audit = json_object_get(root, "leakage_audit");
    bool clean = strcmp(ag_strict_text(audit, "status"), "passed") == 0;
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        clean = clean && json_integer_value(json_object_get(audit, counters[i])) == 0;
    if (!clean)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path, "its leakage audit did not pass; freeze the split again");
}

static void check_members(ag_bundle *b, const ag_split_reader *r, size_t n_members, const char *path)
{
    owned *room = calloc(n_members + 1, sizeof *room);
    if (!room) ag_out_of_memory(n_members * sizeof *room);
    for (int k = 0; k < AG_N_MEMBER_KEYS; k++) {
        const owned *first;
        if (find_shared(r, k, room, &first))
            ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path,
                                 "the %s of row %zu of %s stands again in row %zu of %s; freeze the split again", ag_member_key_names[k],
                                 first[0].member + 1, split_names[first[0].split], first[1].member + 1, split_names[first[1].split]);
    }
    free(room);
}

static void check_sums(ag_bundle *b, const ag_split_reader *r, const char *path)
{
    size_t sum = 0;
    for (int s = 0; s < N_SPLITS; s++) {
        const int64_t n = json_integer_value(json_object_get(split_of(r->root, s), "record_count"));
        if (n != (int64_t)r->list[s].n)
            ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path, "%s has %lld records and %zu members; freeze the split again",
                                 split_names[s], (long long)n, r->list[s].n);
        sum += r->list[s].n;
    }
    const int64_t n_source = json_integer_value(json_object_get(json_object_get(r->root, "source"), "record_count"));
    if ((int64_t)sum != n_source)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path,
                             "its splits have %zu members, the source had %lld records; freeze the split again", sum,
                             (long long)n_source);
    check_members(b, r, sum, path);
}

/* ---- the files of the splits ----------------------------------------------------------------------------------------- */
typedef struct {
    const ag_split_member_record *members;
    size_t n_members, n_lines;
    size_t first_wrong; /* SIZE_MAX: none */
    ag_sha256_state *state;
    bool is_blank;
} line_check;

static bool is_digest_of(const unsigned char bytes[32], const ag_sha256 *digest)
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++)
        if (digest->hex[2 * i] != digits[bytes[i] >> 4] || digest->hex[2 * i + 1] != digits[bytes[i] & 15]) return false;
    return true;
}

static void end_line(line_check *c)
{
    const ag_sha256 digest = ag_sha256_end(c->state);
    c->state = ag_sha256_begin();
    if (!c->is_blank) {
        const bool is_member = c->n_lines < c->n_members && is_digest_of(c->members[c->n_lines].line, &digest);
        if (!is_member && c->first_wrong == SIZE_MAX) c->first_wrong = c->n_lines;
        c->n_lines++;
    }
    c->is_blank = true;
}

static void add_to_line(line_check *c, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n && c->is_blank; i++) c->is_blank = strchr(" \t\r\v\f", bytes[i]) != NULL && bytes[i];
    ag_sha256_add(c->state, bytes, n);
}

/* Digests of the file's lines without their '\n', in order; blank ones are not counted. False: the file could not be read. */
static bool check_lines(ag_bundle *b, const ag_bundle_entry *file, line_check *c)
{
    const int fd = ag_bundle_tree_open(&b->tree, file, b->report);
    if (fd < 0) return false;
    char *block = malloc(READ_BYTES);
    if (!block) ag_out_of_memory(READ_BYTES);
    c->state = ag_sha256_begin();
    c->is_blank = true;
    ssize_t got;
    do {
        got = read(fd, block, READ_BYTES);
        for (const char *at = block, *end = block + (got > 0 ? got : 0); at < end;) {
            const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
            add_to_line(c, at, (size_t)(stop - at));
            if (newline) end_line(c);
            at = newline ? newline + 1 : end;
        }
    } while (got > 0 || (got < 0 && errno == EINTR));
    if (!c->is_blank) end_line(c); /* a last line without a newline */
    (void)ag_sha256_end(c->state);
    free(block);
    close(fd);
    if (got < 0) ag_bundle_report_add(b->report, AG_BUNDLE_UNSAFE_PATH, file->path, "cannot be read; check its permissions and the disk");
    return got >= 0;
}

static void check_file(ag_bundle *b, const ag_split_reader *r, int s, const char *manifest_path)
{
    const json_t *split = split_of(r->root, s);
    const char *written = ag_strict_text(split, "path");
    const char *fault = ag_portable_path_fault(written);
    const char *path = fault ? NULL : ag_portable_path_resolve(&b->arena, ag_portable_path_dir(&b->arena, manifest_path), written);
    if (!path) {
        ag_bundle_report_add(b->report, AG_BUNDLE_PATH_ESCAPING, written, "the path of the split %s %s; freeze the split again",
                             split_names[s], fault ? fault : "leaves the bundle");
        return;
    }
    const ag_inventory_file *listed = ag_bundle_inventory_find(&b->inventory, path);
    if (!listed) {
        ag_bundle_report_add(b->report, AG_BUNDLE_MISSING_FILE, path,
                             "the split manifest names it as %s, and the inventory does not list it; add the file and seal again",
                             split_names[s]);
        return;
    }
    if (strcmp(listed->sha256, ag_strict_text(split, "sha256")) != 0) {
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path,
                             "is not the file that the split manifest froze as %s; bring the frozen one back", split_names[s]);
        return;
    }
    line_check c = {.members = r->list[s].members, .n_members = r->list[s].n, .first_wrong = SIZE_MAX};
    if (!check_lines(b, ag_bundle_tree_file(&b->tree, path), &c)) return;
    if ((int64_t)c.n_lines != json_integer_value(json_object_get(split, "record_count")))
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path,
                             "has %zu rows, the split manifest says %lld; freeze the split again", c.n_lines,
                             (long long)json_integer_value(json_object_get(split, "record_count")));
    else if (c.first_wrong != SIZE_MAX)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path,
                             "row %zu is not the member that the split manifest has there; freeze the split again", c.first_wrong + 1);
}

/* ---- all of it ------------------------------------------------------------------------------------------------------- */
/* False where the manifest could not be read; the report says why. */
static bool read_manifest(ag_bundle *b, ag_split_reader *r, const char *path)
{
    const ag_bundle_entry *file = ag_bundle_tree_file(&b->tree, path);
    if (file->identity.size > MANIFEST_MAX_BYTES) {
        ag_bundle_report_add(b->report, AG_BUNDLE_INVALID_JSON, path, "has %llu bytes; a split manifest has at most %llu",
                             (unsigned long long)file->identity.size, (unsigned long long)MANIFEST_MAX_BYTES);
        return false;
    }
    const int fd = ag_bundle_tree_open(&b->tree, file, b->report);
    if (fd < 0) return false;
    char *block = malloc(READ_BYTES);
    if (!block) ag_out_of_memory(READ_BYTES);
    ag_err err;
    ag_status status = AG_OK;
    ssize_t got;
    do {
        got = read(fd, block, READ_BYTES);
        if (got > 0) status = ag_split_reader_feed(r, block, (size_t)got, &err);
    } while (!status && (got > 0 || (got < 0 && errno == EINTR)));
    free(block);
    close(fd);
    if (!status && got < 0) {
        ag_bundle_report_add(b->report, AG_BUNDLE_UNSAFE_PATH, path, "cannot be read; check its permissions and the disk");
        return false;
    }
    if (!status) status = ag_split_reader_end(r, &err);
    if (status) ag_bundle_report_add(b->report, AG_BUNDLE_INVALID_JSON, path, "%s; freeze the split again", err.text);
    return !status;
}

static void check_manifest(ag_bundle *b, ag_split_reader *r, const char *path)
{
    ag_err err;
    const char *version = ag_strict_text(r->root, "schema_version");
    if (strcmp(version, SPLIT_VERSION) != 0) {
        ag_bundle_report_add(b->report, AG_BUNDLE_UNKNOWN_VERSION, path,
                             "schema_version is '%.200s', this program knows '%s'; verify with a version of agoge that knows it", version,
                             SPLIT_VERSION);
        return;
    }
    if (check_schema(r->root, &err)) {
        ag_bundle_report_add(b->report, AG_BUNDLE_INVALID_JSON, path, "%s; freeze the split again", err.text);
        return;
    }
    check_audit(b, r->root, path);
    check_sums(b, r, path);
    for (int s = 0; s < N_SPLITS; s++) check_file(b, r, s, path);
    b->split.is_read = true;
    b->split.manifest_sha256 = ag_bundle_inventory_find(&b->inventory, path)->sha256;
    b->split.train_sha256 = ag_strict_text(split_of(r->root, AG_SPLIT_TRAIN_LIST), "sha256");
    b->split.held_out_path = ag_portable_path_resolve(&b->arena, ag_portable_path_dir(&b->arena, path),
                                                      ag_strict_text(split_of(r->root, AG_SPLIT_HELD_OUT_LIST), "path"));
    b->split.held_out_sha256 = ag_strict_text(split_of(r->root, AG_SPLIT_HELD_OUT_LIST), "sha256");
}

void ag_bundle_check_split(ag_bundle *b)
{
    const char *path = b->inventory.parts.split_manifest;
    b->split.reader = ag_split_reader_create();
    if (read_manifest(b, b->split.reader, path)) check_manifest(b, b->split.reader, path);
}
