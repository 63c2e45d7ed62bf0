/* A split manifest from anybody: lists of members cut out, the rest held against the schema, each member read. */
#include "data/split_manifest.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    /* Pages of a map are given back while it is read; bytes on the heap must not have a whole page. */
    if (n >= 4096) return 0;
    const ag_map map = {bytes, n};
    ag_split_skeleton skeleton;
    ag_split split = {0};
    ag_err err;
    if (ag_split_skeleton_read(&skeleton, &map, "manifest", &err)) return 0;
    const ag_status status = ag_split_head_read(&split, skeleton.root, "manifest", &err);
    for (int s = 0; s < AG_N_SPLITS; s++) {
        size_t at = skeleton.start[s] + 1;
        while (skeleton.end[s]) {
            json_t *value;
            ag_split_member member;
            if (ag_split_member_next(&value, &at, &map, skeleton.end[s], "manifest", &err) || !value) break;
            (void)!ag_split_member_read(&member, value, status ? "data/rows.jsonl" : split.source_path, "manifest", &err);
            ag_json_free(&value);
        }
    }
    if (skeleton.root) ag_json_free(&skeleton.root);
    ag_arena_free(&split.arena);
    return 0;
}
