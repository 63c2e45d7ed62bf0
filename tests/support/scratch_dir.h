/* A directory of its own for a test that writes files. */
#ifndef AG_TEST_SCRATCH_DIR_H
#define AG_TEST_SCRATCH_DIR_H

/* A fresh empty directory under /tmp; its path stays valid until the next call. */
const char *scratch_dir_create(void);
/* Removes it with everything in it. */
void scratch_dir_remove(void);
/* "<scratch directory>/<name>"; one of eight texts used in turn. */
const char *scratch_path(const char *name);

#endif
