#define _GNU_SOURCE
#include "seal/bundle_checks.h"

#include "seal/portable_path.h"
#include "seal/strict.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPLIT_VERSION "agoge.split-manifest.v1"
enum { MANIFEST_MAX_BYTES = 256 << 20, READ_BYTES = 256 << 10, N_SPLITS = 3 };
static const char *const split_names[N_SPLITS] = {"train", "validation", "held_out"};

#define FIELDS(table) table, sizeof table / sizeof *table

/* ---- schema ------------------------------------------------------------------------------------------------------------------ */
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
static const ag_strict_field policy_fields[] = {
    {"algorithm_version", AG_STRICT_TEXT, 0}, {"seed", AG_STRICT_INTEGER, 0}, {"salt", AG_STRICT_TEXT, 0}, {"weights", AG_STRICT_OBJECT, 0}};
static const ag_strict_field weight_fields[] = {
    {"train", AG_STRICT_POSITIVE, 0}, {"validation", AG_STRICT_POSITIVE, 0}, {"held_out", AG_STRICT_POSITIVE, 0}};
static const ag_strict_field splits_fields[] = {
    {"train", AG_STRICT_OBJECT, 0}, {"validation", AG_STRICT_OBJECT, 0}, {"held_out", AG_STRICT_OBJECT, 0}};
static const ag_strict_field split_fields[] = {
    {"path", AG_STRICT_TEXT, 0}, {"sha256", AG_STRICT_DIGEST, 0}, {"record_count", AG_STRICT_POSITIVE, 0}, {"members", AG_STRICT_LIST, 0}};
static const ag_strict_field member_fields[] = {
    {"canonical_id", AG_STRICT_TEXT, 0},    {"lineage_id", AG_STRICT_TEXT, 0},       {"group_id", AG_STRICT_TEXT, AG_STRICT_NULLABLE},
    {"source_coordinate", AG_STRICT_TEXT, 0}, {"content_sha256", AG_STRICT_DIGEST, 0}, {"raw_line_sha256", AG_STRICT_DIGEST, 0},
    {"materialized_line_sha256", AG_STRICT_DIGEST, 0},
};
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
    for (int s = 0; s < N_SPLITS; s++) {
        const json_t *split = split_of(root, s), *members = json_object_get(split, "members");
        AG_TRY(ag_strict_object(split, split_names[s], FIELDS(split_fields), err));
        for (size_t i = 0; i < json_array_size(members); i++)
            AG_TRY(ag_strict_object(json_array_get(members, i), "a member of a split", FIELDS(member_fields), err));
    }
    return AG_OK;
}

/* ---- what the manifest says of itself ------------------------------------------------------------------------------------------ */
typedef struct {
    const char *value;
    int split;
} owned;

static int by_value(const void *a, const void *b) { return strcmp(((const owned *)a)->value, ((const owned *)b)->value); }

static size_t count_members(const json_t *root)
{
    size_t n = 0;
    for (int s = 0; s < N_SPLITS; s++) n += json_array_size(json_object_get(split_of(root, s), "members"));
    return n;
}

/* Whether `key` has one value in two splits, or, with `unique`, twice at all. The first such value in *value. */
static bool is_shared(const json_t *root, const char *key, bool unique, owned *room, const char **value)
{
    size_t n = 0;
    for (int s = 0; s < N_SPLITS; s++) {
        const json_t *members = json_object_get(split_of(root, s), "members");
        for (size_t i = 0; i < json_array_size(members); i++) {
            const char *text = json_string_value(json_object_get(json_array_get(members, i), key));
            if (text) room[n++] = (owned){text, s};
        }
    }
    if (n) qsort(room, n, sizeof *room, by_value);
    for (size_t i = 1; i < n; i++)
        if (strcmp(room[i - 1].value, room[i].value) == 0 && (unique || room[i - 1].split != room[i].split)) {
            *value = room[i].value;
            return true;
        }
    return false;
}

