#include "seal/split_reader.h"

#include "base/arena.h"
#include "base/digest.h"
#include "base/fs.h"
#include "seal/strict.h"

#include <stdlib.h>
#include <string.h>

enum { SKELETON_MAX_BYTES = 16 << 20, MEMBER_MAX_BYTES = 1 << 20, KEY_MAX = 16, LIST_DEPTH = 3 /* {"splits": {"train": {"members": [ */ };

const char *const ag_split_list_names[AG_N_SPLIT_LISTS] = {"train", "validation", "held_out"};
const char *const ag_member_key_names[AG_N_MEMBER_KEYS] = {"canonical_id", "source_coordinate", "content_sha256", "lineage_id", "group_id"};

/* Only strings, brackets, colons and commas count here; jansson judges what is cut and what is left. */
typedef struct {
    ag_split_reader public;
    ag_str skeleton, member;
    bool in_string, is_escaped;
    int depth;                     /* of what is open in the skeleton */
    bool is_list[LIST_DEPTH + 1];  /* of the outermost containers, from 1 */
    char last[KEY_MAX + 1];        /* the last string, cut; n_last counts all of it */
    size_t n_last;
    char key[LIST_DEPTH + 1][KEY_MAX + 1];
    int list;                      /* whose members are read; -1: none */
    int member_depth;              /* brackets open within a member */
    bool wants_comma;
} reader;

ag_split_reader *ag_split_reader_create(void)
{
    reader *r = calloc(1, sizeof *r);
    if (!r) ag_out_of_memory(sizeof *r);
    r->list = -1;
    return &r->public;
}

void ag_split_reader_free(ag_split_reader **out)
{
    reader *r = (reader *)*out;
    if (!r) return;
    ag_json_free(&r->public.root);
    for (int i = 0; i < AG_N_SPLIT_LISTS; i++) free(r->public.list[i].members);
    ag_str_free(&r->skeleton);
    ag_str_free(&r->member);
    free(r);
    *out = NULL;
}

/* ---- a member -------------------------------------------------------------------------------------------------------- */
static int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

static void bytes_of(unsigned char *out, const char *hex, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
}

ag_member_key ag_member_key_of(const char *text)
{
    const ag_sha256 digest = ag_sha256_bytes(text, strlen(text));
    unsigned char bytes[16];
    ag_member_key key = {0, 0};
    bytes_of(bytes, digest.hex, sizeof bytes);
    for (int i = 0; i < 8; i++) {
        key.high = key.high << 8 | bytes[i];
        key.low = key.low << 8 | bytes[8 + i];
    }
    return key;
}

