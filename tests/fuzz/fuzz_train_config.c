/* The config reader over any bytes: as a file, and its first line as a --set. */
#define _GNU_SOURCE
#include "train/train_config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_and_write(const char *bytes, size_t n, const char *const *sets, size_t n_sets)
{
    ag_train_config *config;
    ag_err err = {0};
    if (ag_train_config_parse(&config, bytes, n, "fuzz.yaml", sets, n_sets, &err)) {
        AG_ASSERT(!config && err.text[0]);
        return;
    }
    ag_str text = {0};
    ag_json_writer w = {.out = &text, .indent = 2};
    ag_train_config_write(config, &w, NULL);
    ag_train_config_write_overrides(config, &(ag_json_writer){.out = &text}, NULL);
    AG_ASSERT(config->run_dir && config->logging_dir);
    ag_str_free(&text);
    ag_train_config_free(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char needed[] = "model_id: m\ndataset_path: d\n";
    read_and_write((const char *)data, n, NULL, 0);
    char *set = strndup((const char *)data, n);
    set[strcspn(set, "\n")] = '\0';
    read_and_write(needed, strlen(needed), (const char *const[]){set}, 1);
    free(set);
    return 0;
}
