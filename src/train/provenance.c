#include "train/provenance.h"

#include "base/fs.h"
#include "base/log.h"
#include "data/split.h"
#include "model/identity.h"

#include <string.h>

static ag_status name_revision(ag_train_config *c, int n_threads, ag_err *err)
{
    const bool is_local = strcmp(c->model_path, c->model_id) == 0;
    if (c->revision || !is_local) {
        if (ag_revision_is_immutable(c->revision)) return AG_OK;
        return ag_fail(err, AG_E_CONFIG,
                       "revision '%s' of %s may move; name the commit (40 to 64 lowercase hexadecimal digits)%s",
                       c->revision ? c->revision : "", c->model_id,
                       is_local ? ", or leave the key out: the folder's digest is taken" : "");
    }
    ag_sha256 digest;
    AG_TRY(ag_model_content_revision(&digest, c->model_id, n_threads, err));
    c->revision = ag_arena_strdup(&c->arena, digest.hex);
    ag_log(AG_LOG_INFO, "%s: is no hub model; its provenance is named by its content, %s", c->model_id, digest.hex);
    return AG_OK;
}

static ag_status take_split(ag_train_provenance *out, ag_train_config *c, const ag_split *split, ag_err *err)
{
    const char *train = split->part[AG_SPLIT_TRAIN].sha256.hex;
    ag_sha256 digest;
    AG_TRY(ag_sha256_file(&digest, c->dataset_file, err));
    if (strcmp(digest.hex, train) != 0)
        return ag_fail(err, AG_E_VERIFY,
                       "%s is not the train split of %s (its SHA-256 is %s, the split's %s); train on %s, or keep other "
                       "datasets out of that folder",
                       c->dataset_file, split->path, digest.hex, train, split->part[AG_SPLIT_TRAIN].path);
    out->is_sealed = true;
    out->provenance = (ag_provenance){.base_model_name_or_path = c->model_id,
                                      .revision = c->revision,
                                      .training_split_manifest_sha256 = ag_arena_strdup(&c->arena, split->manifest_sha256.hex),
                                      .training_split_name = "train",
                                      .training_split_sha256 = ag_arena_strdup(&c->arena, train)};
    return AG_OK;
}

static ag_status derive(ag_train_provenance *out, ag_train_config *c, const char *manifest, int n_threads, ag_err *err)
{
    ag_split *split;
    AG_TRY(name_revision(c, n_threads, err));
    AG_TRY(ag_split_open(&split, manifest, &(ag_split_check){.n_threads = n_threads}, err));
    ag_status status = take_split(out, c, split, err);
    ag_split_close(&split);
    return status;
}

ag_status ag_train_provenance_derive(ag_train_provenance *out, ag_train_config *config, int n_threads, ag_err *err)
{
    *out = (ag_train_provenance){0};
    const char *manifest = ag_split_manifest_find(config->dataset_file, &config->arena);
    if (!manifest) {
        ag_log(AG_LOG_INFO,
               "%s: is not a frozen train split (no " AG_SPLIT_MANIFEST_FILE
               " beside it or above); the run trains, and its index "
               "will carry no provenance. agoge freeze-split makes one",
               config->dataset_file);
        return AG_OK;
    }
    ag_status status = derive(out, config, manifest, n_threads, err);
    return status ? ag_err_prefix(err, "producer provenance cannot be constructed") : AG_OK;
}
