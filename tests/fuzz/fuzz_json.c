/* JSON: what is read can be written and is read again as the same value, with and without Python's NaN. */
#include "base/json.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(json_t *root, int indent, bool ascii)
{
    ag_err err;
    ag_str text = {0};
    json_t *again;
    ag_jw_value(&(ag_json_writer){.out = &text, .indent = indent, .ascii = ascii}, NULL, root);
    if (ag_json_parse(&again, text.text, text.n, "again", &err) || !json_equal(root, again)) abort();
    ag_json_free(&again);
    ag_str_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_err err;
    json_t *root, *with_nan;
    if (ag_json_parse(&root, (const char *)data, size, "fuzz", &err) == AG_OK) {
        round_trip(root, -1, false);
        round_trip(root, 2, true);
    }
    if (ag_json_parse_nan(&with_nan, (const char *)data, size, "fuzz", &err) == AG_OK) {
        if (root && !json_equal(root, with_nan)) abort();
        round_trip(with_nan, 0, false);
    } else if (root) {
        abort(); /* what is JSON is also JSON with NaN */
    }
    ag_json_free(&root);
    ag_json_free(&with_nan);
    return 0;
}
