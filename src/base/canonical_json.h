/* Canonical JSON: one spelling for one value, so that a digest of the text is a digest of the value. Contracts, split manifests
 * and evaluation bundles are written in it.
 *
 *     ag_str s = {0};
 *     ag_json_add_canonical(&s, root);         // the same bytes whatever the order and spacing that root was read from
 *     ag_str_add_char(&s, '\n');               // files and JSONL rows end so
 *
 * Keys are sorted by code point, separators are "," and ":" without a space, text is UTF-8 with only what JSON demands escaped,
 * numbers are spelt as Python spells them: json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False,
 * allow_nan=False). A value read with ag_json_parse_exact keeps integers beyond 64 bits; NaN and Infinity no reader of ours
 * lets in. */
#ifndef AG_CANONICAL_JSON_H
#define AG_CANONICAL_JSON_H

#include "base/digest.h"
#include "base/json.h"

void ag_json_add_canonical(ag_str *out, const json_t *value);
/* The same order of keys in a writer's own style (indented, ASCII only …). */
void ag_jw_sorted(ag_json_writer *w, const char *key, const json_t *value);
ag_sha256 ag_json_canonical_digest(const json_t *value); /* of the text without a newline */

/* Whether a file's text is canonical JSON of `root`, which was read from it, and one '\n'. */
bool ag_json_is_canonical_file(const json_t *root, const char *bytes, size_t n);

#endif
