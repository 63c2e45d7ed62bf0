/* A config read back from a record: what is accepted is written as a record that reads as the same config. */
#include "train/config_record.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ag_train_config *read_record(const char *bytes, size_t n)
{
    ag_err err;
    json_t *root;
    ag_train_config *config = NULL;
    if (ag_json_parse(&root, bytes, n, "fuzz", &err)) return NULL;
    if (ag_train_config_from_record(&config, root, "fuzz", &err)) config = NULL;
    ag_json_free(&root);
    return config;
}

static void write_record(ag_str *out, const ag_train_config *config)
{
    ag_json_writer w = {.out = out, .indent = -1};
    ag_train_config_write(config, &w, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_str first = {0}, second = {0};
    ag_train_config *config = read_record((const char *)data, size);
    if (!config) return 0;
    write_record(&first, config);
    ag_train_config *again = read_record(first.text, first.n);
    if (!again) abort();
    write_record(&second, again);
    if (strcmp(first.text, second.text) != 0) abort();
    ag_train_config_free(&config);
    ag_train_config_free(&again);
    ag_str_free(&first);
    ag_str_free(&second);
    return 0;
}
