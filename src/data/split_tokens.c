#include "data/split_tokens.h"

#include "base/canonical_json.h"
#include "base/fs.h"
#include "data/examples.h"
#include "data/tokenizer_identity.h"

#include <string.h>

#define SERIALIZER_ID      "training-text-v1"
#define SERIALIZER_VERSION "1"
static const char serializer[] =
    SERIALIZER_ID "/" SERIALIZER_VERSION ": text, with the tokenizer's special tokens, and one EOS unless it ends with it";
enum { MAX_BYTES = 1 << 30 };

/* ---- writing ----------------------------------------------------------------------------------------------------- */
/* Tokens of each row of a split; the records are appended to `records`. */
static ag_status count(ag_split_token_counts *c, json_t *records, const ag_split *split, ag_split_name name,
                       const ag_split_tokens_options *o, ag_err *err)
{
    ag_rows *rows;
    ag_examples *x = NULL;
    AG_TRY(ag_rows_open(&rows, split->part[name].path, err));
    ag_status status = ag_examples_make(&x, rows,
                                        &(ag_examples_options){.tokenizer = o->tokenizer,
                                                               .text_field = "text",
                                                               .max_seq_length = INT64_MAX,
                                                               .allow_no_target = true,
                                                               .n_threads = o->n_threads},
                                        err);
    ag_str id = {0};
    for (int64_t r = 0; !status && r < x->n; r++) {
        const int64_t n = x->offset[r + 1] - x->offset[r];
        json_t *root;
        status = ag_json_parse_exact(&root, rows->bytes + rows->line[r].start, rows->line[r].n, split->part[name].path, err);
        if (status) break;
        const json_t *value = json_object_get(root, split->identity.canonical_id_field);
        ag_split_id_trim(&id, json_string_value(value), json_string_length(value));
        json_array_append_new(records, json_pack("{s:s#, s:I}", "canonical_id", id.text, (int)id.n, "tokens", (json_int_t)n));
        ag_json_free(&root);
        c->n_rows++;
        c->total += n;
        c->truncated += o->context_limit > 0 && n > o->context_limit;
    }
    if (!status) {
        c->minimum = x->shortest;
        c->maximum = x->longest;
    }
    ag_str_free(&id);
    ag_examples_free(&x);
    ag_rows_close(&rows);
    return status;
}

/* The fields that both files begin with. */
static json_t *make_head(const char *schema, const ag_split *split, const ag_split_tokens_options *o,
                         const ag_sha256 *tokenizer)
{
    json_t *head = json_pack("{s:s, s:s, s:{s:s, s:s, s:s}, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "schema_version", schema,
                             "split_manifest_sha256", split->manifest_sha256.hex, "source_split_sha256", "train",
                             split->part[AG_SPLIT_TRAIN].sha256.hex, "validation", split->part[AG_SPLIT_VALIDATION].sha256.hex,
                             "held_out", split->part[AG_SPLIT_HELD_OUT].sha256.hex, "model_id", o->model_id, "model_revision",
                             o->model_revision, "tokenizer_id", o->tokenizer_id, "tokenizer_revision", o->tokenizer_revision,
                             "tokenizer_sha256", tokenizer->hex, "serializer_id", SERIALIZER_ID, "serializer_version",
                             SERIALIZER_VERSION, "serializer_sha256", ag_sha256_bytes(serializer, sizeof serializer - 1).hex);
    if (head) json_object_set_new(head, "context_limit", o->context_limit > 0 ? json_integer(o->context_limit) : json_null());
    return head;
}

static ag_status publish(const json_t *root, const char *dir, const char *name, ag_arena *arena, ag_err *err)
{
    ag_str text = {0};
    ag_json_add_canonical(&text, root);
    ag_str_add_char(&text, '\n');
    ag_status status = ag_file_publish(ag_path_join(arena, dir, name), text.text, text.n, err);
    ag_str_free(&text);
    return status;
}

