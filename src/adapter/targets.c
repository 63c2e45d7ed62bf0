#include "adapter/targets.h"

#include "base/log.h"
#include "base/str.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

/* A pattern from a file must not keep the program busy: steps of the matcher for one path. */
enum { MATCH_LIMIT = 200000, DEPTH_LIMIT = 2000, HEAP_LIMIT_KB = 4096 };

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

/* `what` is the key that holds the pattern. */
static ag_status regex_compile(regex *re, const char *pattern, bool whole, const char *what, ag_err *err)
{
    *re = (regex){0};
    const size_t n = strlen(pattern);
    if (n > AG_TARGETS_MAX_PATTERN)
        return ag_fail(err, AG_E_CONFIG, "the pattern in %s has %zu bytes, at most %d are allowed", what, n, AG_TARGETS_MAX_PATTERN);
    int code = 0;
    PCRE2_SIZE at = 0;
    re->code = pcre2_compile((PCRE2_SPTR)pattern, n, whole ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0, &code, &at, NULL);
    if (!re->code) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof why);
        return ag_fail(err, AG_E_CONFIG, "%s '%s' is no regular expression: %s (at byte %zu)", what, pattern, (const char *)why,
                       (size_t)at);
    }
    re->data = pcre2_match_data_create_from_pattern(re->code, NULL);
    re->context = pcre2_match_context_create(NULL);
    if (!re->data || !re->context) ag_out_of_memory(sizeof *re);
    pcre2_set_match_limit(re->context, MATCH_LIMIT);
    pcre2_set_depth_limit(re->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(re->context, HEAP_LIMIT_KB);
    return AG_OK;
}

/* The pattern between `head` and `tail`, for the whole path; compiled alone first, so that sentences show what the user wrote. */
static ag_status regex_compile_within(regex *re, const char *head, const char *pattern, const char *tail, const char *what, ag_err *err)
{
    AG_TRY(regex_compile(re, pattern, false, what, err));
    regex_free(re);
    ag_str text = {0};
    ag_str_printf(&text, "%s%s%s", head, pattern, tail);
    const ag_status status = regex_compile(re, text.text, true, what, err);
    ag_str_free(&text);
    return status;
}

static ag_status regex_matches(bool *yes, const regex *re, const char *pattern, const char *what, const char *path, ag_err *err)
{
    const int n = pcre2_match(re->code, (PCRE2_SPTR)path, strlen(path), 0, 0, re->data, re->context);
    *yes = n >= 0;
    if (n >= 0 || n == PCRE2_ERROR_NOMATCH) return AG_OK;
    return ag_fail(err, AG_E_CONFIG, "the pattern '%s' in %s takes too long to match '%s'; write a simpler one", pattern, what, path);
}

/* ---- selecting --------------------------------------------------------------------------------------------------------- */
static const char TARGETS[] = "target_modules";

bool ag_targets_name_selects(const char *name, const char *path)
{
    const size_t n_name = strlen(name), n_path = strlen(path);
    if (n_name == 0 || n_name > n_path || strcmp(path + n_path - n_name, name) != 0) return false;
    return n_name == n_path || path[n_path - n_name - 1] == '.';
}

static ag_status match_all(bool *hits, const char *head, const char *pattern, const char *tail, const char *what, const ag_description *d,
                           ag_err *err)
{
    regex re;
    ag_status status = head ? regex_compile_within(&re, head, pattern, tail, what, err) : regex_compile(&re, pattern, true, what, err);
    for (int64_t i = 0; !status && i < ag_modules_count(d); i++)
        status = regex_matches(&hits[i], &re, pattern, what, ag_modules_get(d, i).path, err);
    regex_free(&re);
    return status;
}

/* Modules that exclude_modules takes out. */
static ag_status find_excluded(bool *excluded, const ag_target_rules *r, const ag_description *d, ag_err *err)
{
    if (r->exclude_pattern) return match_all(excluded, NULL, r->exclude_pattern, NULL, "exclude_modules", d, err);
    for (int64_t i = 0; i < ag_modules_count(d); i++)
        for (size_t k = 0; k < r->n_exclude; k++) excluded[i] = excluded[i] || ag_targets_name_selects(r->exclude[k], ag_modules_get(d, i).path);
    return AG_OK;
}

/* Modules outside layers_to_transform. The index is the first number behind the list's name; a path without one is outside. */
static ag_status find_outside(bool *outside, const ag_target_rules *r, const ag_description *d, ag_arena *arena, ag_err *err)
{
    const int64_t n = ag_modules_count(d);
    bool *in_list = ag_arena_array(arena, (size_t)n, sizeof *in_list), *hits = ag_arena_array(arena, (size_t)n, sizeof *hits);
    if (r->n_layers == 0) return AG_OK;
    for (size_t k = 0; k < r->n_layers_patterns; k++) {
        AG_TRY(match_all(hits, "(?:|.*?\\.)(?:", r->layers_patterns[k], ")\\.[0-9]+\\..*", "layers_pattern", d, err));
        for (int64_t i = 0; i < n; i++) in_list[i] = in_list[i] || hits[i];
    }
    for (int64_t i = 0; i < n; i++) {
        const ag_module m = ag_modules_get(d, i);
        outside[i] = true;
        for (size_t k = 0; k < r->n_layers && m.layer >= 0 && (r->n_layers_patterns == 0 || in_list[i]); k++)
            if (r->layers[k] == m.layer) outside[i] = false;
    }
    return AG_OK;
}