static void check_sums(ag_bundle *b, const json_t *root, const char *path)
{
    static const char *const counters[] = {"exact_content_cross_split", "canonical_id_cross_split", "source_coordinate_cross_split",
                                           "lineage_cross_split", "declared_group_cross_split"};
    static const struct {
        const char *key;
        bool unique;
    } keys[] = {{"canonical_id", true}, {"source_coordinate", true}, {"content_sha256", false}, {"lineage_id", false}, {"group_id", false}};
    const json_t *audit = json_object_get(root, "leakage_audit");
    bool clean = strcmp(ag_strict_text(audit, "status"), "passed") == 0;
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) clean = clean && json_integer_value(json_object_get(audit, counters[i])) == 0;
    if (!clean)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path, "its leakage audit did not pass; freeze the split again");

    int64_t sum = 0;
    for (int s = 0; s < N_SPLITS; s++) {
        const json_t *split = split_of(root, s);
        const int64_t n = json_integer_value(json_object_get(split, "record_count")), n_members = (int64_t)json_array_size(json_object_get(split, "members"));
        if (n != n_members)
            ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path, "%s has %lld records and %lld members; freeze the split again", split_names[s],
                                 (long long)n, (long long)n_members);
        sum += n_members;
    }
    const int64_t n_source = json_integer_value(json_object_get(json_object_get(root, "source"), "record_count"));
    if (sum != n_source)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path, "its splits have %lld members, the source had %lld records; freeze the split again",
                             (long long)sum, (long long)n_source);
    owned *room = calloc(count_members(root) + 1, sizeof *room);
    if (!room) ag_out_of_memory(sizeof *room);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *value;
        if (is_shared(root, keys[i].key, keys[i].unique, room, &value))
            ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path, "the %s '%.120s' stands in %s; freeze the split again", keys[i].key, value,
                                 keys[i].unique ? "two members" : "two splits");
    }
    free(room);
}

/* ---- the files of the splits ------------------------------------------------------------------------------------------------------ */
typedef struct {
    const json_t *members;
    size_t n_lines;
    size_t first_wrong; /* SIZE_MAX: none */
    ag_sha256_state *state;
    bool is_blank;
} line_check;

static void end_line(line_check *c)
{
    const ag_sha256 digest = ag_sha256_end(c->state);
    c->state = ag_sha256_begin();
    if (!c->is_blank) {
        const char *want = ag_strict_text(json_array_get(c->members, c->n_lines), "materialized_line_sha256");
        if (strcmp(want, digest.hex) != 0 && c->first_wrong == SIZE_MAX) c->first_wrong = c->n_lines;
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

static void check_file(ag_bundle *b, const json_t *root, int s, const char *manifest_path)
{
    const json_t *split = split_of(root, s);
    const char *written = ag_strict_text(split, "path");
    const char *fault = ag_portable_path_fault(written);
    const char *path = fault ? NULL : ag_portable_path_resolve(&b->arena, ag_portable_path_dir(&b->arena, manifest_path), written);
    if (!path) {
        ag_bundle_report_add(b->report, AG_BUNDLE_PATH_ESCAPING, written, "the path of the split %s %s; freeze the split again", split_names[s],
                             fault ? fault : "leaves the bundle");
        return;
    }
    const ag_inventory_file *listed = ag_bundle_inventory_find(&b->inventory, path);
    if (!listed) {
        ag_bundle_report_add(b->report, AG_BUNDLE_MISSING_FILE, path, "the split manifest names it as %s, and the inventory does not list it; add the file and seal again",
                             split_names[s]);
        return;
    }
    if (strcmp(listed->sha256, ag_strict_text(split, "sha256")) != 0) {
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path, "is not the file that the split manifest froze as %s; bring the frozen one back",
                             split_names[s]);
        return;
    }
    line_check c = {.members = json_object_get(split, "members"), .first_wrong = SIZE_MAX};
    if (!check_lines(b, ag_bundle_tree_file(&b->tree, path), &c)) return;
    if ((int64_t)c.n_lines != json_integer_value(json_object_get(split, "record_count")))
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path, "has %zu rows, the split manifest says %lld; freeze the split again", c.n_lines,
                             (long long)json_integer_value(json_object_get(split, "record_count")));
    else if (c.first_wrong != SIZE_MAX)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path, "row %zu is not the member that the split manifest has there; freeze the split again",
                             c.first_wrong + 1);
}

void ag_bundle_check_split(ag_bundle *b)
{
    const char *path = b->inventory.parts.split_manifest;
    ag_err err;
    json_t *root = ag_bundle_load_json(b, path, MANIFEST_MAX_BYTES);
    if (!root) return;
    const char *version = ag_strict_text(root, "schema_version");
    if (strcmp(version, SPLIT_VERSION) != 0) {
        ag_bundle_report_add(b->report, AG_BUNDLE_UNKNOWN_VERSION, path, "schema_version is '%.200s', this program knows '%s'; verify with a version of agoge that knows it",
                             version, SPLIT_VERSION);
        ag_json_free(&root);
        return;
    }
    if (check_schema(root, &err)) {
        ag_bundle_report_add(b->report, AG_BUNDLE_INVALID_JSON, path, "%s; freeze the split again", err.text);
        ag_json_free(&root);
        return;
    }
    check_sums(b, root, path);
    for (int s = 0; s < N_SPLITS; s++) check_file(b, root, s, path);
    b->split = (ag_bundle_split){.is_read = true, .root = root, .manifest_sha256 = ag_bundle_inventory_find(&b->inventory, path)->sha256,
                                 .train_sha256 = ag_strict_text(split_of(root, 0), "sha256"),
                                 .held_out_sha256 = ag_strict_text(split_of(root, 2), "sha256")};
}
