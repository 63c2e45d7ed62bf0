/* adapter_config.json: any bytes give a config or a sentence; a config that is accepted can be laid out on a model. */
#include "adapter/peft_io.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const ag_description tiny = {.L = 2, .C = 48, .H = 4, .G = 2, .D = 12, .F = 56, .V = 64};
    ag_err err;
    ag_arena arena = {0};
    ag_peft_config config;
    ag_adapter adapter;
    if (ag_peft_config_parse(&config, (const char *)bytes, n, "fuzz", &arena, &err) == AG_OK &&
        ag_adapter_plan(&adapter, &tiny, &config.lora, &arena, &err) == AG_OK)
        AG_ASSERT(adapter.n_params > 0);
    ag_arena_free(&arena);
    return 0;
}
