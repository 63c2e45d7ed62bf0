#include "adapter/targets.h"

#include "base/log.h"
#include "base/str.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

/* A pattern from a file must not keep the program busy: steps of the matcher for one path. */
enum { MATCH_LIMIT = 200000, DEPTH_LIMIT = 2000, HEAP_LIMIT_KB = 4096 };
/* "model.layers.<19 digits>.post_attention_layernorm" */
enum { PATH_MAX_BYTES = 96 };

/* ---- the model's modules --------------------------------------------------------------------------------------------- */
/* What a layer holds beside its projections, and what the model holds beside its layers: names that a target may hit. */
static const char *const other_in_layer[] = {"", ".self_attn", ".mlp", ".mlp.act_fn", ".input_layernorm",
                                             ".post_attention_layernorm"};
static const char *const other_in_model[] = {"model", "model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb",
                                             "lm_head"};
enum {
    N_OTHER_IN_LAYER = sizeof other_in_layer / sizeof *other_in_layer,
    N_OTHER_IN_MODEL = sizeof other_in_model / sizeof *other_in_model,
    N_PER_LAYER = AG_N_PROJ + N_OTHER_IN_LAYER
};

static int64_t n_modules(const ag_description *d) { return N_OTHER_IN_MODEL + d->L * N_PER_LAYER; }

/* The path of module i; *place is its index in ag_target_set.on, or -1 where it cannot be trained. */
static void module_path(char path[PATH_MAX_BYTES], int64_t *place, int64_t i)
{
    *place = -1;
    if (i < N_OTHER_IN_MODEL) {
        snprintf(path, PATH_MAX_BYTES, "%s", other_in_model[i]);
        return;
    }
    const int64_t layer = (i - N_OTHER_IN_MODEL) / N_PER_LAYER, k = (i - N_OTHER_IN_MODEL) % N_PER_LAYER;
    if (k < AG_N_PROJ) {
        *place = layer * AG_N_PROJ + k;
        snprintf(path, PATH_MAX_BYTES, "model.layers.%lld.%s", (long long)layer, ag_projection_path((ag_projection)k));
    } else {
        snprintf(path, PATH_MAX_BYTES, "model.layers.%lld%s", (long long)layer, other_in_layer[k - AG_N_PROJ]);
    }
}

/* ---- regular expressions --------------------------------------------------------------------------------------------- */
typedef struct {
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
} regex;

static void regex_free(regex *re)
{
    pcre2_match_data_free(re->data);
    pcre2_match_context_free(re->context);
    pcre2_code_free(re->code);
    *re = (regex){0};
}

static ag_status regex_compile(regex *re, const char *pattern, bool whole, ag_err *err)
{
    *re = (regex){0};
    const size_t n = strlen(pattern);
    if (n > AG_TARGETS_MAX_PATTERN)
        return ag_fail(err, AG_E_CONFIG, "the pattern in target_modules has %zu bytes, at most %d are allowed", n,
                       AG_TARGETS_MAX_PATTERN);
    int code = 0;
    PCRE2_SIZE at = 0;
    re->code = pcre2_compile((PCRE2_SPTR)pattern, n, whole ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0, &code, &at, NULL);
    if (!re->code) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        return ag_fail(err, AG_E_CONFIG, "target_modules '%s' is no regular expression: %s (at byte %zu)", pattern,
                       (const char *)why, (size_t)at);
    }
    re->data = pcre2_match_data_create_from_pattern(re->code, NULL);
    re->context = pcre2_match_context_create(NULL);
    if (!re->data || !re->context) ag_out_of_memory(sizeof *re);
    pcre2_set_match_limit(re->context, MATCH_LIMIT);
    pcre2_set_depth_limit(re->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(re->context, HEAP_LIMIT_KB);
    return AG_OK;
}

