/* A training config read back from a run's record: the `config` of a manifest, or a bundle's config/locked.json. */
#ifndef AG_CONFIG_RECORD_H
#define AG_CONFIG_RECORD_H

#include "train/train_config.h"

/* What the steps depend on is taken over; what belongs to the run that was (telemetry, logging_dir, evaluation while training, where it
 * resumed from) has its default. The file system is not looked at: the caller sets dataset_file and model_path. AG_E_UNSUPPORTED names a
 * key that this version does not know; a value that is none is AG_E_CONFIG. `name` stands in sentences. */
AG_MUST_USE ag_status ag_train_config_from_record(ag_train_config **out, const json_t *record, const char *name, ag_err *err);

#endif
