#include "base/canonical_json.h"
#include "seal/bundle_checks.h"

#include "seal/portable_path.h"
#include "seal/split_reader.h"
#include "seal/strict.h"

#include <math.h>
#include <string.h>

#define CONTRACT_VERSION "agoge.evaluation-contract.v2"
#define FIELDS(table) table, sizeof table / sizeof *table
enum { CONTRACT_MAX_BYTES = 128 << 20 };

/* ---- schema ---------------------------------------------------------------------------------------------------------- */
static const ag_strict_field root_fields[] = {
    {"schema_version", AG_STRICT_TEXT, 0},           {"split_manifest_path", AG_STRICT_TEXT, 0},
    {"split_manifest_sha256", AG_STRICT_DIGEST, 0},  {"held_out_split_sha256", AG_STRICT_DIGEST, 0},
    {"logical_task_ids", AG_STRICT_TEXTS, 0},        {"logical_task_set_sha256", AG_STRICT_DIGEST, 0},
    {"base", AG_STRICT_OBJECT, 0},                   {"sft", AG_STRICT_OBJECT, 0},
};
static const ag_strict_field arm_fields[] = {
    {"role", AG_STRICT_TEXT, 0},
    {"model_repository", AG_STRICT_TEXT, 0},      {"model_revision", AG_STRICT_REVISION, 0},
    {"artifact", AG_STRICT_OBJECT, AG_STRICT_NULLABLE | AG_STRICT_OPTIONAL},
    {"tokenizer_repository", AG_STRICT_TEXT, 0},  {"tokenizer_revision", AG_STRICT_TEXT, 0}, {"tokenizer_sha256", AG_STRICT_DIGEST, 0},
    {"serializer_id", AG_STRICT_TEXT, 0},         {"serializer_version", AG_STRICT_TEXT, 0}, {"serializer_sha256", AG_STRICT_DIGEST, 0},
    {"logical_task_set_sha256", AG_STRICT_DIGEST, 0}, {"context_window", AG_STRICT_POSITIVE, 0}, {"truncation_policy", AG_STRICT_TEXT, 0},
    {"decoding", AG_STRICT_OBJECT, 0},            {"scoring_version", AG_STRICT_TEXT, 0},
};
static const ag_strict_field decoding_fields[] = {
    {"do_sample", AG_STRICT_BOOL, 0}, {"seed", AG_STRICT_INTEGER, 0}, {"max_new_tokens", AG_STRICT_POSITIVE, 0},
    {"temperature", AG_STRICT_NUMBER, 0}, {"top_p", AG_STRICT_NUMBER, 0}};
static const ag_strict_field artifact_fields[] = {
    {"kind", AG_STRICT_TEXT, 0}, {"artifact_index_path", AG_STRICT_TEXT, 0}, {"artifact_index_sha256", AG_STRICT_DIGEST, 0}};
static const char *const truncation_policies[] = {"reject", "mark_unsupported", "left", "right"};

static ag_status check_decoding(const json_t *decoding, const char *where, ag_err *err)
{
    if (ag_strict_object(decoding, "decoding", FIELDS(decoding_fields), err)) return ag_err_prefix(err, "%s", where);
    const double temperature = json_number_value(json_object_get(decoding, "temperature")),
                 top_p = json_number_value(json_object_get(decoding, "top_p"));
    if (!isfinite(temperature) || temperature < 0) return ag_fail(err, AG_E_FORMAT, "%s: decoding.temperature must be at least 0", where);
    if (!(top_p > 0 && top_p <= 1)) return ag_fail(err, AG_E_FORMAT, "%s: decoding.top_p must be over 0 and at most 1", where);
    return AG_OK;
}

static ag_status check_arm(const json_t *arm, const char *where, const char *role, ag_err *err)
{
    AG_TRY(ag_strict_object(arm, where, FIELDS(arm_fields), err));
    if (strcmp(ag_strict_text(arm, "role"), role) != 0) return ag_fail(err, AG_E_FORMAT, "%s: role must be %s", where, role);
    const char *policy = ag_strict_text(arm, "truncation_policy");
    size_t i = 0;
    while (i < 4 && strcmp(policy, truncation_policies[i]) != 0) i++;
    if (i == 4) return ag_fail(err, AG_E_FORMAT, "%s: the truncation_policy '%.60s' is not known", where, policy);
    return check_decoding(json_object_get(arm, "decoding"), where, err);
}

