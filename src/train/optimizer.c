#include "train/optimizer.h"

#include "ops/adamw/adamw.h"
#include "ops/adamw/adamw8.h"

/* PEFT's default for the pair of an embedding under LoRA+ (loraplus_lr_embedding). */
static const double LORAPLUS_EMBEDDING_LR = 1e-6;
enum { PLUS_A, PLUS_EMBEDDING, PLUS_B, PLUS_B_WITHOUT_DECAY, N_PLUS, DECAYING = 0, WITHOUT_DECAY, N_PLAIN };

/* ---- groups --------------------------------------------------------------------------------------------------------------- */
int ag_optimizer_group_of(const ag_trained *t, bool loraplus)
{
    if (!loraplus) return t->decays ? DECAYING : WITHOUT_DECAY;
    const bool is_pair = t->kind == AG_TRAINED_A || t->kind == AG_TRAINED_B;
    if (is_pair && t->module.kind == AG_MODULE_EMBED) return PLUS_EMBEDDING;
    if (t->kind == AG_TRAINED_BIAS || t->kind == AG_TRAINED_BASE_BIAS || t->kind == AG_TRAINED_COPY_BIAS) return PLUS_B_WITHOUT_DECAY;
    return t->kind == AG_TRAINED_B || t->rank == 1 ? PLUS_B : PLUS_A;
}

static void plan_groups(ag_optimizer *o, const ag_train_config *c)
{
    const double lr = c->learning_rate, decay = c->weight_decay, ratio = c->loraplus_lr_ratio;
    if (ratio == 0) {
        o->n_groups = N_PLAIN;
        o->groups[DECAYING] = (ag_optimizer_group){.lr = lr, .weight_decay = decay};
        o->groups[WITHOUT_DECAY] = (ag_optimizer_group){.lr = lr};
        o->lr_scale[DECAYING] = o->lr_scale[WITHOUT_DECAY] = 1;
        return;
    }
    o->n_groups = N_PLUS;
    o->groups[PLUS_A] = (ag_optimizer_group){.lr = lr, .weight_decay = decay};
    o->groups[PLUS_EMBEDDING] = (ag_optimizer_group){.lr = LORAPLUS_EMBEDDING_LR, .weight_decay = decay};
    o->groups[PLUS_B] = (ag_optimizer_group){.lr = lr * ratio, .weight_decay = decay};
    o->groups[PLUS_B_WITHOUT_DECAY] = (ag_optimizer_group){.lr = lr * ratio};
    o->lr_scale[PLUS_A] = 1;
    o->lr_scale[PLUS_EMBEDDING] = lr > 0 ? LORAPLUS_EMBEDDING_LR / lr : 0;
    o->lr_scale[PLUS_B] = o->lr_scale[PLUS_B_WITHOUT_DECAY] = ratio;
}

