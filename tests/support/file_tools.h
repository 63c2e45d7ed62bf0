/* Small things that tests do to files; each fails the test where it cannot. */
#ifndef AG_TEST_FILE_TOOLS_H
#define AG_TEST_FILE_TOOLS_H

#include <stddef.h>

void file_tree_copy(const char *from, const char *to); /* regular files and directories */
char *file_text(const char *path);                     /* the caller frees it */
void file_put(const char *path, const char *text);     /* with the folders above it */
void file_append(const char *path, const char *text);
/* The first `old` in the file becomes `new`; it must be there. */
void file_replace(const char *path, const char *old, const char *new);

#endif
