/* A tokenizer.json and a text behind it, parted by the first NUL byte: whatever the file says, making the tokenizer, encoding,
 * decoding and writing it out must hold their promises. */
#include "base/status.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_decode(const ag_tokenizer *t, const ag_encoding *e)
{
    ag_str whole = {0}, pieces = {0};
    ag_decode_stream s = {.tokenizer = t};
    ag_tokenizer_decode(t, e->ids, e->n, false, &whole);
    for (size_t i = 0; i < e->n; i++) ag_decode_stream_add(&s, e->ids[i], &pieces);
    ag_decode_stream_end(&s, &pieces);
    AG_ASSERT(!whole.n || ag_utf8_valid(whole.text, whole.n));
    AG_ASSERT(!pieces.n || ag_utf8_valid(pieces.text, pieces.n));
    ag_str_free(&whole);
    ag_str_free(&pieces);
}

static void check_writers(const ag_tokenizer *t)
{
    ag_str json = {0};
    ag_gguf_vocab v;
    ag_gguf_vocab_owner *keep = NULL;
    ag_tokenizer *again = NULL;
    if (ag_tokenizer_write_json(t, &json, NULL) == AG_OK) {
        ag_tokenizer_files files = {.name = "written", .tokenizer = json.text, .n_tokenizer = json.n};
        if (ag_tokenizer_from_json(&again, &files, NULL) == AG_OK) ag_tokenizer_free(&again);
    }
    if (ag_tokenizer_to_gguf(t, 0, &v, &keep, NULL) == AG_OK && ag_tokenizer_from_gguf(&again, &v, NULL) == AG_OK)
        ag_tokenizer_free(&again);
    ag_gguf_vocab_owner_free(&keep);
    ag_str_free(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    size_t n_json = cut ? (size_t)(cut - data) : size, n = cut ? size - n_json - 1 : 0;
    const char *text = cut ? (const char *)cut + 1 : "";
    ag_tokenizer *t = NULL;
    ag_err err = {0};
    ag_tokenizer_files files = {.name = "fuzz", .tokenizer = (const char *)data, .n_tokenizer = n_json};
    if (ag_tokenizer_from_json(&t, &files, &err)) {
        AG_ASSERT(t == NULL && err.text[0] != 0);
        return 0;
    }
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_encoding e = {0};
    ag_text_range range = {n / 3, n / 2};
    ag_encode_options options = {.add_special = true, .plain_ranges = &range, .n_plain_ranges = 1};
    if (ag_tokenizer_encode(t, scratch, text, n, &options, &e, &err) == AG_OK) {
        for (size_t i = 0; i < e.n; i++) {
            AG_ASSERT(e.byte_start[i] <= n && e.byte_end[i] <= n);
            AG_ASSERT(ag_tokenizer_token_text(t, e.ids[i]).text != NULL);
            AG_ASSERT(ag_encoding_token(t, &e, i).text != NULL);
        }
        check_decode(t, &e);
    } else {
        AG_ASSERT(e.n == 0);
    }
    check_writers(t);
    ag_encoding_free(&e);
    ag_tokenizer_scratch_free(&scratch);
    ag_tokenizer_free(&t);
    return 0;
}