/* Both arms must have been asked the same thing: all but role and artifact is equal. */
static ag_status check_arms_equal(const json_t *base, const json_t *sft, ag_err *err)
{
    char drifting[512] = "";
    for (size_t i = 0; i < sizeof arm_fields / sizeof *arm_fields; i++) {
        const char *key = arm_fields[i].key;
        if (strcmp(key, "role") == 0 || strcmp(key, "artifact") == 0) continue;
        if (json_equal(json_object_get(base, key), json_object_get(sft, key))) continue;
        const size_t n = strlen(drifting);
        if (n + strlen(key) + 3 < sizeof drifting) strcat(strcat(drifting, n ? ", " : ""), key);
    }
    return *drifting ? ag_fail(err, AG_E_FORMAT, "base and sft differ in %s", drifting) : AG_OK;
}

static ag_status check_schema(const json_t *root, ag_err *err)
{
    const json_t *base = json_object_get(root, "base"), *sft = json_object_get(root, "sft");
    AG_TRY(ag_strict_object(root, "the contract", FIELDS(root_fields), err));
    AG_TRY(check_arm(base, "base", "causal_base", err));
    AG_TRY(check_arm(sft, "sft", "causal_sft", err));
    if (json_is_object(json_object_get(base, "artifact"))) return ag_fail(err, AG_E_FORMAT, "base: 'artifact' must be null");
    AG_TRY(ag_strict_object(json_object_get(sft, "artifact"), "sft.artifact", FIELDS(artifact_fields), err));
    const char *kind = ag_strict_text(json_object_get(sft, "artifact"), "kind");
    if (strcmp(kind, "peft_adapter") != 0 && strcmp(kind, "merged_model") != 0)
        return ag_fail(err, AG_E_FORMAT, "sft.artifact: the kind '%.60s' is not known", kind);
    return check_arms_equal(base, sft, err);
}

/* False where an arm is not there at all. */
static bool check_arms_present(ag_bundle *b, const json_t *root, const char *path)
{
    static const char *const arms[] = {"base", "sft"};
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        const json_t *arm = json_object_get(root, arms[i]);
        if (arm && !json_is_null(arm) && !(json_is_object(arm) && json_object_size(arm) == 0)) continue;
        ag_bundle_report_add(b->report, AG_BUNDLE_MISSING_ARM, path,
                             "the arm '%s' is absent, null or empty; run held-out-eval, which writes both", arms[i]);
        ok = false;
    }
    const json_t *sft = json_object_get(root, "sft"), *artifact = json_object_get(sft, "artifact");
    if (ok && json_is_object(sft) && (!artifact || json_is_null(artifact))) {
        ag_bundle_report_add(b->report, AG_BUNDLE_MISSING_ARM, path,
                             "the arm 'sft' names no artifact; run held-out-eval on the adapter or the merged model");
        ok = false;
    }
    return ok;
}

/* ---- the split it speaks of ------------------------------------------------------------------------------------------ */
static void check_tasks(ag_bundle *b, const json_t *root, const char *path)
{
    const json_t *ids = json_object_get(root, "logical_task_ids");
    const ag_split_member_record *members = b->split.reader->list[AG_SPLIT_HELD_OUT_LIST].members;
    const size_t n = json_array_size(ids), n_members = b->split.reader->list[AG_SPLIT_HELD_OUT_LIST].n;
    size_t same = 0;
    for (; same < n && same < n_members; same++) {
        const ag_member_key id = ag_member_key_of(json_string_value(json_array_get(ids, same))),
                            *member = &members[same].key[AG_MEMBER_CANONICAL_ID];
        if (id.high != member->high || id.low != member->low) break;
    }
    if (n == 0 || same < n || n != n_members)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path,
                             "logical_task_ids are not the held-out members in their order (%zu ids, %zu members, the first %zu agree); "
                             "evaluate on the bundled split",
                             n, n_members, same);
    const ag_sha256 digest = ag_json_canonical_digest(ids);
    const json_t *arms[] = {root, json_object_get(root, "base"), json_object_get(root, "sft")};
    for (int i = 0; i < 3; i++)
        if (strcmp(ag_strict_text(arms[i], "logical_task_set_sha256"), digest.hex) != 0) {
            ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path,
                                 "logical_task_set_sha256 is not the digest of logical_task_ids (%s); evaluate again", digest.hex);
            return;
        }
}

