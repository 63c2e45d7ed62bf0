#include "data/mixture.h"

#include "base/canonical_json.h"
#include "base/fs.h"
#include "data/mixture_policy.h"
#include "data/rows.h"
#include "data/split_table.h"
#include "data/split_tokens.h"

#include <stdlib.h>
#include <string.h>

typedef enum { ACCEPTED, TRUNCATED, EXCEEDS_QUOTA, QUOTA_REMAINDER, N_FATES } fate;
static const char *const fate_names[N_FATES] = {"accepted", "truncated", "exceeds-source-quota", "quota-remainder"};

typedef struct {
    ag_sha256 place; /* decides the order */
    const char *id;
    int64_t tokens;
    int source;
    size_t row; /* of the source's train split */
    fate fate;
    ag_split_key key[AG_N_SPLIT_KEYS];
} record;

typedef struct {
    const ag_mixture_source *policy;
    ag_split *split;
    ag_rows *rows; /* of the train split */
    ag_token_identity tokens;
    ag_sha256 statistics_sha256, ledger_sha256;
    int64_t available_tokens, accepted_tokens, n_of[N_FATES], n_records;
} source;

typedef struct {
    ag_split_key *key[AG_N_SPLIT_KEYS];
    size_t n, room;
} key_lists;

typedef struct {
    const ag_mixture_options *o;
    ag_mixture_policy policy;
    source sources[AG_MIXTURE_MAX_SOURCES];
    record *records; /* of all sources */
    size_t n_records, room;
    key_lists held_back;
    int64_t audit[6];
    ag_sha256 output_sha256;
    int64_t n_accepted, n_tokens;
    ag_arena arena;
} composer;

static const char *const audit_names[6] = {"canonical_id_held_back",    "lineage_held_back",
                                           "declared_group_held_back",  "exact_content_held_back",
                                           "canonical_id_cross_source", "exact_content_cross_source"};

/* ---- reading ----------------------------------------------------------------------------------------------------- */
static void *grown(void *items, size_t n, size_t *room, size_t size)
{
    if (n < *room) return items;
    *room = *room ? *room * 2 : 1024;
    items = realloc(items, *room * size);
    if (!items) ag_out_of_memory(*room * size);
    return items;
}

static void keys_of(ag_split_key key[AG_N_SPLIT_KEYS], const ag_split_row *row)
{
    key[AG_SPLIT_KEY_CANONICAL] = ag_split_key_of(row->canonical_id.text, row->canonical_id.n);
    key[AG_SPLIT_KEY_LINEAGE] = ag_split_key_of(row->lineage_id.text, row->lineage_id.n);
    key[AG_SPLIT_KEY_GROUP] = row->group_id.n ? ag_split_key_of(row->group_id.text, row->group_id.n) : (ag_split_key){0, 0};
    key[AG_SPLIT_KEY_CONTENT] = ag_split_key_of_digest(&row->content);
}

static void hold_back(composer *c, const ag_split_key key[AG_N_SPLIT_KEYS])
{
    key_lists *h = &c->held_back;
    for (int k = 0; k < AG_N_SPLIT_KEYS; k++) {
        size_t room = h->room;
        h->key[k] = grown(h->key[k], h->n, &room, sizeof **h->key);
        h->key[k][h->n] = key[k];
        if (k == AG_N_SPLIT_KEYS - 1) h->room = room;
    }
    h->n++;
}

static ag_sha256 place_of(const composer *c, const char *source_id, const char *id)
{
    ag_str text = {0};
    ag_str_printf(&text, AG_MIXTURE_ALGORITHM "%c%lld%c%s%c%s%c%s", 0, (long long)c->policy.seed, 0, c->policy.salt, 0,
                  source_id, 0, id);
    const ag_sha256 digest = ag_sha256_bytes(text.text, text.n);
    ag_str_free(&text);
    return digest;
}

/* The rows of one split: those of train become records, the others are held back. */
static ag_status read_rows(composer *c, int s, ag_split_name name, const ag_rows *rows, const json_t *ledger, ag_err *err)
{
    source *src = &c->sources[s];
    ag_split_row row = {0};
    ag_status status = AG_OK;
    for (size_t i = 0; i < rows->n && !status; i++) {
        status = ag_split_row_read(&row, rows->bytes + rows->line[i].start, rows->line[i].n, &src->split->identity, false,
                                   rows->path, rows->line[i].number, err);
        if (status) break;
        record r = {.source = s, .row = i};
        keys_of(r.key, &row);
        if (name != AG_SPLIT_TRAIN) {
            hold_back(c, r.key);
            continue;
        }
        const json_t *entry = json_array_get(ledger, i);
        r.id = ag_arena_strndup(&c->arena, row.canonical_id.text, row.canonical_id.n);
        r.tokens = json_integer_value(json_object_get(entry, "tokens"));
        if (strcmp(json_string_value(json_object_get(entry, "canonical_id")), r.id) != 0)
            status = ag_fail(err, AG_E_VERIFY,
                             "%s: its record %zu is not the split's; count the tokens again (agoge token-statistics)",
                             src->policy->token_ledger, i + 1);
        r.place = place_of(c, src->policy->id, r.id);
        src->available_tokens += r.tokens;
        src->n_records++;
        c->records = grown(c->records, c->n_records, &c->room, sizeof r);
        c->records[c->n_records++] = r;
    }
    ag_split_row_free(&row);
    return status;
}

