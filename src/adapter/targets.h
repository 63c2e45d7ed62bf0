/* Which modules of a model an adapter takes: from what a training config asks for, and from what an adapter's config says.
 *
 * A list of names selects as PEFT does: a name equals
 * the whole path or is its end behind a dot ("q_proj", "self_attn.q_proj"). A pattern is a regular expression (PCRE2, which
 * agrees with Python's re in what such patterns use) that must match the whole path.
 *
 * A LoRA pair can stand beside the linear modules of a layer and the embedding; the same modules, the norms and the output head can be
 * trained in full (modules_to_save). A selection that takes in anything else is refused by name, because PEFT would train or refuse it. */
#ifndef AG_TARGETS_H
#define AG_TARGETS_H

#include "adapter/modules.h"
#include "base/arena.h"
#include "base/status.h"
#include "model/description.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How a training config's target_modules are held against the model:
 *   auto_common        those asked for (or the seven common ones) that are common and there; the rest is dropped with a warning
 *   discover_required  each must be part of, or match as a regular expression in, a module's path; the rest is dropped, too
 *   explicit           the same, but one that is not there is an error
 * Nothing left is an error in every mode. */
typedef enum { AG_TARGETS_AUTO_COMMON, AG_TARGETS_DISCOVER_REQUIRED, AG_TARGETS_EXPLICIT } ag_targets_mode;

/* The names that remain, in the order given, in the arena. Warnings go to the log. */
AG_MUST_USE ag_status ag_targets_choose(const char *const **names, size_t *n_names, ag_targets_mode mode, const char *const *asked,
                                        size_t n_asked, const ag_description *d, ag_arena *arena, ag_err *err);

/* ---- what an adapter takes ------------------------------------------------------------------------------------------------- */
/* PEFT's keys of the same meaning; texts belong to the caller. */
typedef struct {
    const char *const *names;           /* target_modules as a list … */
    size_t n_names;
    const char *pattern;                /* … or, where not NULL, as a pattern; "all-linear" is every linear layer but the head */
    const char *const *exclude;         /* exclude_modules: a list, as names … */
    size_t n_exclude;
    const char *exclude_pattern;        /* … or a pattern */
    const int64_t *layers;              /* layers_to_transform; n_layers 0: all. Ends of paths select in these layers only … */
    size_t n_layers;
    const char *const *layers_patterns; /* … whose index stands behind this name (a regular expression); none: behind any */
    size_t n_layers_patterns;
    const char *const *saved;           /* modules_to_save: a module whose path ends with one, behind a dot or not */
    size_t n_saved;
} ag_target_rules;

typedef struct {
    int64_t n_modules;
    bool *lora, *saved; /* [n_modules], in the arena; never both */
    int64_t n_lora;     /* at least 1 */
} ag_target_set;

/* AG_E_CONFIG where a name or pattern selects no module or one that cannot be trained so, is no regular expression, is longer than
 * AG_TARGETS_MAX_PATTERN bytes, or takes too long. What is excluded or saved gets no pair, as in PEFT. */
enum { AG_TARGETS_MAX_PATTERN = 1024 };
AG_MUST_USE ag_status ag_targets_select(ag_target_set *out, const ag_target_rules *rules, const ag_description *d, ag_arena *arena,
                                        ag_err *err);
/* Whether a name is the whole path or its end behind a dot: the rule of the names above. */
bool ag_targets_name_selects(const char *name, const char *path);
/* first[i], i < ag_modules_count: the first of the keys that selects module i by PEFT's rule for rank_pattern and alpha_pattern, a regular
 * expression for the whole path or for its end behind a dot; -1: none. `what` names the key's place in sentences. */
AG_MUST_USE ag_status ag_targets_first_keys(int64_t **first, const char *const *keys, size_t n_keys, const char *what,
                                            const ag_description *d, ag_arena *arena, ag_err *err);
/* Whether a name is the whole path or its end behind a dot: the rule of lists of names. */
bool ag_targets_name_selects(const char *name, const char *path);
/* Whether a pattern is of the plain form that a readiness report admits: at most AG_TARGETS_MAX_PATTERN characters; '^' at the
 * begin, '$' at the end, '.*' (not twice in a row), escaped metacharacters and literals. */
bool ag_targets_pattern_is_plain(const char *pattern);

#endif
