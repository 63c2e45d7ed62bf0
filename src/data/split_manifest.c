#include "data/split_manifest.h"

#include "base/canonical_json.h"

static const char *const guarantees[] = {
    "no canonical id stands in two splits",
    "no declared group stands in two splits",
    "no exact training payload stands in two splits",
    "no lineage stands in two splits",
    "no source row stands in two splits",
};
static const char limitation[] =
    "semantic near-duplicates are not looked for: rows that say the same in other words may stand in two splits";

/* The keys of every object below are written in sorted order: canonical JSON. */

static void write_identity(ag_json_writer *w, const ag_split_identity *id)
{
    ag_jw_object(w, "canonical_identity");
    ag_jw_string(w, "canonical_id_field", id->canonical_id_field);
    if (id->content == AG_SPLIT_CONTENT_PAYLOAD) ag_jw_string(w, "content_hash_policy", AG_SPLIT_CONTENT_PAYLOAD_NAME);
    ag_jw_string(w, "group_id_field", id->group_id_field);
    ag_jw_string(w, "lineage_id_field", id->lineage_id_field);
    ag_jw_string(w, "missing_lineage", "canonical_id");
    ag_jw_string(w, "source_coordinate_policy", AG_SPLIT_COORDINATE_POLICY);
    ag_jw_end(w);
}

static void write_audit(ag_json_writer *w)
{
    ag_jw_object(w, "leakage_audit");
    ag_jw_int(w, "canonical_id_cross_split", 0);
    ag_jw_int(w, "declared_group_cross_split", 0);
    ag_jw_array(w, "deterministic_guarantees");
    for (size_t i = 0; i < sizeof guarantees / sizeof *guarantees; i++) ag_jw_string(w, NULL, guarantees[i]);
    ag_jw_end(w);
    ag_jw_int(w, "exact_content_cross_split", 0);
    ag_jw_int(w, "lineage_cross_split", 0);
    ag_jw_int(w, "source_coordinate_cross_split", 0);
    ag_jw_string(w, "status", "passed");
    ag_jw_end(w);
}

static void write_source(ag_json_writer *w, const ag_split_manifest_head *h)
{
    ag_jw_object(w, "source");
    ag_jw_string(w, "dataset_version", h->dataset_version);
    ag_jw_string(w, "path", h->source_path);
    ag_jw_int(w, "record_count", h->n_rows);
    ag_jw_string(w, "repository", h->repository);
    ag_jw_string(w, "revision", h->revision);
    ag_jw_string(w, "sha256", h->source_sha256.hex);
    ag_jw_end(w);
}

static void write_policy(ag_json_writer *w, const ag_split_policy *p)
{
    ag_jw_object(w, "split_policy");
    ag_jw_string(w, "algorithm_version", AG_SPLIT_ALGORITHM);
    ag_jw_string(w, "salt", p->salt);
    ag_jw_int(w, "seed", p->seed);
    ag_jw_object(w, "weights");
    ag_jw_int(w, "held_out", p->weight[AG_SPLIT_HELD_OUT]);
    ag_jw_int(w, "train", p->weight[AG_SPLIT_TRAIN]);
    ag_jw_int(w, "validation", p->weight[AG_SPLIT_VALIDATION]);
    ag_jw_end(w);
    ag_jw_end(w);
}

void ag_split_manifest_write_begin(ag_str *out, const ag_split_manifest_head *h)
{
    ag_json_writer w = {.out = out, .indent = -1};
    ag_jw_object(&w, NULL);
    write_identity(&w, &h->identity);
    ag_jw_array(&w, "exclusions");
    ag_jw_end(&w);
    write_audit(&w);
    ag_jw_array(&w, "limitations");
    ag_jw_string(&w, NULL, limitation);
    ag_jw_end(&w);
    ag_jw_string(&w, "schema_version", AG_SPLIT_SCHEMA);
    write_source(&w, h);
    write_policy(&w, &h->policy);
    ag_str_add(out, ",\"splits\":{");
}

