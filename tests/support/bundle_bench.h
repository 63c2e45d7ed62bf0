/* A bundle on the bench: a fresh copy of a golden one, to be tampered with, resealed and verified. */
#ifndef AG_TEST_BUNDLE_BENCH_H
#define AG_TEST_BUNDLE_BENCH_H

/* tests/golden/seal/<which> into a new scratch directory; the path of the copy. bundle_end removes it. */
const char *bundle_begin(const char *which);
void bundle_end(void);
const char *bundle_file(const char *name); /* its path; one of eight texts used in turn */

/* Writes an inventory over whatever is there now, without asking whether it would verify. */
void bundle_reseal(void);
/* Also the artifact index of a folder ("adapter", "merged") and the digest of it in the contract: what a forger would do. */
void bundle_reindex(const char *folder);

/* Verifies; the failures must be exactly these, a line "code path" each ("code" alone without a path), sorted, "" for a pass. */
void bundle_expect(const char *failures);
/* The same, and one of the messages holds `part`. */
void bundle_expect_message(const char *failures, const char *part);

#endif
