#include "ops/profile.h"

#include "base/clock.h"

const char *ag_profile_op_name(ag_profile_op op)
{
    static const char *const names[] = {
#define X(op_, name) name,
        AG_PROFILE_OPS(X)
#undef X
    };
    return names[op];
}

void ag_profile_scope_begin(ag_profile_scope *scope, ag_profile *profile, ag_profile_op op, double flop, double bytes)
{
    profile->depth++;
    *scope = (ag_profile_scope){.profile = profile, .op = op, .flop = flop, .bytes = bytes, .start_ns = ag_clock_ns()};
}

void ag_profile_scope_end(ag_profile_scope *scope)
{
    ag_profile *p = scope->profile;
    if (!p) return;
    const uint64_t ns = ag_clock_ns() - scope->start_ns;
    p->depth--;
    if (p->depth == 0) {
        ag_profile_total *t = &p->total[scope->op];
        t->n++;
        t->ns += ns;
        t->flop += scope->flop;
        t->bytes += scope->bytes;
    }
    if (p->n_events == p->room) {
        p->n_dropped++;
        return;
    }
    p->events[p->n_events++] = (ag_profile_event){.start_ns = scope->start_ns, .ns = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX,
                                                  .op = (uint16_t)scope->op, .depth = (uint16_t)p->depth,
                                                  .flop = (float)scope->flop, .bytes = (float)scope->bytes};
}