static ag_status take_member(reader *r, ag_err *err)
{
    static const ag_strict_field fields[] = {
        {"canonical_id", AG_STRICT_TEXT, 0},      {"lineage_id", AG_STRICT_TEXT, 0},       {"group_id", AG_STRICT_TEXT, AG_STRICT_NULLABLE},
        {"source_coordinate", AG_STRICT_TEXT, 0}, {"content_sha256", AG_STRICT_DIGEST, 0}, {"raw_line_sha256", AG_STRICT_DIGEST, 0},
        {"materialized_line_sha256", AG_STRICT_DIGEST, 0},
    };
    json_t *root;
    const int which = r->list;
    AG_TRY(ag_json_parse(&root, r->member.text, r->member.n, "a member of a split", err));
    ag_status status = ag_strict_object(root, "a member of a split", fields, sizeof fields / sizeof *fields, err);
    if (!status) {
        if (r->public.list[which].n == r->public.list[which].room) {
            const size_t room = r->public.list[which].room ? r->public.list[which].room + r->public.list[which].room / 2 : 256;
            r->public.list[which].members = realloc(r->public.list[which].members, room * sizeof(ag_split_member_record));
            if (!r->public.list[which].members) ag_out_of_memory(room * sizeof(ag_split_member_record));
            r->public.list[which].room = room;
        }
        ag_split_member_record *m = &r->public.list[which].members[r->public.list[which].n++];
        *m = (ag_split_member_record){{{0, 0}}, {0}};
        for (int k = 0; k < AG_N_MEMBER_KEYS; k++) {
            const char *text = json_string_value(json_object_get(root, ag_member_key_names[k]));
            if (text) m->key[k] = ag_member_key_of(text);
        }
        bytes_of(m->line, ag_strict_text(root, "materialized_line_sha256"), sizeof m->line);
    }
    ag_json_free(&root);
    return status;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static ag_status misplaced(ag_err *err)
{
    return ag_fail(err, AG_E_FORMAT, "a list of members holds something else than objects with commas between them");
}

/* One byte inside a list of members. */
static ag_status in_list(reader *r, char c, ag_err *err)
{
    if (r->member_depth == 0) {
        if (is_space(c)) return AG_OK;
        const bool is_first = !r->wants_comma && r->member.n == 0;
        if (c == ']') {
            if (!r->wants_comma && !is_first) return misplaced(err); /* a comma before it */
            ag_str_add(&r->skeleton, "]");
            r->list = -1;
            return AG_OK;
        }
        if (c == ',' && r->wants_comma) {
            r->wants_comma = false;
            return AG_OK;
        }
        if (c != '{' || r->wants_comma) return misplaced(err);
        ag_str_clear(&r->member);
        r->member_depth = 1;
        ag_str_add_char(&r->member, c);
        return AG_OK;
    }
    if (r->member.n >= MEMBER_MAX_BYTES) return ag_fail(err, AG_E_FORMAT, "a member of a split has over %d bytes", MEMBER_MAX_BYTES);
    ag_str_add_char(&r->member, c);
    if (r->in_string) {
        if (r->is_escaped) r->is_escaped = false;
        else if (c == '\\') r->is_escaped = true;
        else if (c == '"') r->in_string = false;
        return AG_OK;
    }
    if (c == '"') r->in_string = true;
    if (c == '{' || c == '[') r->member_depth++;
    if ((c == '}' || c == ']') && --r->member_depth == 0) {
        r->wants_comma = true;
        return take_member(r, err);
    }
    return AG_OK;
}

/* ---- the skeleton ---------------------------------------------------------------------------------------------------- */
/* The list of members that begins with this '[', or -1. */
static int list_here(const reader *r)
{
    if (r->depth != LIST_DEPTH || r->is_list[1] || r->is_list[2] || r->is_list[3]) return -1;
    if (strcmp(r->key[1], "splits") != 0 || strcmp(r->key[3], "members") != 0) return -1;
    for (int i = 0; i < AG_N_SPLIT_LISTS; i++)
        if (strcmp(r->key[2], ag_split_list_names[i]) == 0) return i;
    return -1;
}

static void in_string(reader *r, char c)
{
    if (r->is_escaped) {
        r->is_escaped = false;
    } else if (c == '\\') {
        r->is_escaped = true;
        r->n_last = KEY_MAX + 1; /* an escaped name is none that is looked for */
    } else if (c == '"') {
        r->in_string = false;
        r->last[r->n_last <= KEY_MAX ? r->n_last : 0] = 0;
        return;
    }
    if (r->n_last < KEY_MAX) r->last[r->n_last] = c;
    if (r->n_last <= KEY_MAX) r->n_last++;
}

static ag_status in_skeleton(reader *r, char c, ag_err *err)
{
    if (r->skeleton.n >= SKELETON_MAX_BYTES)
        return ag_fail(err, AG_E_FORMAT, "has over %d bytes beside its lists of members", SKELETON_MAX_BYTES);
    ag_str_add_char(&r->skeleton, c);
    if (r->in_string) {
        in_string(r, c);
        return AG_OK;
    }
    switch (c) {
    case '"':
        r->in_string = true;
        r->n_last = 0;
        break;
    case ':':
        if (r->depth >= 1 && r->depth <= LIST_DEPTH) memcpy(r->key[r->depth], r->last, sizeof r->last);
        break;
    case '{':
    case '[':
        if (c == '[' && list_here(r) >= 0) {
            r->list = list_here(r);
            r->wants_comma = false;
            ag_str_clear(&r->member);
            break;
        }
        if (++r->depth <= LIST_DEPTH) {
            r->is_list[r->depth] = c == '[';
            r->key[r->depth][0] = 0;
        }
        break;
    case '}':
    case ']':
        if (--r->depth < 0) return ag_fail(err, AG_E_FORMAT, "is not valid JSON: a bracket closes nothing");
        break;
    default: break;
    }
    return AG_OK;
}

ag_status ag_split_reader_feed(ag_split_reader *out, const char *bytes, size_t n, ag_err *err)
{
    reader *r = (reader *)out;
    for (size_t i = 0; i < n; i++) AG_TRY(r->list >= 0 ? in_list(r, bytes[i], err) : in_skeleton(r, bytes[i], err));
    return AG_OK;
}

ag_status ag_split_reader_end(ag_split_reader *out, ag_err *err)
{
    reader *r = (reader *)out;
    if (r->list >= 0) return ag_fail(err, AG_E_FORMAT, "is not valid JSON: it ends inside a list of members");
    AG_TRY(ag_json_parse(&out->root, r->skeleton.text ? r->skeleton.text : "", r->skeleton.n, "the split manifest", err));
    if (!json_is_object(out->root)) return ag_fail(err, AG_E_FORMAT, "must be a JSON object");
    for (int i = 0; i < AG_N_SPLIT_LISTS; i++) /* else it was spelt so that it was not seen */
        if (json_array_size(json_object_get(json_object_get(json_object_get(out->root, "splits"), ag_split_list_names[i]), "members")) > 0)
            return ag_fail(err, AG_E_FORMAT, "spells the keys of a list of members with escapes; freeze-split writes them plainly");
    return AG_OK;
}

ag_status ag_split_reader_load(ag_split_reader **out, const char *path, ag_err *err)
{
    ag_map map;
    *out = NULL;
    AG_TRY(ag_map_open(&map, path, err));
    ag_split_reader *r = ag_split_reader_create();
    ag_status status = ag_split_reader_feed(r, (const char *)map.bytes, map.n, err);
    if (!status) status = ag_split_reader_end(r, err);
    ag_map_close(&map);
    if (!status) {
        *out = r;
        return AG_OK;
    }
    ag_split_reader_free(&r);
    return ag_err_prefix(err, "%s", path);
}
