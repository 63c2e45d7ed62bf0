#include "runs/adapter_parts.h"

#include "adapter/targets.h"
#include "base/str.h"

#include <string.h>

/* What has a name in the model but can carry no adapter; a pattern that takes it in selects something that PEFT refuses. */
static const char *const bare_in_layer[] = {"", ".self_attn", ".mlp", ".mlp.act_fn", ".input_layernorm", ".post_attention_layernorm"};
static const char *const bare_in_model[] = {"", "model", "model.layers", "model.norm", "model.rotary_emb"};
enum { N_BARE_IN_LAYER = sizeof bare_in_layer / sizeof *bare_in_layer, N_BARE_IN_MODEL = sizeof bare_in_model / sizeof *bare_in_model };

/* ---- plain patterns ---------------------------------------------------------------------------------------------------------- */
/* A pattern that ag_targets_pattern_is_plain admits, against a whole text: literals and ".*". The last wildcard alone may have to give
 * ground, so that the time is bounded by the product of the lengths. */
static bool matches(const char *pattern, const char *text)
{
    const char *p = pattern[0] == '^' ? pattern + 1 : pattern, *after_star = NULL, *star_text = NULL;
    for (;;) {
        const bool at_end = *p == 0 || (*p == '$' && p[1] == 0);
        if (!at_end && p[0] == '.' && p[1] == '*') {
            after_star = p += 2;
            star_text = text;
            continue;
        }
        if (at_end && !*text) return true;
        const char *literal = *p == '\\' ? p + 1 : p;
        if (!at_end && *text && *literal == *text) {
            p = literal + 1;
            text++;
            continue;
        }
        if (!after_star || !*star_text) return false;
        p = after_star;
        text = ++star_text;
    }
}

static bool name_selects(const char *name, const char *path)
{
    const size_t n_name = strlen(name), n_path = strlen(path);
    if (n_name == 0 || n_name > n_path || strcmp(path + n_path - n_name, name) != 0) return false;
    return n_name == n_path || path[n_path - n_name - 1] == '.';
}

static bool is_named(const char *const *names, size_t n, const char *module)
{
    for (size_t i = 0; i < n; i++)
        if (name_selects(names[i], module)) return true;
    return false;
}

static bool is_excluded(const ag_lora_facts *f, const char *module)
{
    return f->excluded_pattern ? matches(f->excluded_pattern, module) : is_named(f->excluded, f->n_excluded, module);
}

/* layers_to_transform binds names that are the end of a path; a whole path selects anyway. */
static bool is_in_layers(const ag_lora_facts *f, int64_t layer)
{
    for (size_t i = 0; i < f->n_layers; i++)
        if (f->layers[i] == layer) return true;
    return f->n_layers == 0;
}

static bool is_selected(const ag_lora_facts *f, const char *module, int64_t layer, bool *used)
{
    if (is_excluded(f, module)) return false;
    if (f->pattern) return matches(f->pattern, module);
    bool yes = false;
    for (size_t i = 0; i < f->n_targets; i++) {
        if (!name_selects(f->targets[i], module)) continue;
        if (strcmp(f->targets[i], module) != 0 && !is_in_layers(f, layer)) continue;
        used[i] = yes = true;
    }
    return yes;
}

/* ---- the modules --------------------------------------------------------------------------------------------------------------- */
typedef struct {
    const ag_lora_facts *facts;
    ag_base_module *modules;
    size_t n;
    bool *used; /* by target */
    ag_arena *arena;
} selection;

static void consider(selection *s, ag_base_module module)
{
    if (is_selected(s->facts, module.name, module.layer, s->used)) s->modules[s->n++] = module;
}

static ag_status refuse_bare(selection *s, const char *name, int64_t layer, ag_err *err)
{
    if (!is_selected(s->facts, name, layer, s->used)) return AG_OK;
    return ag_fail(err, AG_E_CONFIG, "target_modules selects '%s', which can carry no adapter", *name ? name : "the model itself");
}

static void consider_layer(selection *s, int64_t layer, const ag_description *d)
{
    for (int p = 0; p < AG_N_PROJ; p++) {
        ag_base_module m = {.layer = layer};
        ag_projection_size(&m.out, &m.in, d, (ag_projection)p);
        m.name = ag_arena_printf(s->arena, "model.layers.%lld.%s", (long long)layer, ag_projection_path((ag_projection)p));
        consider(s, m);
    }
}

static ag_status check_targets(const ag_lora_facts *f, ag_err *err)
{
    if (!f->pattern && f->n_targets == 0) return ag_fail(err, AG_E_CONFIG, "target_modules names no module");
    const char *patterns[] = {f->pattern, f->excluded_pattern};
    for (int i = 0; i < 2; i++)
        if (patterns[i] && !ag_targets_pattern_is_plain(patterns[i]))
            return ag_fail(err, AG_E_CONFIG, "the pattern '%.60s' is more than literals and '.*'; such patterns are not vouched for, list the "
                           "modules' names instead", patterns[i]);
    return AG_OK;
}

ag_status ag_base_modules_select(ag_base_module **out, size_t *n, const ag_lora_facts *facts, const ag_description *d, ag_arena *arena,
                                 ag_err *err)
{
    AG_TRY(check_targets(facts, err));
    ag_lora_facts all_linear = *facts; /* PEFT's word for every linear layer but the head */
    const char *projections[AG_N_PROJ];
    if (facts->pattern && strcmp(facts->pattern, "all-linear") == 0) {
        for (int p = 0; p < AG_N_PROJ; p++) projections[p] = ag_projection_name((ag_projection)p);
        all_linear.pattern = NULL;
        all_linear.targets = projections;
        all_linear.n_targets = AG_N_PROJ;
        facts = &all_linear;
    }
    selection s = {.facts = facts, .arena = arena};
    s.modules = ag_arena_array(arena, (size_t)d->L * AG_N_PROJ + 2, sizeof *s.modules);
    s.used = ag_arena_array(arena, facts->n_targets + 1, sizeof *s.used);
    for (int i = 0; i < N_BARE_IN_MODEL; i++) AG_TRY(refuse_bare(&s, bare_in_model[i], -1, err));
    consider(&s, (ag_base_module){.name = "model.embed_tokens", .in = d->V, .out = d->C, .layer = -1, .is_embedding = true, .is_edge = true});
    for (int64_t l = 0; l < d->L; l++) {
        for (int i = 0; i < N_BARE_IN_LAYER; i++)
            AG_TRY(refuse_bare(&s, ag_arena_printf(arena, "model.layers.%lld%s", (long long)l, bare_in_layer[i]), l, err));
        consider_layer(&s, l, d);
    }
    consider(&s, (ag_base_module){.name = "lm_head", .in = d->C, .out = d->V, .layer = -1, .is_edge = true});
    for (size_t i = 0; i < facts->n_targets; i++)
        if (!s.used[i]) return ag_fail(err, AG_E_CONFIG, "target_modules names '%.60s', which is not in the base model", facts->targets[i]);
    if (s.n == 0) return ag_fail(err, AG_E_CONFIG, "target_modules selects nothing in the base model");
    *out = s.modules;
    *n = s.n;
    return AG_OK;
}

int64_t ag_lora_rank_of(const ag_lora_facts *facts, const char *module)
{
    for (size_t i = 0; i < facts->n_ranks; i++)
        if (name_selects(facts->ranks[i].name, module)) return facts->ranks[i].r;
    return facts->r;
}