static ag_status publish_both(const json_t *stats, const json_t *ledger, const char *output, ag_arena *arena, ag_err *err)
{
    ag_dir_writer w;
    AG_TRY(ag_dir_begin(&w, output, ".agoge-tokens-staging-", err));
    ag_status status = publish(stats, w.staging, AG_TOKEN_STATS_FILE, arena, err);
    if (!status) status = publish(ledger, w.staging, AG_TOKEN_LEDGER_FILE, arena, err);
    if (status) ag_dir_abort(&w);
    return status ? status : ag_dir_commit(&w, err);
}

static ag_status write_both(ag_split_token_counts counts[AG_N_SPLITS], const ag_split *split, const ag_split_tokens_options *o,
                            const char *output, ag_arena *arena, ag_err *err)
{
    ag_sha256 tokenizer;
    AG_TRY(ag_tokenizer_fingerprint(&tokenizer, o->tokenizer, err));
    json_t *stats = make_head(AG_TOKEN_STATS_SCHEMA, split, o, &tokenizer),
           *ledger = make_head(AG_TOKEN_LEDGER_SCHEMA, split, o, &tokenizer);
    json_t *of_stats = json_object(), *of_ledger = json_object();
    ag_status status =
        stats && ledger ? AG_OK : ag_fail(err, AG_E_USAGE, "a name of the model or tokenizer is not UTF-8; rename its folder");
    for (int s = 0; s < AG_N_SPLITS && !status; s++) {
        json_t *records = json_array();
        ag_split_token_counts *c = &counts[s];
        status = count(c, records, split, s, o, err);
        json_object_set_new(of_ledger, ag_split_name_text(s), records);
        json_object_set_new(of_stats, ag_split_name_text(s),
                            json_pack("{s:I, s:I, s:I, s:I, s:I}", "record_count", (json_int_t)c->n_rows, "total_tokens",
                                      (json_int_t)c->total, "minimum_tokens", (json_int_t)c->minimum, "maximum_tokens",
                                      (json_int_t)c->maximum, "truncated_records", (json_int_t)c->truncated));
    }
    if (!status) {
        json_object_set(stats, "splits", of_stats);
        json_object_set(ledger, "splits", of_ledger);
        status = publish_both(stats, ledger, output, arena, err);
    }
    json_decref(stats);
    json_decref(ledger);
    json_decref(of_stats);
    json_decref(of_ledger);
    return status;
}