void ag_split_manifest_write_end(ag_str *out)
{
    ag_str text = {0};
    ag_json_writer w = {.out = &text, .indent = -1};
    ag_jw_object(&w, NULL);
    ag_jw_string(&w, "artifact_schema_version", AG_SPLIT_TOKENS_SCHEMA);
    ag_jw_string(&w, "invariant", AG_SPLIT_TOKENS_INVARIANT);
    ag_jw_array(&w, "required_keys");
    for (int i = 0; i < AG_SPLIT_N_TOKENS_KEYS; i++) ag_jw_string(&w, NULL, ag_split_tokens_keys[i]);
    ag_jw_end(&w);
    ag_jw_string(&w, "storage", AG_SPLIT_TOKENS_STORAGE);
    ag_jw_end(&w);
    ag_str_printf(out, "},\"token_statistics\":%s}\n", text.text);
    ag_str_free(&text);
}

const char *const ag_split_tokens_keys[AG_SPLIT_N_TOKENS_KEYS] = {"model_id",           "model_revision",   "tokenizer_id",
                                                                  "tokenizer_revision", "tokenizer_sha256", "serializer_id",
                                                                  "serializer_version", "serializer_sha256"};

void ag_split_member_write(ag_str *out, const ag_split_member *m, const char *source_path)
{
    ag_str coordinate = {0};
    ag_str_printf(&coordinate, "%s:%u", source_path, m->line_number);
    ag_json_writer w = {.out = out, .indent = -1};
    ag_jw_object(&w, NULL);
    ag_jw_string_n(&w, "canonical_id", m->canonical_id.text, m->canonical_id.n);
    ag_jw_string(&w, "content_sha256", m->content.hex);
    ag_jw_string_n(&w, "group_id", m->group_id.n ? m->group_id.text : NULL, m->group_id.n);
    ag_jw_string_n(&w, "lineage_id", m->lineage_id.text, m->lineage_id.n);
    ag_jw_string(&w, "materialized_line_sha256", m->materialized_line.hex);
    ag_jw_string(&w, "raw_line_sha256", m->raw_line.hex);
    ag_jw_string(&w, "source_coordinate", coordinate.text);
    ag_jw_end(&w);
    ag_str_free(&coordinate);
}

/* ---- the report for people --------------------------------------------------------------------------------------- */
void ag_split_report_write(ag_str *out, const ag_split_manifest_head *h, const int64_t n_of[AG_N_SPLITS])
{
    const int64_t sum = n_of[0] + n_of[1] + n_of[2];
    ag_str_printf(out, "# Frozen split: %s\n\n", h->dataset_version);
    ag_str_printf(out, "- Source: %s at `%s`\n- Dataset version: %s\n- Source file: `%s`\n- Source SHA-256: `%s`\n",
                  h->repository, h->revision, h->dataset_version, h->source_path, h->source_sha256.hex);
    ag_str_printf(out, "- Coverage: %lld/%lld records\n- Algorithm: `%s`\n- Seed: %lld, salt: `%s`\n\n", (long long)sum,
                  (long long)h->n_rows, AG_SPLIT_ALGORITHM, (long long)h->policy.seed, h->policy.salt);
    ag_str_add(out, "| split | weight | records | share |\n| --- | --- | --- | --- |\n");
    for (int s = 0; s < AG_N_SPLITS; s++)
        ag_str_printf(out, "| %s | %lld | %lld | %.2f %% |\n", ag_split_name_text(s), (long long)h->policy.weight[s],
                      (long long)n_of[s], 100.0 * (double)n_of[s] / (double)sum);
    ag_str_add(out, "\n## Guarantees\n\n");
    for (size_t i = 0; i < sizeof guarantees / sizeof *guarantees; i++) ag_str_printf(out, "- %s\n", guarantees[i]);
    ag_str_printf(out, "\n## Exclusions\n\n- none\n\n## Limitations\n\n- %s\n", limitation);
}
