#define _GNU_SOURCE
#include "support/scratch_dir.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[64];

const char *scratch_dir_create(void)
{
    strcpy(dir, "/tmp/agoge-test-XXXXXX");
    if (!mkdtemp(dir)) abort();
    return dir;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}

void scratch_dir_remove(void)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *scratch_path(const char *name)
{
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}
