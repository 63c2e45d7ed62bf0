#include "data/mixture_policy.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_POLICY_BYTES = 256 << 20, MAX_WEIGHT = 1000000000 };
#define MAX_BUDGET ((int64_t)1 << 50)

typedef struct {
    const char *path;
    ag_arena *arena;
    ag_err *err;
} place;

static ag_status wrong(const place *at, const char *where, const char *key, const char *expected)
{
    return ag_fail(at->err, AG_E_CONFIG, "%s: %s.%s must be %s", at->path, where, key, expected);
}

/* Every key is one of `known` (divided by spaces); a misspelt one would be a wish that is not heard. */
static ag_status check_keys(const json_t *object, const char *where, const char *known, const place *at)
{
    if (!json_is_object(object)) return ag_fail(at->err, AG_E_CONFIG, "%s: %s must be an object", at->path, where);
    for (void *it = json_object_iter((json_t *)(uintptr_t)object); it;
         it = json_object_iter_next((json_t *)(uintptr_t)object, it)) {
        const char *key = json_object_iter_key(it), *found = known;
        const size_t n = strlen(key);
        while ((found = strstr(found, key)) && ((found != known && found[-1] != ' ') || (found[n] && found[n] != ' '))) found++;
        if (!found)
            return ag_fail(at->err, AG_E_CONFIG, "%s: %s.%s is not known; the keys are %s", at->path, where, key, known);
    }
    return AG_OK;
}

static ag_status read_text(const char **out, const json_t *object, const char *where, const char *key, const place *at)
{
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);
    if (!text || !*text || strlen(text) != json_string_length(value)) return wrong(at, where, key, "a text that is not empty");
    *out = ag_arena_strdup(at->arena, text);
    return AG_OK;
}

static ag_status read_number(int64_t *out, const json_t *object, const char *where, const char *key, int64_t min, int64_t max,
                             const place *at)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max)
        return wrong(at, where, key, "an integer in range");
    *out = json_integer_value(value);
    return AG_OK;
}

static bool is_id(const char *text)
{
    return *text >= 'a' && *text <= 'z' && text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-")] == 0;
}

static ag_status read_source(ag_mixture_source *s, const json_t *o, const char *where, const place *at)
{
    static const char *const classes[] = {"SYNTHETIC_FACTORY", "EXTERNAL_PUBLIC_SWE", "PROMETHEUS_REAL"};
    const char **paths[] = {&s->split_manifest, &s->token_statistics, &s->token_ledger};
    static const char *const keys[] = {"split_manifest", "token_statistics", "token_ledger"};
    AG_TRY(check_keys(o, where, "source_id provenance_class weight split_manifest token_statistics token_ledger", at));
    AG_TRY(read_text(&s->id, o, where, "source_id", at));
    AG_TRY(read_text(&s->provenance_class, o, where, "provenance_class", at));
    AG_TRY(read_number(&s->weight, o, where, "weight", 1, MAX_WEIGHT, at));
    if (!is_id(s->id)) return wrong(at, where, "source_id", "small letters, digits, '_' and '-', a letter first");
    bool known = false;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) known |= strcmp(classes[i], s->provenance_class) == 0;
    if (!known) return wrong(at, where, "provenance_class", "SYNTHETIC_FACTORY, EXTERNAL_PUBLIC_SWE or PROMETHEUS_REAL");
    for (int i = 0; i < 3; i++) {
        AG_TRY(read_text(paths[i], o, where, keys[i], at));
        *paths[i] = ag_path_join(at->arena, ag_path_dir(at->arena, at->path), *paths[i]);
    }
    return AG_OK;
}

static int by_id(const void *a, const void *b)
{
    return strcmp(((const ag_mixture_source *)a)->id, ((const ag_mixture_source *)b)->id);
}

static ag_status read_sources(ag_mixture_policy *p, const json_t *list, const place *at)
{
    const size_t n = json_array_size(list);
    if (n < 1 || n > AG_MIXTURE_MAX_SOURCES)
        return ag_fail(at->err, AG_E_CONFIG, "%s: sources must be a list of 1 to %d", at->path, AG_MIXTURE_MAX_SOURCES);
    for (size_t i = 0; i < n; i++)
        AG_TRY(read_source(&p->source[p->n_sources++], json_array_get(list, i), ag_arena_printf(at->arena, "sources[%zu]", i),
                           at));
    qsort(p->source, n, sizeof *p->source, by_id);
    for (size_t i = 1; i < n; i++)
        if (strcmp(p->source[i].id, p->source[i - 1].id) == 0)
            return ag_fail(at->err, AG_E_CONFIG, "%s: the source_id '%s' stands twice; give each source its own", at->path,
                           p->source[i].id);
    return AG_OK;
}

