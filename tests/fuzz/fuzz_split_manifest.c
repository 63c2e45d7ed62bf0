/* A split manifest from anybody: lists of members cut out, the rest held against the schema, each member read. */
#define _GNU_SOURCE
#include "data/split_manifest.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Pages of a map are given back while it is read, so the bytes must be a file's. */
static ag_map map_of(const uint8_t *bytes, size_t n)
{
    static int fd = -1;
    if (fd < 0) fd = memfd_create("manifest", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) || pwrite(fd, bytes, n, 0) != (ssize_t)n) abort();
    void *mapped = n ? mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    if (mapped == MAP_FAILED) abort();
    return (ag_map){mapped, n};
}

static void read_members(const ag_split_skeleton *skeleton, const ag_map *map, const char *source_path)
{
    ag_err err;
    for (int s = 0; s < AG_N_SPLITS; s++) {
        size_t at = skeleton->start[s] + 1;
        while (skeleton->end[s]) {
            json_t *value;
            ag_split_member member;
            if (ag_split_member_next(&value, &at, map, skeleton->end[s], "manifest", &err) || !value) break;
            (void)!ag_split_member_read(&member, value, source_path, "manifest", &err);
            ag_json_free(&value);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    ag_map map = map_of(bytes, n);
    ag_split_skeleton skeleton;
    ag_split split = {0};
    ag_err err;
    if (!ag_split_skeleton_read(&skeleton, &map, "manifest", &err)) {
        const ag_status status = ag_split_head_read(&split, skeleton.root, "manifest", &err);
        read_members(&skeleton, &map, status ? "data/rows.jsonl" : split.source_path);
    }
    if (skeleton.root) ag_json_free(&skeleton.root);
    ag_arena_free(&split.arena);
    ag_map_close(&map);
    return 0;
}
