#include "adapter/modules.h"

#include <stdio.h>
#include <string.h>

static const char *const in_front[] = {"model", "model.embed_tokens", "model.layers"};
static const char *const behind[] = {"model.norm", "model.rotary_emb", "lm_head"};
enum { N_IN_FRONT = 3, N_BEHIND = 3, MAX_IN_LAYER = 32 };

typedef struct {
    const char *path; /* inside the layer, "": the layer itself */
    ag_module_kind kind;
    const ag_linear_module *linear;
    ag_norm norm;
} row;

typedef struct {
    row rows[MAX_IN_LAYER];
    int64_t n;
} layer;

static void add(layer *to, row r)
{
    AG_ASSERT(to->n < MAX_IN_LAYER);
    to->rows[to->n++] = r;
}

static bool has_norm(const ag_description *d, const ag_family *f, ag_norm norm) { return f->norms[norm] && ag_norm_width(d, norm) > 0; }

static void add_norm(layer *to, const ag_description *d, const ag_family *f, ag_norm norm)
{
    if (has_norm(d, f, norm)) add(to, (row){f->norms[norm], AG_MODULE_NORM, NULL, norm});
}

static bool is_norm(const ag_description *d, const ag_family *f, const char *path)
{
    for (int n = 0; n < AG_N_NORMS; n++)
        if (has_norm(d, f, (ag_norm)n) && strcmp(f->norms[n], path) == 0) return true;
    return false;
}

/* Containers may stand anywhere, for nothing depends on their place. Norms of heads are attention's last children, the others come behind
 * the linear layers. */
static layer layer_of(const ag_description *d)
{
    const ag_family *f = ag_family_of(d);
    layer l = {.n = 0};
    for (const char *const *other = f->other_modules; *other; other++)
        if (!is_norm(d, f, *other)) add(&l, (row){*other, AG_MODULE_OTHER, NULL, 0});
    for (int i = 0; i < f->n_modules; i++) {
        add(&l, (row){f->modules[i].path, AG_MODULE_LINEAR, &f->modules[i], 0});
        const bool is_attention = strncmp(f->modules[i].path, "self_attn.", 10) == 0;
        if (!is_attention || (i + 1 < f->n_modules && strncmp(f->modules[i + 1].path, "self_attn.", 10) == 0)) continue;
        add_norm(&l, d, f, AG_NORM_Q);
        add_norm(&l, d, f, AG_NORM_K);
    }
    for (int n = AG_NORM_ATTN; n <= AG_NORM_FFN_POST; n++) add_norm(&l, d, f, (ag_norm)n);
    return l;
}

int64_t ag_modules_count(const ag_description *d) { return N_IN_FRONT + d->L * layer_of(d).n + N_BEHIND; }

ag_module ag_modules_get(const ag_description *d, int64_t i)
{
    const layer l = layer_of(d);
    const int64_t in_layers = i - N_IN_FRONT, n_in_layers = d->L * l.n;
    ag_module m = {.kind = AG_MODULE_OTHER, .layer = -1};
    if (in_layers < 0) {
        if (i == 1) m.kind = AG_MODULE_EMBED;
        snprintf(m.path, sizeof m.path, "%s", in_front[i]);
    } else if (in_layers >= n_in_layers) {
        const int64_t at = in_layers - n_in_layers;
        m.kind = at == 0 ? AG_MODULE_FINAL_NORM : at == N_BEHIND - 1 ? AG_MODULE_HEAD : AG_MODULE_OTHER;
        snprintf(m.path, sizeof m.path, "%s", behind[at]);
    } else {
        const row *r = &l.rows[in_layers % l.n];
        m = (ag_module){.kind = r->kind, .layer = in_layers / l.n, .linear = r->linear, .norm = r->norm};
        snprintf(m.path, sizeof m.path, "model.layers.%lld%s%s", (long long)m.layer, *r->path ? "." : "", r->path);
    }
    return m;
}

void ag_module_size(int64_t *N, int64_t *K, const ag_module *m, const ag_description *d)
{
    *N = *K = 0;
    switch (m->kind) {
    case AG_MODULE_LINEAR: ag_linear_module_size(N, K, d, m->linear); break;
    case AG_MODULE_EMBED:
    case AG_MODULE_HEAD: *N = d->V, *K = d->C; break;
    case AG_MODULE_NORM: *N = ag_norm_width(d, m->norm); break;
    case AG_MODULE_FINAL_NORM: *N = d->C; break;
    case AG_MODULE_OTHER: break;
    }
}
