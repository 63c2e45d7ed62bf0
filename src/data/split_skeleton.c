/* Cutting the lists of members out of a manifest's text, so that a manifest of millions of rows is read member by member.
 * jansson judges what is left and each member; here only strings, brackets and commas count. */
#include "data/split_manifest.h"

#include <string.h>

typedef struct {
    const char *bytes;
    size_t n, at;
    const char *name;
    const ag_map *map; /* whose pages behind `at` are let go */
    size_t let_go;
} scanner;

static ag_status broken(const scanner *s, ag_err *err)
{
    return ag_fail(err, AG_E_FORMAT, "%s: not valid JSON near byte %zu; the file is damaged, restore it or freeze again",
                   s->name, s->at);
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static void skip_space(scanner *s)
{
    while (s->at < s->n && is_space(s->bytes[s->at])) s->at++;
}

/* Behind the string that begins here. */
static bool skip_string(scanner *s)
{
    for (s->at++; s->at < s->n; s->at++) {
        if (s->bytes[s->at] == '\\')
            s->at++;
        else if (s->bytes[s->at] == '"') {
            s->at++;
            return true;
        }
    }
    return false;
}

/* Behind the object or list that begins here. */
static bool skip_nested(scanner *s)
{
    enum { LET_GO_BYTES = 16 << 20 };
    size_t depth = 0;
    while (s->at < s->n) {
        const char c = s->bytes[s->at];
        if (s->at - s->let_go > LET_GO_BYTES) {
            ag_map_forget(s->map, s->let_go, s->at - s->let_go);
            s->let_go = s->at;
        }
        if (c == '"') {
            if (!skip_string(s)) return false;
            continue;
        }
        s->at++;
        if (c == '{' || c == '[') depth++;
        if ((c == '}' || c == ']') && --depth == 0) return true;
    }
    return false;
}

enum { MAX_LEVEL = 3 }; /* {"splits": {"train": {"members": [ */
typedef struct {
    struct {
        size_t start, n; /* of the last key of that object */
    } key[MAX_LEVEL + 1];
    int depth;        /* objects and lists that are open */
    bool lists_above; /* one of the first levels is a list, so no members below it */
} place;

static bool key_is(const scanner *s, const place *p, int level, const char *word)
{
    return p->key[level].n == strlen(word) && memcmp(s->bytes + p->key[level].start, word, strlen(word)) == 0;
}

/* The split whose list of members begins here, or -1. */
static int members_of(const scanner *s, const place *p)
{
    if (p->depth != MAX_LEVEL || p->lists_above || !key_is(s, p, 1, "splits") || !key_is(s, p, 3, "members")) return -1;
    for (int i = 0; i < AG_N_SPLITS; i++)
        if (key_is(s, p, 2, ag_split_name_text(i))) return i;
    return -1;
}

static ag_status cut(ag_str *text, ag_split_skeleton *out, scanner *s, ag_err *err)
{
    place p = {0};
    size_t copied = 0;
    while (s->at < s->n) {
        const char c = s->bytes[s->at];
        if (c == '"') {
            const size_t start = s->at + 1;
            if (!skip_string(s)) return broken(s, err);
            const size_t n = s->at - 1 - start;
            scanner look = *s;
            skip_space(&look);
            if (p.depth >= 1 && p.depth <= MAX_LEVEL && look.at < s->n && s->bytes[look.at] == ':') {
                p.key[p.depth].start = start;
                p.key[p.depth].n = n;
            }
            continue;
        }
        if (c == '[') {
            const int split = members_of(s, &p);
            if (split >= 0) {
                ag_str_add_n(text, s->bytes + copied, s->at - copied);
                ag_str_add(text, "[]");
                out->start[split] = s->at;
                if (!skip_nested(s)) return broken(s, err);
                out->end[split] = copied = s->at;
                continue;
            }
        }
        if (c == '{' || c == '[') {
            if (c == '[' && p.depth < MAX_LEVEL) p.lists_above = true;
            if (++p.depth <= MAX_LEVEL) p.key[p.depth].n = 0;
        }
        if (c == '}' || c == ']') {
            if (--p.depth < 0) return broken(s, err);
            if (p.depth == 1) p.lists_above = false;
        }
        s->at++;
    }
    ag_str_add_n(text, s->bytes + copied, s->n - copied);
    return AG_OK;
}

ag_status ag_split_skeleton_read(ag_split_skeleton *out, const ag_map *map, const char *name, ag_err *err)
{
    *out = (ag_split_skeleton){0};
    scanner s = {.bytes = map->n ? (const char *)map->bytes : "", .n = map->n, .name = name, .map = map};
    ag_str text = {0};
    ag_status status = cut(&text, out, &s, err);
    if (!status) status = ag_json_parse(&out->root, text.text ? text.text : "", text.n, name, err);
    ag_str_free(&text);
    ag_map_forget(map, 0, map->n);
    return status;
}

ag_status ag_split_member_next(json_t **value, size_t *at, const ag_map *map, size_t end, const char *name, ag_err *err)
{
    scanner s = {.bytes = (const char *)map->bytes, .n = end, .at = *at, .name = name, .map = map, .let_go = *at};
    *value = NULL;
    const bool is_first = s.at > 0 && s.bytes[s.at - 1] == '[';
    skip_space(&s);
    if (s.at >= end) return broken(&s, err);
    if (s.bytes[s.at] == ']') {
        if (s.at + 1 != end) return broken(&s, err);
        *at = s.at;
        return AG_OK;
    }
    if (!is_first) {
        if (s.bytes[s.at] != ',') return broken(&s, err);
        s.at++;
        skip_space(&s);
    }
    if (s.at >= end || s.bytes[s.at] != '{') return broken(&s, err);
    const size_t start = s.at;
    if (!skip_nested(&s)) return broken(&s, err);
    *at = s.at;
    ag_status status = ag_json_parse(value, s.bytes + start, s.at - start, name, err);
    return status ? ag_err_prefix(err, "the member at byte %zu", start) : AG_OK;
}