static ag_status regex_matches(bool *yes, const regex *re, const char *pattern, const char *path, ag_err *err)
{
    const int n = pcre2_match(re->code, (PCRE2_SPTR)path, strlen(path), 0, 0, re->data, re->context);
    *yes = n >= 0;
    if (n >= 0 || n == PCRE2_ERROR_NOMATCH) return AG_OK;
    return ag_fail(err, AG_E_CONFIG, "the pattern '%s' in target_modules takes too long to match '%s'; write a simpler one", pattern,
                   path);
}

/* ---- selecting --------------------------------------------------------------------------------------------------------- */
bool ag_targets_name_selects(const char *name, const char *path)
{
    const size_t n_name = strlen(name), n_path = strlen(path);
    if (n_name == 0 || n_name > n_path || strcmp(path + n_path - n_name, name) != 0) return false;
    return n_name == n_path || path[n_path - n_name - 1] == '.';
}

static bool is_one_of(int64_t layer, const int64_t *layers, size_t n_layers)
{
    for (size_t i = 0; i < n_layers; i++)
        if (layers[i] == layer) return true;
    return n_layers == 0;
}

static ag_target_set set_empty(const ag_description *d, ag_arena *arena)
{
    return (ag_target_set){.L = d->L, .on = ag_arena_array(arena, (size_t)d->L * AG_N_PROJ, sizeof(bool))};
}

static ag_status set_add(ag_target_set *set, int64_t place, const char *path, const char *what, ag_err *err)
{
    if (place < 0)
        return ag_fail(err, AG_E_CONFIG,
                       "target_modules '%s' selects '%s'; only q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj can be "
                       "trained", what, path);
    set->n += !set->on[place];
    set->on[place] = true;
    return AG_OK;
}

static ag_status selects_nothing(const char *what, ag_err *err)
{
    return ag_fail(err, AG_E_CONFIG,
                   "target_modules '%s' selects no module of the model; a name is a whole path (model.layers.0.self_attn.q_proj) or "
                   "its end behind a dot (q_proj)", what);
}

ag_status ag_targets_of_names(ag_target_set *out, const char *const *names, size_t n_names, const int64_t *layers, size_t n_layers,
                              const ag_description *d, ag_arena *arena, ag_err *err)
{
    ag_target_set set = set_empty(d, arena);
    if (n_names == 0) return ag_fail(err, AG_E_CONFIG, "target_modules is empty; name the modules that have adapters, such as q_proj");
    for (size_t k = 0; k < n_names; k++) {
        bool found = false;
        for (int64_t i = 0; i < n_modules(d); i++) {
            char path[PATH_MAX_BYTES];
            int64_t place;
            module_path(path, &place, i);
            if (!ag_targets_name_selects(names[k], path)) continue;
            const bool is_whole = strcmp(names[k], path) == 0;
            if (place >= 0 && !is_whole && !is_one_of(place / AG_N_PROJ, layers, n_layers)) continue;
            AG_TRY(set_add(&set, place, path, names[k], err));
            found = true;
        }
        if (!found) return selects_nothing(names[k], err);
    }
    *out = set;
    return AG_OK;
}

static ag_status match_all(ag_target_set *set, const regex *re, const char *pattern, const ag_description *d, ag_err *err)
{
    for (int64_t i = 0; i < n_modules(d); i++) {
        char path[PATH_MAX_BYTES];
        int64_t place;
        bool yes;
        module_path(path, &place, i);
        AG_TRY(regex_matches(&yes, re, pattern, path, err));
        if (yes) AG_TRY(set_add(set, place, path, pattern, err));
    }
    return set->n > 0 ? AG_OK : selects_nothing(pattern, err);
}

ag_status ag_targets_of_pattern(ag_target_set *out, const char *pattern, const ag_description *d, ag_arena *arena, ag_err *err)
{
    ag_target_set set = set_empty(d, arena);
    if (strcmp(pattern, "all-linear") == 0) {
        set.n = d->L * AG_N_PROJ;
        memset(set.on, true, (size_t)set.n);
    } else {
        regex re;
        AG_TRY(regex_compile(&re, pattern, true, err));
        const ag_status status = match_all(&set, &re, pattern, d, err);
        regex_free(&re);
        if (status) return status;
    }
    *out = set;
    return AG_OK;
}

