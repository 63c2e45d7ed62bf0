#include "eval/contract.h"

#include "base/canonical_json.h"
#include "eval/scoring.h"

#include <string.h>

const char *ag_artifact_kind_name(ag_artifact_kind kind)
{
    return kind == AG_ARTIFACT_MERGED_MODEL ? "merged_model" : "peft_adapter";
}

char *ag_path_relative(ag_arena *arena, const char *dir, const char *path)
{
    size_t common = 0; /* behind the last '/' up to which both agree */
    for (size_t i = 0;; i++) {
        const bool dir_ends = dir[i] == 0, path_ends = path[i] == 0;
        if ((dir[i] == '/' && path[i] == '/') || (dir_ends && path[i] == '/')) common = i + 1;
        if (dir_ends || path_ends || dir[i] != path[i]) break;
    }
    ag_str out = {0};
    if (strlen(dir) >= common)
        for (const char *part = dir + common; *part; part += strcspn(part, "/"), part += *part == '/') ag_str_add(&out, "../");
    ag_str_add(&out, path + common);
    char *text = ag_arena_strdup(arena, out.text ? out.text : "");
    ag_str_free(&out);
    return text;
}

static json_t *make_arm(const ag_contract_parts *p, bool is_sft, const char *task_set, ag_arena *arena)
{
    json_t *artifact = json_null();
    if (is_sft)
        artifact = json_pack("{s:s, s:s, s:s}", "kind", ag_artifact_kind_name(p->kind), "artifact_index_path",
                             ag_path_relative(arena, p->dir, p->artifact_index), "artifact_index_sha256",
                             p->artifact_index_sha256.hex);
    return json_pack("{s:s, s:s, s:s, s:o, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:s, s:{s:b, s:I, s:I, s:f, s:f}, s:s}",
                     "role", is_sft ? "causal_sft" : "causal_base", "model_repository", p->model_repository, "model_revision",
                     p->model_revision, "artifact", artifact, "tokenizer_repository", p->tokenizer_repository,
                     "tokenizer_revision", p->tokenizer_revision, "tokenizer_sha256", p->tokenizer_sha256.hex, "serializer_id",
                     AG_SERIALIZER_ID, "serializer_version", AG_SERIALIZER_VERSION, "serializer_sha256",
                     ag_serializer_digest().hex, "logical_task_set_sha256", task_set, "context_window",
                     (json_int_t)p->context_window, "truncation_policy", ag_truncation_policy_name(p->policy), "decoding",
                     "do_sample", 0, "seed", (json_int_t)p->seed, "max_new_tokens", (json_int_t)p->max_new_tokens,
                     "temperature", 0.0, "top_p", 1.0, "scoring_version", AG_SCORING_VERSION);
}

ag_status ag_contract_make(json_t **out, const ag_contract_parts *p, ag_err *err)
{
    ag_arena arena = {0};
    json_t *ids = json_array();
    for (size_t i = 0; i < p->tasks->n; i++) json_array_append_new(ids, json_string(p->tasks->task[i].id));
    const ag_sha256 task_set = ag_json_canonical_digest(ids);
    json_t *base = make_arm(p, false, task_set.hex, &arena),
           *sft = p->artifact_index ? make_arm(p, true, task_set.hex, &arena) : NULL;
    *out = base && (sft || !p->artifact_index)
               ? json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:o}", "schema_version", AG_CONTRACT_SCHEMA, "split_manifest_path",
                           ag_path_relative(&arena, p->dir, p->split_manifest), "split_manifest_sha256",
                           p->split->manifest_sha256.hex, "held_out_split_sha256", p->split->part[AG_SPLIT_HELD_OUT].sha256.hex,
                           "logical_task_ids", ids, "logical_task_set_sha256", task_set.hex, "base", base)
               : NULL;
    if (*out && sft) json_object_set_new(*out, "sft", sft);
    ag_arena_free(&arena);
    if (*out) return AG_OK;
    return ag_fail(err, AG_E_USAGE, "a name that the contract records is not UTF-8; rename the folder or give another name");
}

static void add_difference(ag_str *out, const char *arm, const char *key)
{
    ag_str_printf(out, "%s%s%s%s", out->n ? ", " : "", arm, *arm ? "." : "", key);
}

static void compare(ag_str *out, const char *arm, const json_t *a, const json_t *b)
{
    for (void *it = json_object_iter((json_t *)(uintptr_t)a); it; it = json_object_iter_next((json_t *)(uintptr_t)a, it)) {
        const char *key = json_object_iter_key(it);
        json_t *x = json_object_iter_value(it), *y = json_object_get(b, key);
        if (!*arm && (strcmp(key, "base") == 0 || strcmp(key, "sft") == 0))
            compare(out, key, x, y);
        else if (!y || !json_equal(x, y))
            add_difference(out, arm, key);
    }
}

void ag_contract_differences(ag_str *out, const json_t *a, const json_t *b) { compare(out, "", a, b); }
