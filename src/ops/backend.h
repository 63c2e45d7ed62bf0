/* A backend is a table: slots per op, and what it runs on. Dispatch is data, so it can be printed, forced (`--cpu avx2`) and
 * tested level by level.
 *
 * Each op's folder declares its slots (ag_<op>_slots) and fills them for a level (ag_<op>_use): first the reference, then
 * upward whatever the level has. On a CPU the op's public wrapper checks shapes once, deals work to threads and calls the
 * slot, so a kernel knows nothing of threads, and bits never depend on how many there are. An empty slot means "cannot":
 * `agoge check` shows it and a plan refuses it before training starts. */
#ifndef AG_BACKEND_H
#define AG_BACKEND_H

#include "base/status.h"
#include "ops/adamw/adamw_slots.h"
#include "ops/attention/attention_slots.h"
#include "ops/cpu_level.h"
#include "ops/embed/embed_slots.h"
#include "ops/head_ce/head_ce_slots.h"
#include "ops/linear/linear_slots.h"
#include "ops/lora/lora_slots.h"
#include "ops/rmsnorm/rmsnorm_slots.h"
#include "ops/rope/rope_slots.h"
#include "ops/swiglu/swiglu_slots.h"

#include <stddef.h>

#define AG_OPS(X) \
    X(adamw)      \
    X(attention)  \
    X(embed)      \
    X(head_ce)    \
    X(linear)     \
    X(lora)       \
    X(rmsnorm)    \
    X(rope)       \
    X(swiglu)

typedef struct ag_backend {
    ag_cpu_level level;
    int n_threads;
    /* Working memory that ops share one after the other; what an op puts there is gone when it returns. The owner sizes it
     * with the largest ag_<op>_scratch_bytes of what it will call. 64-byte aligned. */
    struct {
        void *data;
        size_t bytes;
    } scratch;
    struct ag_profile *profile; /* what calls cost goes there (ops/profile.h); NULL: nobody asks */
#define X(op) ag_##op##_slots op;
    AG_OPS(X)
#undef X
} ag_backend;

/* Fills the table with the reference, then overwrites upward to `level`. Threads: 1..256.
 * AG_E_UNSUPPORTED where this machine does not grant `level`; the sentence lists the levels it has. */
AG_MUST_USE ag_status ag_backend_init_cpu(ag_backend *be, ag_cpu_level level, int n_threads, ag_err *err);

#endif
