/* What ops cost: time, bytes and floating-point operations of each call, while somebody wants to know.
 *
 * A backend's `profile` is NULL, or points to one of these. Each op's public face opens with one line,
 *
 *     AG_PROFILE(be, AG_PROFILE_LINEAR_FWD, flop, bytes);
 *
 * which costs one test of a pointer when nothing is profiled: the two expressions are not evaluated then. Ops are called by one thread
 * at a time, and so is this. Nothing is allocated: calls beyond the room for events are counted, but leave no event.
 *
 * flop and bytes are those of the operation as it is defined, not of an implementation: operands read once, results written once,
 * weights at their stored size; 2 flop for a multiply-add. So time can be held against what the machine could do. An op that calls
 * others (grad) is counted once, under its own name; the inner calls appear in the events, one level deeper. */
#ifndef AG_PROFILE_H
#define AG_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AG_PROFILE_OPS(X)                                  \
    X(AG_PROFILE_EMBED,          "embed")                  \
    X(AG_PROFILE_EMBED_LORA_FWD, "embed_lora.forward")     \
    X(AG_PROFILE_EMBED_LORA_BWD, "embed_lora.backward")    \
    X(AG_PROFILE_EMBED_NOISE,    "embed_noise")            \
    X(AG_PROFILE_RMSNORM_FWD,    "rmsnorm.forward")        \
    X(AG_PROFILE_RMSNORM_BWD,    "rmsnorm.backward")       \
    X(AG_PROFILE_LINEAR_FWD,     "linear.forward")         \
    X(AG_PROFILE_LINEAR_BWD,     "linear.backward")        \
    X(AG_PROFILE_LORA_FWD,       "lora.forward")           \
    X(AG_PROFILE_LORA_BWD,       "lora.backward")          \
    X(AG_PROFILE_DORA_GAIN,      "dora.gain")              \
    X(AG_PROFILE_DORA_FWD,       "dora.forward")           \
    X(AG_PROFILE_DORA_BWD,       "dora.backward")          \
    X(AG_PROFILE_ROPE,           "rope")                   \
    X(AG_PROFILE_ATTENTION_FWD,  "attention.forward")      \
    X(AG_PROFILE_ATTENTION_BWD,  "attention.backward")     \
    X(AG_PROFILE_SWIGLU_FWD,     "swiglu.forward")         \
    X(AG_PROFILE_SWIGLU_BWD,     "swiglu.backward")        \
    X(AG_PROFILE_HEAD_CE,        "head_ce")                \
    X(AG_PROFILE_GRAD_WEIGHT,    "grad.weight")            \
    X(AG_PROFILE_GRAD_BIAS,      "grad.bias")              \
    X(AG_PROFILE_GRAD_NORM,      "grad.norm")              \
    X(AG_PROFILE_GRAD_EMBED,     "grad.embed")             \
    X(AG_PROFILE_GRAD_HEAD,      "grad.head")              \
    X(AG_PROFILE_SUM_SQUARES,    "sum_squares")            \
    X(AG_PROFILE_ADAMW,          "adamw")

typedef enum {
#define X(op, name) op,
    AG_PROFILE_OPS(X)
#undef X
    AG_N_PROFILE_OPS
} ag_profile_op;
const char *ag_profile_op_name(ag_profile_op op);

typedef struct {
    uint64_t start_ns;
    uint32_t ns;          /* at most 4.29 s */
    uint16_t op, depth;   /* 0: called by the model, not by another op */
    float flop, bytes;
} ag_profile_event;

typedef struct {
    uint64_t n, ns;
    double flop, bytes;
} ag_profile_total;

typedef struct ag_profile {
    bool is_on;
    int depth;
    ag_profile_total total[AG_N_PROFILE_OPS]; /* of calls at depth 0 */
    ag_profile_event *events;                 /* the owner's memory */
    size_t n_events, room, n_dropped;
} ag_profile;

typedef struct {
    ag_profile *profile; /* NULL: nothing is counted */
    ag_profile_op op;
    uint64_t start_ns;
    double flop, bytes;
} ag_profile_scope;
void ag_profile_scope_begin(ag_profile_scope *scope, ag_profile *profile, ag_profile_op op, double flop, double bytes);
void ag_profile_scope_end(ag_profile_scope *scope);

#define AG_PROFILE(be, op, flop, bytes)                                                                  \
    ag_profile_scope profile_scope_ __attribute__((cleanup(ag_profile_scope_end))) = {.profile = NULL}; \
    if ((be)->profile && (be)->profile->is_on)                                                           \
        ag_profile_scope_begin(&profile_scope_, (be)->profile, op, flop, bytes)

#endif
