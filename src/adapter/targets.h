/* Which projections of a model get a LoRA pair: from what a training config asks for, and from what an adapter's config says.
 *
 * A module's path is transformers' own, "model.layers.3.self_attn.q_proj". A list of names selects as PEFT does: a name equals
 * the whole path or is its end behind a dot ("q_proj", "self_attn.q_proj"). A pattern is a regular expression (PCRE2, which
 * agrees with Python's re in what such patterns use) that must match the whole path.
 *
 * Only the seven projections of a layer can be trained here. A selection that takes in anything else (embed_tokens, lm_head, a
 * norm) is refused by name, because PEFT would train or refuse it. */
#ifndef AG_TARGETS_H
#define AG_TARGETS_H

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

typedef struct {
    int64_t L;
    bool *on;   /* [L·AG_N_PROJ], layer by layer; in the arena */
    int64_t n;  /* how many are on, at least 1 */
} ag_target_set;

/* AG_E_CONFIG where a name selects no module or one that cannot be trained. With layers (PEFT's layers_to_transform; n_layers 0: all)
 * an end of a path selects in these layers only; a whole path does so anywhere. */
AG_MUST_USE ag_status ag_targets_of_names(ag_target_set *out, const char *const *names, size_t n_names, const int64_t *layers,
                                          size_t n_layers, const ag_description *d, ag_arena *arena, ag_err *err);
/* Whether a name is the whole path or its end behind a dot: the rule of the names above, and of rank_pattern and alpha_pattern. */
bool ag_targets_name_selects(const char *name, const char *path);
/* AG_E_CONFIG where the pattern is no regular expression, is longer than AG_TARGETS_MAX_PATTERN bytes, takes too long, or
 * selects nothing or a module that cannot be trained. "all-linear" is every linear layer but the output head. */
enum { AG_TARGETS_MAX_PATTERN = 1024 };
AG_MUST_USE ag_status ag_targets_of_pattern(ag_target_set *out, const char *pattern, const ag_description *d, ag_arena *arena,
                                            ag_err *err);
/* Whether a pattern is of the plain form that a readiness report admits: at most AG_TARGETS_MAX_PATTERN characters; '^' at the
 * begin, '$' at the end, '.*' (not twice in a row), escaped metacharacters and literals. */
bool ag_targets_pattern_is_plain(const char *pattern);

#endif