ag_status ag_split_tokens_write(ag_split_token_counts counts[AG_N_SPLITS], const ag_split_tokens_options *o, ag_err *err)
{
    ag_arena arena = {0};
    ag_split *split = NULL;
    char *output;
    memset(counts, 0, AG_N_SPLITS * sizeof *counts);
    ag_status status = ag_path_absent_dir(&output, o->output_dir, &arena, err);
    if (!status) status = ag_split_open(&split, o->split_manifest, &(ag_split_check){.n_threads = o->n_threads}, err);
    if (!status) status = write_both(counts, split, o, output, &arena, err);
    ag_split_close(&split);
    ag_arena_free(&arena);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */
static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool read_digest(ag_sha256 *out, const json_t *object, const char *key)
{
    const char *text = text_of(object, key);
    if (strlen(text) != 64 || strspn(text, "0123456789abcdef") != 64) return false;
    memcpy(out->hex, text, sizeof out->hex);
    return true;
}

/* The head of either file, of this schema and split. */
static ag_status load(json_t **root, ag_token_identity *out, const char *schema, const char *path, const ag_split *split,
                      ag_err *err)
{
    *out = (ag_token_identity){0};
    AG_TRY(ag_json_load(root, path, MAX_BYTES, err));
    const json_t *r = *root, *digests = json_object_get(r, "source_split_sha256"), *limit = json_object_get(r, "context_limit");
    ag_status status = AG_OK;
    if (strcmp(text_of(r, "schema_version"), schema) != 0)
        status =
            ag_fail(err, AG_E_FORMAT, "%s: schema_version is '%.60s', not %s; count the tokens again (agoge token-statistics)",
                    path, text_of(r, "schema_version"), schema);
    else if (!read_digest(&out->split_manifest, r, "split_manifest_sha256") ||
             !read_digest(&out->tokenizer, r, "tokenizer_sha256") || !read_digest(&out->serializer, r, "serializer_sha256") ||
             !(json_is_null(limit) || (json_is_integer(limit) && json_integer_value(limit) > 0)))
        status =
            ag_fail(err, AG_E_FORMAT,
                    "%s: a digest or context_limit is missing or wrong; count the tokens again (agoge token-statistics)", path);
    else if (strcmp(out->split_manifest.hex, split->manifest_sha256.hex) != 0)
        status = ag_fail(err, AG_E_VERIFY, "%s: was made for another split than %s; count its tokens (agoge token-statistics)",
                         path, split->path);
    for (int s = 0; s < AG_N_SPLITS && !status; s++)
        if (strcmp(text_of(digests, ag_split_name_text(s)), split->part[s].sha256.hex) != 0)
            status = ag_fail(err, AG_E_VERIFY, "%s: source_split_sha256.%s is not the split's; count the tokens again", path,
                             ag_split_name_text(s));
    if (!status) {
        out->context_limit = json_integer_value(limit);
        status = ag_sha256_file(&out->sha256, path, err);
    }
    if (status) ag_json_free(root);
    return status;
}

static ag_status read_counts(ag_split_token_counts *c, const json_t *o, int64_t n_rows, const char *path, ag_err *err)
{
    AG_TRY(ag_json_need_int(o, "record_count", 1, INT64_MAX, &c->n_rows, path, err));
    AG_TRY(ag_json_need_int(o, "total_tokens", 0, INT64_MAX, &c->total, path, err));
    AG_TRY(ag_json_need_int(o, "minimum_tokens", 0, INT64_MAX, &c->minimum, path, err));
    AG_TRY(ag_json_need_int(o, "maximum_tokens", 0, INT64_MAX, &c->maximum, path, err));
    AG_TRY(ag_json_need_int(o, "truncated_records", 0, INT64_MAX, &c->truncated, path, err));
    const __int128 least = (__int128)c->minimum * c->n_rows, most = (__int128)c->maximum * c->n_rows;
    if (c->n_rows == n_rows && c->minimum <= c->maximum && c->truncated <= c->n_rows && c->total >= least && c->total <= most)
        return AG_OK;
    return ag_fail(err, AG_E_VERIFY,
                   "%s: the counts of a split do not go together; count the tokens again (agoge token-statistics)", path);
}

ag_status ag_token_statistics_read(ag_token_identity *out, ag_split_token_counts counts[AG_N_SPLITS], const char *path,
                                   const ag_split *split, ag_err *err)
{
    json_t *root;
    AG_TRY(load(&root, out, AG_TOKEN_STATS_SCHEMA, path, split, err));
    const json_t *splits = json_object_get(root, "splits");
    ag_status status = AG_OK;
    for (int s = 0; s < AG_N_SPLITS && !status; s++)
        status = read_counts(&counts[s], json_object_get(splits, ag_split_name_text(s)), split->part[s].n_rows, path, err);
    ag_json_free(&root);
    return status;
}

ag_status ag_token_ledger_read(ag_token_identity *out, json_t **root, const json_t **records, const char *path,
                               const ag_split *split, ag_split_name name, ag_err *err)
{
    AG_TRY(load(root, out, AG_TOKEN_LEDGER_SCHEMA, path, split, err));
    *records = json_object_get(json_object_get(*root, "splits"), ag_split_name_text(name));
    bool fits = (int64_t)json_array_size(*records) == split->part[name].n_rows;
    for (size_t i = 0; fits && i < json_array_size(*records); i++) {
        const json_t *r = json_array_get(*records, i), *tokens = json_object_get(r, "tokens");
        fits = json_is_string(json_object_get(r, "canonical_id")) && json_is_integer(tokens) && json_integer_value(tokens) >= 1;
    }
    if (fits) return AG_OK;
    ag_json_free(root);
    return ag_fail(
        err, AG_E_FORMAT,
        "%s: splits.%s does not hold the tokens of each of the split's records; count them again (agoge token-statistics)",
        path, ag_split_name_text(name));
}
