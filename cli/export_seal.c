#include "cli/export_seal.h"

#include "base/fs.h"
#include "eval/held_out.h"
#include "model/identity.h"

#include <string.h>

enum { CONTENT_DIGITS = 64 }; /* of a revision that is a digest of the base's files */

static ag_status check_content(const cli_export_source *s, const ag_provenance *p, ag_err *err)
{
    ag_sha256 content;
    AG_TRY(ag_model_content_revision(&content, s->base_path, s->n_threads, err));
    if (strcmp(content.hex, p->revision) == 0) return AG_OK;
    return ag_fail(
        err, AG_E_VERIFY,
        "%s: the provenance names the base %s with the content %.16s…, the files in %s have %.16s…; bring the base back that it was "
        "trained on, or say --allow-unsealed to merge with this one without provenance",
        s->adapter, p->base_model_name_or_path, p->revision, s->base_path, content.hex);
}

/* The base is the provenance's: by name and revision, or, where it lies here under whatever name, by the digest of its files. */
static ag_status check_base(const cli_export_source *s, const ag_provenance *p, ag_err *err)
{
    const bool same_name = strcmp(p->base_model_name_or_path, s->base) == 0;
    const bool same_revision = s->base_was_given || (s->revision && strcmp(p->revision, s->revision) == 0);
    const bool is_content = strlen(p->revision) == CONTENT_DIGITS && (ag_path_is_dir(s->base) || ag_path_is_file(s->base));
    if (is_content && same_revision) return check_content(s, p, err);
    if (same_name && same_revision) return AG_OK;
    return ag_fail(
        err, AG_E_VERIFY,
        "%s: the provenance names the base %s at %s, %s names %s at %s; take the base that it was trained on, or say --allow-unsealed "
        "to merge with this one without provenance",
        s->adapter, p->base_model_name_or_path, p->revision, s->base_was_given ? "--base-model" : "adapter_config.json", s->base,
        s->revision ? s->revision : "no revision");
}

static ag_status check_sealed(ag_provenance *out, const cli_export_source *s, ag_arena *arena, ag_err *err)
{
    ag_artifact_index index;
    AG_TRY(ag_artifact_index_verify(&index, s->adapter, s->n_threads, arena, err));
    *out = index.provenance;
    return check_base(s, out, err);
}

ag_status cli_export_check_seal(ag_provenance *out, bool *is_sealed, const cli_export_source *s, ag_arena *arena, ag_err *err)
{
    if (!s->allow_unsafe && ag_refuse_unsafe_weights(s->adapter, err))
        return ag_fail(
            err, AG_E_VERIFY,
            "%s holds pickled weights, which can hold code; remove them, or say --allow-unsafe-serialization (then they are read, "
            "without running any of it, where there are no safetensors)",
            s->adapter);
    AG_TRY(ag_artifact_index_provenance(out, is_sealed, s->adapter, arena, err));
    if (*is_sealed && s->allow_unsafe) return AG_OK;
    if (!*is_sealed) {
        if (s->allow_unsealed) return AG_OK;
        return ag_fail(err, AG_E_VERIFY, "%s/%s carries no producer_provenance, so nothing says what the adapter was trained on; train on "
                       "a frozen split, or say --allow-unsealed", s->adapter, AG_ARTIFACT_INDEX_FILE);
    }
    const ag_status status = check_sealed(out, s, arena, err);
    if (status != AG_E_VERIFY || !s->allow_unsealed) return status;
    *is_sealed = false; /* it is exported all the same, but nothing vouches for the result */
    return AG_OK;
}