static ag_status read_held_back(composer *c, int s, ag_split_name name, ag_err *err)
{
    ag_rows *rows;
    AG_TRY(ag_rows_open(&rows, c->sources[s].split->part[name].path, err));
    ag_status status = read_rows(c, s, name, rows, NULL, err);
    ag_rows_close(&rows);
    return status;
}

/* All sources must have been counted by the same tokenizer, or their tokens could not be added. */
static ag_status check_tokenizer(const composer *c, int s, const ag_token_identity *ledger, ag_err *err)
{
    const ag_token_identity *first = &c->sources[0].tokens, *own = &c->sources[s].tokens;
    if (strcmp(own->tokenizer.hex, ledger->tokenizer.hex) != 0 || strcmp(own->serializer.hex, ledger->serializer.hex) != 0 ||
        own->context_limit != ledger->context_limit)
        return ag_fail(
            err, AG_E_VERIFY,
            "source %s: token_statistics and token_ledger are not of one tokenizer, serializer and context limit; count "
            "the tokens again",
            c->sources[s].policy->id);
    if (strcmp(first->tokenizer.hex, own->tokenizer.hex) == 0 && strcmp(first->serializer.hex, own->serializer.hex) == 0 &&
        first->context_limit == own->context_limit)
        return AG_OK;
    return ag_fail(
        err, AG_E_VERIFY,
        "source %s: was counted with another tokenizer, serializer or context limit than %s; count all sources with one",
        c->sources[s].policy->id, c->sources[0].policy->id);
}

