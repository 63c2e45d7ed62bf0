/* A split manifest of any size, read as a stream: the lists of members are cut out of the text and taken in member by member, 112 bytes
 * each; what is left, small, is one JSON value.
 *
 *     ag_split_reader *r = ag_split_reader_create();
 *     while (… read …) if (ag_split_reader_feed(r, bytes, n, err)) …     // AG_E_FORMAT
 *     ag_split_reader_end(r, err);                                       // then r->root and r->list
 *     ag_split_reader_free(&r);
 */
#ifndef AG_SPLIT_READER_H
#define AG_SPLIT_READER_H

#include "base/json.h"

#include <stdint.h>

enum { AG_SPLIT_TRAIN_LIST, AG_SPLIT_VALIDATION_LIST, AG_SPLIT_HELD_OUT_LIST, AG_N_SPLIT_LISTS };
extern const char *const ag_split_list_names[AG_N_SPLIT_LISTS];

/* What must not be shared: the first two by any two members, the others by members of two splits. */
enum { AG_MEMBER_CANONICAL_ID, AG_MEMBER_SOURCE_COORDINATE, AG_MEMBER_CONTENT, AG_MEMBER_LINEAGE, AG_MEMBER_GROUP, AG_N_MEMBER_KEYS };
extern const char *const ag_member_key_names[AG_N_MEMBER_KEYS];

/* The first 128 bits of a text's SHA-256; all zero for null. */
typedef struct {
    uint64_t high, low;
} ag_member_key;
ag_member_key ag_member_key_of(const char *text);

typedef struct {
    ag_member_key key[AG_N_MEMBER_KEYS];
    unsigned char line[32]; /* materialized_line_sha256 */
} ag_split_member_record;

typedef struct ag_split_reader {
    json_t *root; /* splits.<name>.members is [] there */
    struct {
        ag_split_member_record *members;
        size_t n, room;
    } list[AG_N_SPLIT_LISTS];
} ag_split_reader;

ag_split_reader *ag_split_reader_create(void);
AG_MUST_USE ag_status ag_split_reader_feed(ag_split_reader *r, const char *bytes, size_t n, ag_err *err);
AG_MUST_USE ag_status ag_split_reader_end(ag_split_reader *r, ag_err *err);
/* All of a file. */
AG_MUST_USE ag_status ag_split_reader_load(ag_split_reader **out, const char *path, ag_err *err);
void ag_split_reader_free(ag_split_reader **r);

#endif