/* ---- what a training config asks for ----------------------------------------------------------------------------------- */
static bool is_common(const char *name)
{
    for (int p = 0; p < AG_N_PROJ; p++)
        if (strcmp(name, ag_projection_name((ag_projection)p)) == 0) return true;
    return false;
}

/* As a part of some path, or as a regular expression in one. A target that is no regular expression is a literal only. */
static ag_status occurs(bool *yes, const char *target, const ag_description *d, ag_err *err)
{
    *yes = false;
    regex re;
    ag_err no_regex;
    const bool has_regex = regex_compile(&re, target, false, &no_regex) == AG_OK;
    ag_status status = AG_OK;
    for (int64_t i = 0; i < n_modules(d) && !*yes && !status; i++) {
        char path[PATH_MAX_BYTES];
        int64_t place;
        module_path(path, &place, i);
        *yes = strstr(path, target) != NULL;
        if (!*yes && has_regex) status = regex_matches(yes, &re, target, path, err);
    }
    regex_free(&re);
    return status;
}

ag_status ag_targets_choose(const char *const **names, size_t *n_names, ag_targets_mode mode, const char *const *asked, size_t n_asked,
                            const ag_description *d, ag_arena *arena, ag_err *err)
{
    const char **kept = ag_arena_array(arena, n_asked + AG_N_PROJ, sizeof *kept);
    size_t n = 0;
    if (mode == AG_TARGETS_AUTO_COMMON && n_asked == 0)
        for (int p = 0; p < AG_N_PROJ; p++) kept[n++] = ag_projection_name((ag_projection)p);
    else if (n_asked == 0)
        return ag_fail(err, AG_E_CONFIG, "target_modules is empty; name the modules to train (q_proj, v_proj …), or set "
                       "target_modules_mode to auto_common");
    for (size_t i = 0; i < n_asked; i++) {
        bool there = is_common(asked[i]);
        if (mode != AG_TARGETS_AUTO_COMMON) AG_TRY(occurs(&there, asked[i], d, err));
        if (there) {
            kept[n++] = ag_arena_strdup(arena, asked[i]);
        } else if (mode == AG_TARGETS_EXPLICIT) {
            return ag_fail(err, AG_E_CONFIG, "target module '%s' is not in the model; the projections of a layer are q_proj, k_proj, "
                           "v_proj, o_proj, gate_proj, up_proj and down_proj", asked[i]);
        } else {
            ag_log(AG_LOG_WARN, "target module '%s' is not in the model and is left out", asked[i]);
        }
    }
    if (n == 0)
        return ag_fail(err, AG_E_CONFIG, "none of the target modules is in the model; the projections of a layer are q_proj, k_proj, "
                       "v_proj, o_proj, gate_proj, up_proj and down_proj");
    ag_str list = {0};
    for (size_t i = 0; i < n; i++) ag_str_printf(&list, "%s%s", i ? ", " : "", kept[i]);
    ag_log(AG_LOG_INFO, "target modules: %s", list.text);
    ag_str_free(&list);
    *names = kept;
    *n_names = n;
    return AG_OK;
}

bool ag_targets_pattern_is_plain(const char *pattern)
{
    static const char metacharacters[] = "\\.^$*+?{}[]|()";
    const size_t n = strlen(pattern);
    if (n == 0 || !ag_utf8_valid(pattern, n) || ag_utf8_count(pattern, n) > AG_TARGETS_MAX_PATTERN) return false;
    bool after_wildcard = false;
    for (size_t i = pattern[0] == '^'; i < n; i++) {
        if (pattern[i] == '$' && i + 1 == n) return true;
        if (pattern[i] == '.' && pattern[i + 1] == '*') {
            if (after_wildcard) return false;
            after_wildcard = true;
            i++;
            continue;
        }
        after_wildcard = false;
        if (pattern[i] == '\\' && i + 1 < n && strchr(metacharacters, pattern[i + 1]))
            i++;
        else if (strchr(metacharacters, pattern[i]))
            return false;
    }
    return true;
}