static void check_split(ag_bundle *b, const json_t *root, const char *path, const char *dir)
{
    const char *written = ag_strict_text(root, "split_manifest_path"), *named = ag_portable_path_resolve(&b->arena, dir, written);
    if (!named)
        ag_bundle_report_add(b->report, AG_BUNDLE_PATH_ESCAPING, path,
                             "split_manifest_path '%.200s' leaves the bundle; write a relative path with '/'", written);
    else if (strcmp(named, b->inventory.parts.split_manifest) != 0)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path,
                             "split_manifest_path is '%.200s', not the bundle's split manifest; evaluate on the bundled split", written);
    const ag_inventory_file *manifest = ag_bundle_inventory_find(&b->inventory, b->inventory.parts.split_manifest);
    if (strcmp(ag_strict_text(root, "split_manifest_sha256"), manifest->sha256) != 0)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path,
                             "split_manifest_sha256 is not the bundled manifest's; evaluate on the bundled split");
    if (!b->split.is_read) return;
    if (strcmp(ag_strict_text(root, "held_out_split_sha256"), b->split.held_out_sha256) != 0)
        ag_bundle_report_add(b->report, AG_BUNDLE_SPLIT_IDENTITY, path,
                             "held_out_split_sha256 is not the bundled held-out split's; evaluate on the bundled split");
    check_tasks(b, root, path);
}

/* ---- the artifact it speaks of --------------------------------------------------------------------------------------- */
static void check_artifact(ag_bundle *b, const json_t *root, const char *path, const char *dir)
{
    const json_t *sft = json_object_get(root, "sft"), *artifact = json_object_get(sft, "artifact");
    const char *kind = ag_strict_text(artifact, "kind"), *written = ag_strict_text(artifact, "artifact_index_path");
    const char *named = ag_portable_path_resolve(&b->arena, dir, written);
    const bool is_adapter = strcmp(kind, "peft_adapter") == 0;
    const ag_bundle_artifact *of_kind = is_adapter ? &b->adapter : &b->merged;
    const char *index_path = is_adapter ? b->inventory.parts.adapter_index : b->inventory.parts.merged_index;
    if (!named) {
        ag_bundle_report_add(b->report, AG_BUNDLE_PATH_ESCAPING, path,
                             "sft.artifact.artifact_index_path '%.200s' leaves the bundle; write a relative path with '/'", written);
        return;
    }
    if (!index_path || strcmp(named, index_path) != 0) {
        ag_bundle_report_add(
            b->report, AG_BUNDLE_ARTIFACT_INDEX, path,
            "sft.artifact is a %s with the index '%.200s', the bundle's index of that kind is %s; bundle the artifact that was evaluated",
            kind, written, index_path ? index_path : "not there");
        return;
    }
    if (strcmp(ag_strict_text(artifact, "artifact_index_sha256"), ag_bundle_inventory_find(&b->inventory, index_path)->sha256) != 0)
        ag_bundle_report_add(b->report, AG_BUNDLE_MODIFIED_FILE, index_path,
                             "is not the index that the contract pins; bundle the artifact that was evaluated");
    if (!of_kind->is_read || !of_kind->index.has_provenance) return;
    if (strcmp(ag_strict_text(sft, "model_repository"), of_kind->index.provenance.base_model_name_or_path) != 0)
        ag_bundle_report_add(b->report, AG_BUNDLE_ARTIFACT_INDEX, path,
                             "model_repository is '%.200s', the artifact was made on another base; evaluate with its own",
                             ag_strict_text(sft, "model_repository"));
    if (strcmp(ag_strict_text(sft, "model_revision"), of_kind->index.provenance.revision) != 0)
        ag_bundle_report_add(b->report, AG_BUNDLE_ARTIFACT_INDEX, path,
                             "model_revision is '%.80s', the artifact was made on another revision; evaluate with its own",
                             ag_strict_text(sft, "model_revision"));
}

void ag_bundle_check_contract(ag_bundle *b)
{
    const char *path = b->inventory.parts.contract;
    ag_err err;
    json_t *root = ag_bundle_load_json(b, path, CONTRACT_MAX_BYTES);
    if (!root) return;
    const char *version = ag_strict_text(root, "schema_version");
    if (strcmp(version, CONTRACT_VERSION) != 0)
        ag_bundle_report_add(
            b->report, AG_BUNDLE_UNKNOWN_VERSION, path,
            "schema_version is '%.200s', this program knows '%s'; evaluate again, or verify with a version of agoge that knows it",
            version, CONTRACT_VERSION);
    else if (check_arms_present(b, root, path)) {
        if (check_schema(root, &err)) {
            ag_bundle_report_add(b->report, AG_BUNDLE_INVALID_JSON, path, "%s; evaluate again", err.text);
        } else {
            const char *dir = ag_portable_path_dir(&b->arena, path);
            check_split(b, root, path, dir);
            check_artifact(b, root, path, dir);
            ag_bundle_check_evaluation(b, root);
        }
    }
    ag_json_free(&root);
}
