/* The policy file of a mixture, read and checked. Private to data/. */
#ifndef AG_MIXTURE_POLICY_H
#define AG_MIXTURE_POLICY_H

#include "base/arena.h"
#include "base/json.h"
#include "data/split_row.h"

enum { AG_MIXTURE_MAX_SOURCES = 64 };

typedef struct {
    const char *id, *provenance_class;
    int64_t weight, quota;
    const char *split_manifest, *token_statistics, *token_ledger; /* paths, relative ones joined to the policy's folder */
} ag_mixture_source;

typedef struct {
    int64_t seed, budget;
    const char *salt, *arm;
    ag_mixture_source source[AG_MIXTURE_MAX_SOURCES]; /* by id */
    int n_sources;
    struct {
        ag_split_key *key;
        size_t n;
    } reserved[4]; /* canonical, lineage, group, content, as ag_split_key_kind counts them */
} ag_mixture_policy;

/* Texts go to the arena. AG_E_CONFIG says which key of which source is wrong; quotas are worked out. */
AG_MUST_USE ag_status ag_mixture_policy_load(ag_mixture_policy *out, const char *path, ag_arena *arena, ag_err *err);

#endif