static ag_status selects_nothing(const char *what, const char *name, ag_err *err)
{
    return ag_fail(err, AG_E_CONFIG,
                   "%s '%s' selects no module of the model; a name is a whole path (model.layers.0.self_attn.q_proj) or its end behind a "
                   "dot (q_proj)", what, name);
}

/* PEFT's rule for modules_to_save is the end of the path, wherever it begins: 'norm' takes every norm. */
static ag_status select_saved(ag_target_set *set, const ag_target_rules *r, const ag_description *d, ag_err *err)
{
    for (size_t k = 0; k < r->n_saved; k++) {
        const size_t n_name = strlen(r->saved[k]);
        bool found = false;
        for (int64_t i = 0; i < set->n_modules; i++) {
            const ag_module m = ag_modules_get(d, i);
            const size_t n_path = strlen(m.path);
            if (n_name == 0 || n_name > n_path || strcmp(m.path + n_path - n_name, r->saved[k]) != 0) continue;
            if (m.kind == AG_MODULE_OTHER)
                return ag_fail(err, AG_E_CONFIG, "modules_to_save '%s' selects '%s', which is no single layer with weights; name embed_tokens, "
                               "lm_head, norms or projections", r->saved[k], m.path);
            found = set->saved[i] = true;
        }
        if (!found) return selects_nothing("modules_to_save", r->saved[k], err);
    }
    return AG_OK;
}

/* A name among modules_to_save keeps pairs away from every path that has it as a part between dots. */
static bool is_kept_away(const char *path, const ag_target_rules *r)
{
    for (size_t k = 0; k < r->n_saved; k++) {
        const size_t n = strlen(r->saved[k]);
        for (const char *at = strstr(path, r->saved[k]); n > 0 && at; at = strstr(at + 1, r->saved[k]))
            if ((at == path || at[-1] == '.') && (at[n] == '\0' || at[n] == '.')) return true;
    }
    return false;
}

static ag_status add_pair(ag_target_set *set, int64_t i, const ag_module *m, const char *what, const ag_description *d, ag_err *err)
{
    char linear[200];
    ag_linear_modules_text(linear, sizeof linear, d);
    if (m->kind != AG_MODULE_LINEAR && m->kind != AG_MODULE_EMBED)
        return ag_fail(err, AG_E_CONFIG, "target_modules '%s' selects '%s'; only %s and embed_tokens can have an adapter (modules_to_save trains "
                       "others in full)", what, m->path, linear);
    set->n_lora += !set->lora[i];
    set->lora[i] = true;
    return AG_OK;
}

static ag_status select_names(ag_target_set *set, const ag_target_rules *r, const bool *left_out, const bool *outside,
                              const ag_description *d, ag_err *err)
{
    if (r->n_names == 0) return ag_fail(err, AG_E_CONFIG, "target_modules is empty; name the modules that have adapters, such as q_proj");
    for (size_t k = 0; k < r->n_names; k++) {
        bool found = false;
        for (int64_t i = 0; i < set->n_modules; i++) {
            const ag_module m = ag_modules_get(d, i);
            if (!ag_targets_name_selects(r->names[k], m.path)) continue;
            const bool is_whole = strcmp(r->names[k], m.path) == 0;
            if (outside[i] && !is_whole && m.kind != AG_MODULE_OTHER) continue;
            found = true;
            if (!left_out[i]) AG_TRY(add_pair(set, i, &m, r->names[k], d, err));
        }
        if (!found) return selects_nothing(TARGETS, r->names[k], err);
    }
    return AG_OK;
}

static ag_status select_pattern(ag_target_set *set, const ag_target_rules *r, const bool *left_out, const ag_description *d,
                                ag_arena *arena, ag_err *err)
{
    if (r->n_layers > 0)
        return ag_fail(err, AG_E_CONFIG, "layers_to_transform and a pattern in target_modules exclude each other; put the layers into the "
                       "pattern, or list the modules");
    const bool is_all = strcmp(r->pattern, "all-linear") == 0;
    bool *hits = ag_arena_array(arena, (size_t)set->n_modules, sizeof *hits), found = is_all;
    if (!is_all) AG_TRY(match_all(hits, NULL, r->pattern, NULL, TARGETS, d, err));
    for (int64_t i = 0; i < set->n_modules; i++) {
        const ag_module m = ag_modules_get(d, i);
        if (is_all ? m.kind != AG_MODULE_LINEAR : !hits[i]) continue;
        found = true;
        if (!left_out[i]) AG_TRY(add_pair(set, i, &m, r->pattern, d, err));
    }
    return found ? AG_OK : selects_nothing(TARGETS, r->pattern, err);
}