static ag_status read_source(composer *c, int s, ag_err *err)
{
    source *src = &c->sources[s];
    const ag_mixture_source *p = src->policy = &c->policy.source[s];
    ag_split_token_counts counts[AG_N_SPLITS];
    ag_token_identity ledger_identity;
    json_t *root;
    const json_t *ledger;
    AG_TRY(ag_split_open(&src->split, p->split_manifest, &(ag_split_check){.n_threads = c->o->n_threads}, err));
    AG_TRY(ag_token_statistics_read(&src->tokens, counts, p->token_statistics, src->split, err));
    AG_TRY(ag_rows_open(&src->rows, src->split->part[AG_SPLIT_TRAIN].path, err));
    AG_TRY(ag_token_ledger_read(&ledger_identity, &root, &ledger, p->token_ledger, src->split, AG_SPLIT_TRAIN, err));
    src->statistics_sha256 = src->tokens.sha256;
    src->ledger_sha256 = ledger_identity.sha256;
    ag_status status = check_tokenizer(c, s, &ledger_identity, err);
    if (!status) status = read_rows(c, s, AG_SPLIT_TRAIN, src->rows, ledger, err);
    ag_json_free(&root);
    if (!status && src->available_tokens != counts[AG_SPLIT_TRAIN].total)
        status = ag_fail(err, AG_E_VERIFY,
                         "source %s: the ledger's tokens are %lld, the statistics say %lld; count the tokens again", p->id,
                         (long long)src->available_tokens, (long long)counts[AG_SPLIT_TRAIN].total);
    if (!status) status = read_held_back(c, s, AG_SPLIT_VALIDATION, err);
    return status ? status : read_held_back(c, s, AG_SPLIT_HELD_OUT, err);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */
static int by_place(const void *a, const void *b)
{
    const record *x = a, *y = b;
    const int order = strcmp(x->place.hex, y->place.hex);
    return order ? order : strcmp(x->id, y->id);
}

static void choose(composer *c)
{
    qsort(c->records, c->n_records, sizeof *c->records, by_place);
    for (size_t i = 0; i < c->n_records; i++) {
        record *r = &c->records[i];
        source *src = &c->sources[r->source];
        const int64_t quota = src->policy->quota, limit = src->tokens.context_limit;
        r->fate = limit > 0 && r->tokens > limit             ? TRUNCATED
                  : r->tokens > quota                        ? EXCEEDS_QUOTA
                  : r->tokens > quota - src->accepted_tokens ? QUOTA_REMAINDER
                                                             : ACCEPTED;
        src->n_of[r->fate]++;
        if (r->fate != ACCEPTED) continue;
        src->accepted_tokens += r->tokens;
        c->n_tokens += r->tokens;
        c->n_accepted++;
    }
}

/* ---- audit ------------------------------------------------------------------------------------------------------- */
/* The keys of one kind: accepted records (tagged 0, or with their source), then what is held back (tagged 255). */
static size_t count_overlap(const composer *c, ag_split_key_kind kind, bool against_held_back)
{
    const size_t n_held = against_held_back ? c->held_back.n + c->policy.reserved[kind].n : 0,
                 n_all = (size_t)c->n_accepted + n_held;
    ag_split_key *key = malloc((n_all + 1) * sizeof *key);
    uint8_t *tag = malloc(n_all + 1);
    if (!key || !tag) ag_out_of_memory(n_all * sizeof *key);
    size_t n = 0;
    for (size_t i = 0; i < c->n_records; i++) {
        if (c->records[i].fate != ACCEPTED) continue;
        key[n] = c->records[i].key[kind];
        tag[n++] = against_held_back ? 0 : (uint8_t)c->records[i].source;
    }
    for (size_t i = 0; against_held_back && i < c->held_back.n; i++) {
        key[n] = c->held_back.key[kind][i];
        tag[n++] = 255;
    }
    for (size_t i = 0; against_held_back && i < c->policy.reserved[kind].n; i++) {
        key[n] = c->policy.reserved[kind].key[i];
        tag[n++] = 255;
    }
    const size_t crossing = ag_split_table_count_crossing(key, tag, n);
    free(key);
    free(tag);
    return crossing;
}

static ag_status audit(composer *c, ag_err *err)
{
    for (int k = 0; k < AG_N_SPLIT_KEYS; k++) c->audit[k] = (int64_t)count_overlap(c, k, true);
    c->audit[4] = (int64_t)count_overlap(c, AG_SPLIT_KEY_CANONICAL, false);
    c->audit[5] = (int64_t)count_overlap(c, AG_SPLIT_KEY_CONTENT, false);
    for (int i = 0; i < 6; i++)
        if (c->audit[i] > 0)
            return ag_fail(
                err, AG_E_VERIFY,
                "the mixture would hold what it must not: %s is %lld; freeze the sources together, so that what belongs "
                "together lies in one split, or leave one of them out",
                audit_names[i], (long long)c->audit[i]);
    if (c->n_accepted == 0)
        return ag_fail(err, AG_E_DATA, "no record fits the budget of %lld tokens; raise accepted_token_budget",
                       (long long)c->policy.budget);
    return AG_OK;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */
static ag_status write_rows(composer *c, const char *path, ag_err *err)
{
    ag_file_writer w;
    ag_sha256_state *sha = ag_sha256_begin();
    ag_status status = ag_file_begin(&w, path, err);
    for (size_t i = 0; i < c->n_records && !status; i++) {
        if (c->records[i].fate != ACCEPTED) continue;
        const ag_rows *rows = c->sources[c->records[i].source].rows;
        const ag_row_line *line = &rows->line[c->records[i].row];
        ag_sha256_add(sha, rows->bytes + line->start, line->n);
        ag_sha256_add(sha, "\n", 1);
        status = ag_file_write(&w, rows->bytes + line->start, line->n, err);
        if (!status) status = ag_file_write(&w, "\n", 1, err);
    }
    if (status)
        ag_file_abort(&w);
    else
        status = ag_file_commit(&w, err);
    c->output_sha256 = ag_sha256_end(sha);
    return status;
}

static json_t *source_json(const source *s)
{
    const int64_t shortfall = s->policy->quota - s->accepted_tokens;
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I}, s:b, s:I}", "source_id",
                     s->policy->id, "provenance_class", s->policy->provenance_class, "weight", (json_int_t)s->policy->weight,
                     "split_manifest_sha256", s->split->manifest_sha256.hex, "train_split_sha256",
                     s->split->part[AG_SPLIT_TRAIN].sha256.hex, "token_statistics_sha256", s->statistics_sha256.hex,
                     "token_ledger_sha256", s->ledger_sha256.hex, "quota", (json_int_t)s->policy->quota, "available_tokens",
                     (json_int_t)s->available_tokens, "accepted_tokens", (json_int_t)s->accepted_tokens, "available_records",
                     (json_int_t)s->n_records, "accepted_records", (json_int_t)s->n_of[ACCEPTED], "excluded_records",
                     fate_names[TRUNCATED], (json_int_t)s->n_of[TRUNCATED], fate_names[EXCEEDS_QUOTA],
                     (json_int_t)s->n_of[EXCEEDS_QUOTA], fate_names[QUOTA_REMAINDER], (json_int_t)s->n_of[QUOTA_REMAINDER],
                     "underfilled", shortfall > 0, "shortfall", (json_int_t)shortfall);
}

