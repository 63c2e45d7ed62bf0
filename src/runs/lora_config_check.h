/* adapter_config.json as a readiness report sees it: usable by PEFT's rules, and whether agoge can follow it. For
 * adapter_check.c. */
#ifndef AG_LORA_CONFIG_CHECK_H
#define AG_LORA_CONFIG_CHECK_H

#include "adapter/peft_io.h"

typedef struct {
    const char *base_model, *revision; /* as far as they can be read, whatever the load returns */
    ag_status follows;                 /* AG_OK: config is filled in; else why */
    ag_peft_config config;
    ag_err why;
} ag_lora_facts;

/* `dir` is read, `shown` stands in sentences. A symbolic link in the file's place is refused. */
AG_MUST_USE ag_status ag_lora_facts_load(ag_lora_facts *out, const char *dir, const char *shown, ag_arena *arena, ag_err *err);

#endif