static ag_status read_reserved(ag_mixture_policy *p, const json_t *o, const place *at)
{
    static const char *const keys[4] = {"canonical_ids", "lineage_ids", "group_ids", "content_sha256"};
    if (!o) return AG_OK;
    AG_TRY(check_keys(o, "reserved", "canonical_ids lineage_ids group_ids content_sha256", at));
    for (int k = 0; k < 4; k++) {
        const json_t *list = json_object_get(o, keys[k]);
        if (!list) continue;
        if (!json_is_array(list)) return wrong(at, "reserved", keys[k], "a list of texts");
        p->reserved[k].key = ag_arena_array(at->arena, json_array_size(list) + 1, sizeof(ag_split_key));
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *value = json_array_get(list, i);
            const char *text = json_string_value(value);
            ag_sha256 digest;
            if (!text || (k == 3 && (strlen(text) != 64 || strspn(text, "0123456789abcdef") != 64)))
                return wrong(at, "reserved", keys[k], k == 3 ? "a list of SHA-256 in lowercase digits" : "a list of texts");
            if (k == 3) memcpy(digest.hex, text, sizeof digest.hex);
            p->reserved[k].key[p->reserved[k].n++] =
                k == 3 ? ag_split_key_of_digest(&digest) : ag_split_key_of(text, json_string_length(value));
        }
    }
    return AG_OK;
}

/* Shares rounded down, then one token more to the largest remainders; sources are sorted, so that equals are settled by their
 * ids. */
static void share_budget(ag_mixture_policy *p)
{
    int64_t sum = 0, given = 0, rest[AG_MIXTURE_MAX_SOURCES];
    for (int i = 0; i < p->n_sources; i++) sum += p->source[i].weight;
    for (int i = 0; i < p->n_sources; i++) {
        const __int128 product = (__int128)p->budget * p->source[i].weight;
        p->source[i].quota = (int64_t)(product / sum);
        rest[i] = (int64_t)(product % sum);
        given += p->source[i].quota;
    }
    for (; given < p->budget; given++) {
        int largest = 0;
        for (int i = 1; i < p->n_sources; i++)
            if (rest[i] > rest[largest]) largest = i;
        p->source[largest].quota++;
        rest[largest] = -1;
    }
}

static ag_status read_policy(ag_mixture_policy *out, const json_t *root, const place *at)
{
    const json_t *policy = json_object_get(root, "policy");
    const char *split;
    AG_TRY(check_keys(root, "the file", "policy sources reserved", at));
    AG_TRY(check_keys(policy, "policy", "seed salt accepted_token_budget experiment_arm consumed_split", at));
    AG_TRY(read_number(&out->seed, policy, "policy", "seed", INT64_MIN, INT64_MAX, at));
    AG_TRY(read_number(&out->budget, policy, "policy", "accepted_token_budget", 1, MAX_BUDGET, at));
    AG_TRY(read_text(&out->salt, policy, "policy", "salt", at));
    AG_TRY(read_text(&out->arm, policy, "policy", "experiment_arm", at));
    AG_TRY(read_text(&split, policy, "policy", "consumed_split", at));
    if (strcmp(split, "train") != 0) return wrong(at, "policy", "consumed_split", "train: the other splits are held back");
    AG_TRY(read_sources(out, json_object_get(root, "sources"), at));
    AG_TRY(read_reserved(out, json_object_get(root, "reserved"), at));
    share_budget(out);
    return AG_OK;
}

ag_status ag_mixture_policy_load(ag_mixture_policy *out, const char *path, ag_arena *arena, ag_err *err)
{
    json_t *root;
    *out = (ag_mixture_policy){0};
    AG_TRY(ag_json_load(&root, path, MAX_POLICY_BYTES, err));
    ag_status status = read_policy(out, root, &(place){path, arena, err});
    ag_json_free(&root);
    return status;
}