static json_t *manifest_json(const composer *c)
{
    json_t *sources = json_array(), *members = json_array(), *counters = json_object();
    for (int s = 0; s < c->policy.n_sources; s++) json_array_append_new(sources, source_json(&c->sources[s]));
    for (size_t i = 0; i < c->n_records; i++)
        if (c->records[i].fate == ACCEPTED)
            json_array_append_new(members,
                                  json_pack("{s:s, s:s, s:I}", "source_id", c->sources[c->records[i].source].policy->id,
                                            "canonical_id", c->records[i].id, "tokens", (json_int_t)c->records[i].tokens));
    for (int i = 0; i < 6; i++) json_object_set_new(counters, audit_names[i], json_integer(c->audit[i]));
    json_object_set_new(counters, "status", json_string("passed"));
    return json_pack("{s:s, s:s, s:{s:I, s:s, s:I, s:s, s:s}, s:s, s:s, s:o, s:{s:s, s:s, s:I, s:I}, s:o, s:o}",
                     "schema_version", AG_MIXTURE_SCHEMA, "algorithm_version", AG_MIXTURE_ALGORITHM, "policy", "seed",
                     (json_int_t)c->policy.seed, "salt", c->policy.salt, "accepted_token_budget", (json_int_t)c->policy.budget,
                     "experiment_arm", c->policy.arm, "consumed_split", "train", "tokenizer_sha256",
                     c->sources[0].tokens.tokenizer.hex, "serializer_sha256", c->sources[0].tokens.serializer.hex, "sources",
                     sources, "output", "path", "mixture.jsonl", "sha256", c->output_sha256.hex, "record_count",
                     (json_int_t)c->n_accepted, "token_count", (json_int_t)c->n_tokens, "members", members, "leakage_audit",
                     counters);
}

static ag_status write_all(composer *c, const char *dir, ag_mixture_result *result, ag_err *err)
{
    AG_TRY(write_rows(c, ag_path_join(&c->arena, dir, "mixture.jsonl"), err));
    json_t *manifest = manifest_json(c);
    if (!manifest) return ag_fail(err, AG_E_CONFIG, "%s: a text of the policy is not UTF-8", c->o->policy);
    ag_str text = {0};
    ag_json_add_canonical(&text, manifest);
    ag_str_add_char(&text, '\n');
    result->manifest_sha256 = ag_sha256_bytes(text.text, text.n);
    ag_status status = ag_file_publish(ag_path_join(&c->arena, dir, "mixture_manifest.json"), text.text, text.n, err);
    ag_str_free(&text);
    json_decref(manifest);
    return status;
}

static ag_status compose(composer *c, ag_mixture_result *result, ag_err *err)
{
    char *output, *policy;
    ag_dir_writer w;
    AG_TRY(ag_path_absent_dir(&output, c->o->output_dir, &c->arena, err));
    AG_TRY(ag_path_existing_file(&policy, c->o->policy, &c->arena, err));
    AG_TRY(ag_mixture_policy_load(&c->policy, policy, &c->arena, err));
    for (int s = 0; s < c->policy.n_sources; s++) AG_TRY(read_source(c, s, err));
    choose(c);
    AG_TRY(audit(c, err));
    AG_TRY(ag_dir_begin(&w, output, ".agoge-mixture-staging-", err));
    ag_status status = write_all(c, w.staging, result, err);
    if (status)
        ag_dir_abort(&w);
    else
        status = ag_dir_commit(&w, err);
    result->n_records = c->n_accepted;
    result->n_tokens = c->n_tokens;
    result->budget = c->policy.budget;
    result->shortfall = c->policy.budget - c->n_tokens;
    result->n_sources = c->policy.n_sources;
    return status;
}

ag_status ag_mixture_compose(ag_mixture_result *result, const ag_mixture_options *options, ag_err *err)
{
    composer *c = calloc(1, sizeof *c);
    if (!c) ag_out_of_memory(sizeof *c);
    *result = (ag_mixture_result){0};
    c->o = options;
    ag_status status = compose(c, result, err);
    for (int s = 0; s < AG_MIXTURE_MAX_SOURCES; s++) {
        ag_rows_close(&c->sources[s].rows);
        ag_split_close(&c->sources[s].split);
    }
    for (int k = 0; k < AG_N_SPLIT_KEYS; k++) free(c->held_back.key[k]);
    free(c->records);
    ag_arena_free(&c->arena);
    free(c);
    return status;
}
