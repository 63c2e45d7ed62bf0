/* Runs for tests: a tiny base model, a checkpoint that the Trainer wrote (tests/golden/runs), and folders put together from them. The
 * scratch directory becomes the working directory, for the adapters name their base "base/tiny-llama". */
#ifndef AG_TEST_RUN_FIXTURE_H
#define AG_TEST_RUN_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Everything under a fresh scratch directory; base/tiny-llama and an empty adapters/run. */
void run_fixture_begin(void);
void run_fixture_end(void);

/* All paths below are relative to the scratch directory. Folders are made. */
void run_fixture_adapter(const char *dir);                      /* config and weights */
void run_fixture_checkpoint(const char *dir, int64_t step);      /* a whole checkpoint, ready to resume */
void run_fixture_merged(const char *dir);                        /* the base as a merged model with its index */
void run_fixture_seal(const char *dir, bool with_provenance);    /* an artifact index over what is there */

void fixture_write(const char *path, const char *text);
void fixture_write_n(const char *path, const void *bytes, size_t n);
void fixture_copy(const char *from, const char *to);
void fixture_copy_tree(const char *from, const char *to);        /* files and folders */
void fixture_golden(const char *name, const char *to);           /* tests/golden/runs/<name> */
char *fixture_read(const char *path, size_t *n);                 /* the caller frees it; n may be NULL */
void fixture_replace(const char *path, const char *from, const char *to); /* the first place; fails the test where there is none */
void fixture_remove(const char *path);                           /* with all below */
void fixture_make_dir(const char *path);
bool fixture_exists(const char *path);                           /* links are not followed */
/* Everything below dir as one text, "path size digest" lines in order: to see that nothing changed. The caller frees it. */
char *fixture_picture(const char *dir);

#endif