void ag_optimizer_plan(ag_optimizer *out, const ag_adapter *adapter, const ag_train_config *c, ag_arena *arena)
{
    *out = (ag_optimizer){.adapter = adapter, .kind = c->optim, .beta1 = c->adam_beta1, .beta2 = c->adam_beta2, .eps = c->adam_epsilon};
    plan_groups(out, c);
    out->moments = ag_arena_array(arena, adapter->n_trained, sizeof *out->moments);
    out->is_8bit = ag_arena_array(arena, adapter->n_trained, sizeof *out->is_8bit);
    for (size_t i = 0; i < adapter->n_trained; i++) {
        const ag_trained *t = &adapter->trained[i];
        out->moments[i].group = ag_optimizer_group_of(t, c->loraplus_lr_ratio != 0);
        /* The Trainer asks for 32 bits for the weights of embeddings. */
        const bool is_table = t->kind == AG_TRAINED_COPY && t->module.kind == AG_MODULE_EMBED;
        out->is_8bit[i] = c->optim == AG_OPTIM_ADAMW_8BIT && t->n >= AG_ADAMW8_MIN_SIZE && !is_table;
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------- */
/* In f32 the moments of all tensors are two arrays like the parameters, so that neighbours can be updated at once. */
static void place_f32(ag_optimizer *o, ag_layout *layout)
{
    float *m = ag_layout_place(layout, o->adapter->n_params * sizeof *m), *v = ag_layout_place(layout, o->adapter->n_params * sizeof *v);
    for (size_t i = 0; m && i < o->adapter->n_trained; i++) {
        o->moments[i].m = m + o->adapter->trained[i].at;
        o->moments[i].v = v + o->adapter->trained[i].at;
    }
}

void ag_optimizer_place(ag_optimizer *o, ag_layout *layout)
{
    if (o->kind == AG_OPTIM_ADAMW_TORCH) {
        place_f32(o, layout);
        return;
    }
    for (size_t i = 0; i < o->adapter->n_trained; i++) {
        ag_moments *to = &o->moments[i];
        const size_t n = o->adapter->trained[i].n, scales = (size_t)ag_adamw8_blocks((int64_t)n) * sizeof(float);
        if (o->is_8bit[i]) {
            to->m8 = ag_layout_place(layout, n);
            to->v8 = ag_layout_place(layout, n);
            to->absmax_m = ag_layout_place(layout, scales);
            to->absmax_v = ag_layout_place(layout, scales);
        } else {
            to->m = ag_layout_place(layout, n * sizeof(float));
            to->v = ag_layout_place(layout, n * sizeof(float));
        }
    }
}

/* ---- update ----------------------------------------------------------------------------------------------------------------- */
/* How many tensors from i on can be updated at once: f32 moments that follow each other as the parameters do, of one group. */
static size_t run_of(const ag_optimizer *o, size_t i)
{
    size_t end = i + 1;
    if (o->kind != AG_OPTIM_ADAMW_TORCH) return end;
    while (end < o->adapter->n_trained && o->moments[end].group == o->moments[i].group) end++;
    return end;
}

ag_status ag_optimizer_update(const ag_optimizer *o, const ag_backend *be, float *params, float *grads, double grad_scale, double lr,
                              int64_t update, ag_err *err)
{
    for (size_t i = 0, end; i < o->adapter->n_trained; i = end) {
        end = run_of(o, i);
        const ag_trained *first = &o->adapter->trained[i], *last = &o->adapter->trained[end - 1];
        const ag_moments *at = &o->moments[i];
        const int64_t n = (int64_t)(last->at + last->n - first->at);
        const ag_tensor p = ag_vec_f32(params + first->at, n), g = ag_vec_f32(grads + first->at, n);
        const double rate = lr * o->lr_scale[at->group], decay = o->groups[at->group].weight_decay;
        if (at->m8)
            AG_TRY(ag_adamw8(be, &(ag_adamw8_args){.p = p, .g = g, .m = at->m8, .v = at->v8, .absmax_m = at->absmax_m, .absmax_v = at->absmax_v,
                                                   .lr = rate, .beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps, .weight_decay = decay,
                                                   .grad_scale = grad_scale, .step = update}, err));
        else
            AG_TRY(ag_adamw(be, &(ag_adamw_args){.p = p, .g = g, .m = ag_vec_f32(at->m, n), .v = ag_vec_f32(at->v, n), .lr = rate,
                                                 .beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps, .weight_decay = decay,
                                                 .grad_scale = grad_scale, .step = update}, err));
    }
    return AG_OK;
}

/* ---- for files ---------------------------------------------------------------------------------------------------------------- */
static ag_optimizer_param view_of(const ag_optimizer *o, size_t i, ag_arena *arena)
{
    const ag_trained *t = &o->adapter->trained[i];
    const ag_moments *at = &o->moments[i];
    char *name = ag_arena_alloc(arena, AG_ADAPTER_NAME_MAX);
    ag_adapter_trained_name(name, t);
    return (ag_optimizer_param){.name = name, .rank = t->rank, .dim = {t->dim[0], t->dim[1]}, .group = at->group, .exp_avg = at->m,
                                .exp_avg_sq = at->v, .codes = at->m8, .codes_sq = at->v8, .absmax = at->absmax_m, .absmax_sq = at->absmax_v};
}

ag_optimizer_state ag_optimizer_view(const ag_optimizer *o, double lr, int64_t n_updates, ag_arena *arena)
{
    const size_t n = o->adapter->n_trained;
    ag_optimizer_state s = {.params = ag_arena_array(arena, n, sizeof *s.params), .n_updates = n_updates, .lr = lr,
                            .initial_lr = o->groups[0].lr, .beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps,
                            .weight_decay = o->groups[0].weight_decay, .n_groups = o->n_groups, .is_bnb = o->kind == AG_OPTIM_ADAMW_8BIT};
    for (int g = 0; g < o->n_groups; g++) {
        s.groups[g] = (ag_optimizer_group){.lr = lr * o->lr_scale[g], .initial_lr = o->groups[g].lr, .weight_decay = o->groups[g].weight_decay};
        for (size_t i = 0; i < n; i++)
            if (o->moments[i].group == g) s.params[s.n_params++] = view_of(o, i, arena);
    }
    return s;
}
