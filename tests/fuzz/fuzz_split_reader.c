/* A split manifest read as a stream: in any pieces the same, and never accepted where a whole reader of JSON refuses it. */
#include "seal/split_reader.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ag_split_reader *read_in_pieces(const char *bytes, size_t n, size_t piece)
{
    ag_err err;
    ag_split_reader *r = ag_split_reader_create();
    ag_status status = AG_OK;
    for (size_t at = 0; at < n && !status; at += piece)
        status = ag_split_reader_feed(r, bytes + at, piece < n - at ? piece : n - at, &err);
    if (!status) status = ag_split_reader_end(r, &err);
    if (status) ag_split_reader_free(&r);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_err err;
    json_t *whole;
    ag_split_reader *r = read_in_pieces((const char *)data, size, size + 1),
                    *again = read_in_pieces((const char *)data, size, 3);
    if (!r != !again) abort();
    if (r) {
        if (ag_json_parse(&whole, (const char *)data, size, "fuzz", &err)) abort();
        for (int i = 0; i < AG_N_SPLIT_LISTS; i++) {
            const json_t *members =
                json_object_get(json_object_get(json_object_get(whole, "splits"), ag_split_list_names[i]), "members");
            if (json_array_size(members) != r->list[i].n || r->list[i].n != again->list[i].n) abort();
            if (r->list[i].n && memcmp(r->list[i].members, again->list[i].members, r->list[i].n * sizeof *r->list[i].members))
                abort();
        }
        ag_json_free(&whole);
    }
    ag_split_reader_free(&r);
    ag_split_reader_free(&again);
    return 0;
}
