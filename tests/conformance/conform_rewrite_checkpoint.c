/* Reads the side files of a checkpoint and writes them anew: conform_rewrite_checkpoint FROM TO STEP. tools/conformance/trainer_resume.py
 * then lets torch and the Trainer judge what was written. */
#include "base/fs.h"
#include "format/torch_archive.h"
#include "train/trainer_state.h"

#include <stdio.h>
#include <stdlib.h>

static float *zeros(ag_arena *arena, const ag_optimizer_param *p)
{
    size_t n = 1;
    for (int i = 0; i < p->rank; i++) n *= (size_t)p->dim[i];
    return ag_arena_array(arena, n, sizeof(float));
}

/* The parameters as the file itself has them: shapes of exp_avg in the order of the groups. */
static ag_status make_params(ag_optimizer_state *s, const char *from, ag_arena *arena, ag_err *err)
{
    ag_torch_archive a;
    AG_TRY(ag_torch_open(&a, ag_path_join(arena, from, "optimizer.pt"), 0, err));
    const ag_torch_value *state = ag_torch_get(a.root, "state");
    s->n_params = ag_torch_is(state, AG_TORCH_DICT) ? state->n : 0;
    s->params = ag_arena_array(arena, s->n_params, sizeof *s->params);
    ag_status status = AG_OK;
    for (size_t i = 0; i < s->n_params && !status; i++) {
        const ag_torch_value *avg = ag_torch_get(state->items[2 * i + 1], "exp_avg");
        if (!ag_torch_is(avg, AG_TORCH_TENSOR) || avg->tensor->rank > AG_OPTIMIZER_MAX_RANK) {
            status = ag_fail(err, AG_E_UNSUPPORTED, "%s: no state of AdamW", from);
            continue;
        }
        const ag_torch_view *v = avg->tensor;
        ag_optimizer_param *p = &s->params[i];
        p->name = ag_arena_printf(arena, "parameter %zu", i);
        p->rank = v->rank;
        for (int k = 0; k < v->rank; k++) p->dim[k] = v->dim[k];
        p->exp_avg = zeros(arena, p);
        p->exp_avg_sq = zeros(arena, p);
    }
    ag_torch_close(&a);
    return status;
}

static ag_status rewrite(const char *from, const char *to, int64_t step, ag_arena *arena, ag_err *err)
{
    ag_trainer_state state;
    ag_optimizer_state optimizer = {0};
    ag_scheduler_state scheduler = {0};
    ag_trainer_rng rng;
    AG_TRY(ag_trainer_state_load(&state, from, arena, err));
    AG_TRY(make_params(&optimizer, from, arena, err));
    AG_TRY(ag_optimizer_load(&optimizer, from, step, err));
    AG_TRY(ag_scheduler_load(&scheduler, from, step, err));
    AG_TRY(ag_trainer_rng_load(&rng, from, err));
    AG_TRY(ag_trainer_state_save(&state, to, err));
    AG_TRY(ag_optimizer_save(&optimizer, to, err));
    AG_TRY(ag_scheduler_save(&scheduler, to, err));
    return ag_trainer_rng_save(&rng, to, err);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: conform_rewrite_checkpoint FROM TO STEP\n");
        return 2;
    }
    ag_arena arena = {0};
    ag_err err;
    ag_status status = rewrite(argv[1], argv[2], atoll(argv[3]), &arena, &err);
    if (status) fprintf(stderr, "%s\n", err.text);
    ag_arena_free(&arena);
    return status ? 1 : 0;
}