ag_status ag_targets_select(ag_target_set *out, const ag_target_rules *r, const ag_description *d, ag_arena *arena, ag_err *err)
{
    const size_t n = (size_t)ag_modules_count(d);
    ag_target_set set = {.n_modules = (int64_t)n, .lora = ag_arena_array(arena, n, sizeof(bool)), .saved = ag_arena_array(arena, n, sizeof(bool))};
    bool *left_out = ag_arena_array(arena, n, sizeof *left_out), *outside = ag_arena_array(arena, n, sizeof *outside);
    if (r->n_layers == 0 && r->n_layers_patterns > 0)
        return ag_fail(err, AG_E_CONFIG, "layers_pattern stands without layers_to_transform; give both or none");
    AG_TRY(select_saved(&set, r, d, err));
    AG_TRY(find_excluded(left_out, r, d, err));
    AG_TRY(find_outside(outside, r, d, arena, err));
    for (size_t i = 0; i < n; i++) left_out[i] = left_out[i] || set.saved[i] || is_kept_away(ag_modules_get(d, (int64_t)i).path, r);
    if (r->pattern)
        AG_TRY(select_pattern(&set, r, left_out, d, arena, err));
    else
        AG_TRY(select_names(&set, r, left_out, outside, d, err));
    if (set.n_lora == 0)
        return ag_fail(err, AG_E_CONFIG, "exclude_modules and modules_to_save leave no module of target_modules; an adapter needs one");
    *out = set;
    return AG_OK;
}

ag_status ag_targets_first_keys(int64_t **first, const char *const *keys, size_t n_keys, const char *what, const ag_description *d,
                                ag_arena *arena, ag_err *err)
{
    const size_t n = (size_t)ag_modules_count(d);
    bool *hits = ag_arena_array(arena, n, sizeof *hits);
    *first = ag_arena_array(arena, n, sizeof **first);
    for (size_t i = 0; i < n; i++) (*first)[i] = -1;
    for (size_t k = n_keys; k-- > 0;) {
        AG_TRY(match_all(hits, "(?:.*\\.)?(?:", keys[k], ")", what, d, err));
        for (size_t i = 0; i < n; i++)
            if (hits[i]) (*first)[i] = (int64_t)k;
    }
    return AG_OK;
}

/* ---- what a training config asks for ----------------------------------------------------------------------------------- */
/* The last parts of the linear modules' paths: the common seven, or what a family has fused of them. */
static bool is_common(const char *name, const ag_description *d)
{
    int n;
    const ag_linear_module *modules = ag_linear_modules_of(d, &n);
    for (int i = 0; i < n; i++)
        if (strcmp(name, ag_linear_leaf(&modules[i])) == 0) return true;
    return false;
}

/* As a part of some path, or as a regular expression in one. A target that is no regular expression is a literal only. */
static ag_status occurs(bool *yes, const char *target, const ag_description *d, ag_err *err)
{
    *yes = false;
    regex re;
    ag_err no_regex;
    const bool has_regex = regex_compile(&re, target, false, TARGETS, &no_regex) == AG_OK;
    ag_status status = AG_OK;
    for (int64_t i = 0; i < ag_modules_count(d) && !*yes && !status; i++) {
        const ag_module m = ag_modules_get(d, i);
        *yes = strstr(m.path, target) != NULL;
        if (!*yes && has_regex) status = regex_matches(yes, &re, target, TARGETS, m.path, err);
    }
    regex_free(&re);
    return status;
}

ag_status ag_targets_choose(const char *const **names, size_t *n_names, ag_targets_mode mode, const char *const *asked, size_t n_asked,
                            const ag_description *d, ag_arena *arena, ag_err *err)
{
    int n_modules;
    const ag_linear_module *modules = ag_linear_modules_of(d, &n_modules);
    const char **kept = ag_arena_array(arena, n_asked + (size_t)n_modules, sizeof *kept);
    char linear[200];
    size_t n = 0;
    ag_linear_modules_text(linear, sizeof linear, d);
    if (mode == AG_TARGETS_AUTO_COMMON && n_asked == 0)
        for (int i = 0; i < n_modules; i++) kept[n++] = ag_linear_leaf(&modules[i]);
    else if (n_asked == 0)
        return ag_fail(err, AG_E_CONFIG, "target_modules is empty; name the modules to train (q_proj, v_proj …), or set "
                       "target_modules_mode to auto_common");
    for (size_t i = 0; i < n_asked; i++) {
        bool there = is_common(asked[i], d);
        if (mode != AG_TARGETS_AUTO_COMMON) AG_TRY(occurs(&there, asked[i], d, err));
        if (there) {
            kept[n++] = ag_arena_strdup(arena, asked[i]);
        } else if (mode == AG_TARGETS_EXPLICIT) {
            return ag_fail(err, AG_E_CONFIG, "target module '%s' is not in the model; the projections of a layer are %s", asked[i],
                           linear);
        } else {
            ag_log(AG_LOG_WARN, "target module '%s' is not in the model and is left out", asked[i]);
        }
    }
    if (n == 0)
        return ag_fail(err, AG_E_CONFIG, "none of the target modules is in the model; the projections of a layer are %s", linear);
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
