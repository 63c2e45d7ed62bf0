/* What a verification found: a list of failures, each with a code that programs rely on, and the two forms it is printed in. */
#ifndef AG_BUNDLE_REPORT_H
#define AG_BUNDLE_REPORT_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

#define AG_BUNDLE_VERDICT_VERSION "agoge.bundle-verification.v1"

/*    code                           printed                    meaning */
#define AG_BUNDLE_CODES(X)                                                                                                           \
    X(AG_BUNDLE_MISSING_FILE,        "missing_file")            /* listed or referenced, and not there */                            \
    X(AG_BUNDLE_EXTRA_FILE,          "extra_file")              /* there, and not listed */                                          \
    X(AG_BUNDLE_MODIFIED_FILE,       "modified_file")           /* size or digest differ, or the tree changed while it was read */   \
    X(AG_BUNDLE_UNSAFE_SYMLINK,      "unsafe_symlink")                                                                               \
    X(AG_BUNDLE_UNSAFE_PATH,         "unsafe_path")             /* pickled weights; a special or unreadable entry */                 \
    X(AG_BUNDLE_PATH_ESCAPING,       "path_escaping")           /* leaves its root, or no canonical POSIX form */                    \
    X(AG_BUNDLE_DUPLICATE_PATH,      "duplicate_path")                                                                               \
    X(AG_BUNDLE_INVALID_JSON,        "invalid_json")            /* no JSON, or another schema, without a finer code */               \
    X(AG_BUNDLE_UNKNOWN_VERSION,     "unknown_schema_version")                                                                       \
    X(AG_BUNDLE_RUN_MANIFEST,        "run_manifest")                                                                                 \
    X(AG_BUNDLE_LOCKED_CONFIG,       "locked_config")           /* against the policy, or not the manifest's config */               \
    X(AG_BUNDLE_SPLIT_IDENTITY,      "split_identity")          /* digests, counts, members, task ids, provenance against split */   \
    X(AG_BUNDLE_ARTIFACT_INDEX,      "artifact_index")          /* layout, config, provenance, kind, model identity */               \
    X(AG_BUNDLE_MISSING_ARM,         "missing_evaluation_arm")                                                                       \
    X(AG_BUNDLE_EVALUATION,          "evaluation")              /* answers, scores and comparison do not follow from each other */     \
    X(AG_BUNDLE_SIGNATURE,           "signature")               /* demanded, and not there or of another key */

typedef enum {
#define X(code, name) code,
    AG_BUNDLE_CODES(X)
#undef X
} ag_bundle_code;

typedef struct {
    ag_bundle_code code;
    const char *path;    /* relative to the bundle; NULL: the bundle as a whole, or not known */
    const char *message;
} ag_bundle_failure;

typedef enum {
    AG_SIGNATURE_ABSENT,      /* and not demanded */
    AG_SIGNATURE_NOT_CHECKED, /* there, but no key was given */
    AG_SIGNATURE_VERIFIED,
    AG_SIGNATURE_FAILED
} ag_signature_state;

typedef struct {
    const char *bundle_path;    /* resolved */
    const char *schema_version; /* of the inventory; NULL where it could not be accepted */
    ag_bundle_failure *failures;
    size_t n, room;
    ag_signature_state signature;
    ag_arena arena;
} ag_bundle_report;

void ag_bundle_report_free(ag_bundle_report *report);
static inline bool ag_bundle_passes(const ag_bundle_report *report) { return report->n == 0; }

void ag_bundle_report_add(ag_bundle_report *report, ag_bundle_code code, const char *path, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* By code, path (none first) and message, so that the same bundle gives the same report. */
void ag_bundle_report_sort(ag_bundle_report *report);
const char *ag_bundle_code_name(ag_bundle_code code);

/* {"schema_version", "verdict", "bundle_path", "bundle_schema_version", "failures": [{"code", "message", "path"?}]}, indent 2; and
 * "signature" behind them where a bundle is signed or a key was given. */
void ag_bundle_report_write_json(const ag_bundle_report *report, ag_str *out);
/* The same for people; control characters are escaped. */
void ag_bundle_report_write_table(const ag_bundle_report *report, ag_str *out);

#endif
