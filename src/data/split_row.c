#include "data/split_row.h"

#include "base/canonical_json.h"
#include "text/template_value.h"

#include <stdlib.h>
#include <string.h>

/* A longer line is refused, as in rows.h. */
#define MAX_LINE_BYTES ((size_t)64 << 20)

const char *ag_split_name_text(ag_split_name name)
{
    static const char *const names[AG_N_SPLITS] = {"train", "validation", "held_out"};
    return names[name];
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */
static uint64_t from_hex(const char *digits)
{
    uint64_t value = 0;
    for (int i = 0; i < 16; i++) value = value << 4 | (uint64_t)(digits[i] <= '9' ? digits[i] - '0' : digits[i] - 'a' + 10);
    return value;
}

ag_split_key ag_split_key_of_digest(const ag_sha256 *digest)
{
    return (ag_split_key){from_hex(digest->hex), from_hex(digest->hex + 16)};
}

ag_split_key ag_split_key_of(const char *bytes, size_t n)
{
    const ag_sha256 digest = ag_sha256_bytes(bytes, n);
    return ag_split_key_of_digest(&digest);
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */
void ag_split_id_trim(ag_str *out, const char *text, size_t n)
{
    size_t first = n, end = 0;
    for (size_t at = 0; at < n;) {
        const size_t start = at;
        if (ag_code_point_is_space(ag_utf8_next(text, n, &at))) continue;
        if (first == n) first = start;
        end = at;
    }
    ag_str_clear(out);
    if (first < end) ag_str_add_n(out, text + first, end - first);
}

typedef struct {
    const char *name;
    size_t number;
    ag_err *err;
} place;

static ag_status read_id(ag_str *out, const json_t *root, const char *field, bool is_needed, const place *at)
{
    const json_t *value = json_object_get(root, field);
    ag_str_clear(out);
    if (!value || json_is_null(value)) {
        if (!is_needed) return AG_OK;
        return ag_fail(at->err, AG_E_DATA, "%s: line %zu: has no '%s'; every row needs an id of its own there", at->name,
                       at->number, field);
    }
    if (!json_is_string(value))
        return ag_fail(at->err, AG_E_DATA, "%s: line %zu: '%s' must be a string; write the id in quotes", at->name, at->number,
                       field);
    ag_split_id_trim(out, json_string_value(value), json_string_length(value));
    if (out->n == 0)
        return ag_fail(at->err, AG_E_DATA,
                       "%s: line %zu: '%s' is blank; give the id, or leave the field out where it may be missing", at->name,
                       at->number, field);
    if (out->n > AG_SPLIT_MAX_ID_BYTES || memchr(out->text, 0, out->n))
        return ag_fail(at->err, AG_E_DATA, "%s: line %zu: '%s' is longer than %d bytes or holds a NUL; use shorter, plain ids",
                       at->name, at->number, field, AG_SPLIT_MAX_ID_BYTES);
    return AG_OK;
}

static ag_status read_ids(ag_split_row *row, const ag_split_identity *identity, const place *at)
{
    AG_TRY(read_id(&row->canonical_id, row->root, identity->canonical_id_field, true, at));
    AG_TRY(read_id(&row->lineage_id, row->root, identity->lineage_id_field, false, at));
    AG_TRY(read_id(&row->group_id, row->root, identity->group_id_field, false, at));
    if (row->lineage_id.n == 0) ag_str_add_n(&row->lineage_id, row->canonical_id.text, row->canonical_id.n);
    return AG_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */
static ag_status parse(ag_split_row *row, const char *line, size_t n, const place *at)
{
    if (row->root) ag_json_free(&row->root);
    ag_status status = ag_json_parse_exact(&row->root, line, n, "row", at->err);
    if (status) return ag_err_prefix(at->err, "%s: line %zu", at->name, at->number);
    if (json_is_object(row->root) && !ag_json_big_integer(row->root)) return AG_OK;
    return ag_fail(at->err, AG_E_DATA, "%s: line %zu: must be a JSON object; one row a line", at->name, at->number);
}

ag_status ag_split_row_read_ids(ag_split_row *row, const char *line, size_t n, const ag_split_identity *identity,
                                const char *name, size_t number, ag_err *err)
{
    const place at = {name, number, err};
    AG_TRY(parse(row, line, n, &at));
    return read_ids(row, identity, &at);
}

static ag_status check_representation(const json_t *root, const place *at)
{
    static const char *const others[] = {"messages", "instruction"};
    const json_t *text = json_object_get(root, "text");
    for (size_t i = 0; i < 2; i++)
        if (json_object_get(root, others[i]))
            return ag_fail(at->err, AG_E_DATA,
                           "%s: line %zu: has '%s'%s; a frozen split holds text only, so that every model reads the same "
                           "bytes: render the row into 'text' and leave '%s' out",
                           at->name, at->number, others[i], text ? " beside 'text'" : "", others[i]);
    if (json_is_string(text)) return AG_OK;
    return ag_fail(at->err, AG_E_DATA, "%s: line %zu: %s; a frozen split needs the rendered text as a string", at->name,
                   at->number, text ? "'text' is no string" : "has no 'text'");
}

static void digest_content(ag_split_row *row, const ag_split_identity *identity)
{
    ag_str_clear(&row->made);
    const json_t *text = json_object_get(row->root, "text");
    if (identity->content == AG_SPLIT_CONTENT_PAYLOAD && text) {
        ag_str_add(&row->made, "{\"text\":");
        ag_json_add_canonical(&row->made, text);
        ag_str_add_char(&row->made, '}');
    } else {
        json_t *rest = json_copy(row->root);
        if (!rest) ag_out_of_memory(0);
        json_object_del(rest, identity->canonical_id_field);
        json_object_del(rest, identity->lineage_id_field);
        json_object_del(rest, identity->group_id_field);
        ag_json_add_canonical(&row->made, rest);
        json_decref(rest);
    }
    row->content = ag_sha256_bytes(row->made.text, row->made.n);
}

ag_status ag_split_row_read(ag_split_row *row, const char *line, size_t n, const ag_split_identity *identity, bool is_new,
                            const char *name, size_t number, ag_err *err)
{
    const place at = {name, number, err};
    AG_TRY(parse(row, line, n, &at));
    AG_TRY(read_ids(row, identity, &at));
    if (is_new || identity->content == AG_SPLIT_CONTENT_PAYLOAD) AG_TRY(check_representation(row->root, &at));
    digest_content(row, identity);
    return AG_OK;
}

void ag_split_row_free(ag_split_row *row)
{
    if (row->root) ag_json_free(&row->root);
    ag_str_free(&row->canonical_id);
    ag_str_free(&row->lineage_id);
    ag_str_free(&row->group_id);
    ag_str_free(&row->made);
}

/* ---- buckets ----------------------------------------------------------------------------------------------------- */
ag_split_name ag_split_bucket(const ag_split_policy *policy, const char *anchor, size_t n)
{
    ag_str text = {0};
    ag_str_printf(&text, AG_SPLIT_ALGORITHM "%c%lld%c", 0, (long long)policy->seed, 0);
    ag_str_add(&text, policy->salt);
    ag_str_add_char(&text, 0);
    ag_str_add_n(&text, anchor, n);
    const ag_sha256 digest = ag_sha256_bytes(text.text, text.n);
    ag_str_free(&text);

    uint64_t sum = 0, rest = 0; /* rest < sum <= 3·10^9, so that a digit more never overflows */
    for (int i = 0; i < AG_N_SPLITS; i++) sum += (uint64_t)policy->weight[i];
    for (const char *c = digest.hex; *c; c++) rest = (rest * 16 + (uint64_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10)) % sum;
    if (rest < (uint64_t)policy->weight[AG_SPLIT_TRAIN]) return AG_SPLIT_TRAIN;
    return rest < (uint64_t)(policy->weight[AG_SPLIT_TRAIN] + policy->weight[AG_SPLIT_VALIDATION]) ? AG_SPLIT_VALIDATION
                                                                                                   : AG_SPLIT_HELD_OUT;
}

ag_split_name ag_split_row_bucket(ag_split_row *row, const ag_split_policy *policy)
{
    ag_str_clear(&row->made);
    const ag_str *id = row->group_id.n ? &row->group_id : &row->lineage_id;
    ag_str_add(&row->made, row->group_id.n ? "group:" : "lineage:");
    ag_str_add_n(&row->made, id->text, id->n);
    return ag_split_bucket(policy, row->made.text, row->made.n);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */
static bool is_blank(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (line[i] != ' ' && (line[i] < '\t' || line[i] > '\r')) return false;
    return true;
}

static ag_status changed(const char *name, ag_err *err)
{
    return ag_fail(err, AG_E_DATA, "%s: changed while it was read; start again when nobody writes to it", name);
}

/* Counts the lines, and fills `line` (room for `room`) where it is not NULL. */
static ag_status walk(ag_split_line *line, size_t room, size_t *count, ag_sha256_state *sha, const ag_map *map,
                      const char *name, ag_err *err)
{
    enum { FORGET_BYTES = 32 << 20 };
    const char *bytes = (const char *)map->bytes;
    size_t at = map->n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0, number = 0, done = 0;
    *count = 0;
    while (at < map->n) {
        const char *newline = memchr(bytes + at, '\n', map->n - at);
        const size_t end = newline ? (size_t)(newline - bytes) : map->n, n = end - at;
        if (++number > UINT32_MAX)
            return ag_fail(err, AG_E_UNSUPPORTED, "%s: has more than 4,294,967,295 lines; freeze it in pieces", name);
        if (n > MAX_LINE_BYTES)
            return ag_fail(err, AG_E_DATA, "%s: line %zu: is longer than %zu MiB; no model takes such a row, leave it out",
                           name, number, MAX_LINE_BYTES >> 20);
        if (!is_blank(bytes + at, n)) {
            if (line && *count == room) return changed(name, err);
            if (line) line[*count] = (ag_split_line){at, (uint32_t)n, (uint32_t)number};
            ++*count;
        }
        at = newline ? end + 1 : map->n;
        if (at - done < FORGET_BYTES && at < map->n) continue;
        if (sha) ag_sha256_add(sha, bytes + done, at - done);
        ag_map_forget(map, done, at - done);
        done = at;
    }
    return AG_OK;
}

ag_status ag_split_lines_find(ag_split_lines *lines, ag_sha256 *digest, const ag_map *map, const char *name, ag_err *err)
{
    *lines = (ag_split_lines){0};
    size_t n;
    AG_TRY(walk(NULL, 0, &n, NULL, map, name, err));
    if (n == 0)
        return ag_fail(err, AG_E_DATA, "%s: is %s; it must have one JSON object a line", name, map->n ? "blank" : "empty");
    void *block;
    lines->bytes = n * sizeof *lines->line; /* at most 16 bytes for each byte of the file */
    AG_TRY(ag_pages_alloc(&block, lines->bytes, "the places of the rows", err));
    lines->line = block;
    ag_sha256_state *sha = ag_sha256_begin();
    ag_status status = walk(lines->line, n, &lines->n, sha, map, name, err);
    *digest = ag_sha256_end(sha);
    if (status || lines->n != n) {
        ag_split_lines_free(lines);
        return status ? status : changed(name, err);
    }
    return AG_OK;
}

void ag_split_lines_free(ag_split_lines *lines)
{
    ag_pages_free(lines->line, lines->bytes);
    *lines = (ag_split_lines){0};
}
