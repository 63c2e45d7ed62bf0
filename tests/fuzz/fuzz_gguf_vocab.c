/* The tokenizer arrays of a GGUF file, one line each: "model pre", then for every line a kind (digit 1…6, 's' a merge, 't' the
 * text to encode) and its bytes. Scores fall from line to line. */
#include "base/status.h"
#include "text/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LINES = 512 };

static void check(const ag_tokenizer *t, ag_text text)
{
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_encoding e = {0};
    ag_str back = {0}, json = {0};
    ag_gguf_vocab v;
    ag_gguf_vocab_owner *keep = NULL;
    ag_err err = {0};
    if (ag_tokenizer_encode(t, scratch, text.text, text.n, &(ag_encode_options){.add_special = true}, &e, &err) == AG_OK)
        for (size_t i = 0; i < e.n; i++)
            AG_ASSERT(e.byte_end[i] <= text.n && ag_tokenizer_token_text(t, e.ids[i]).text != NULL);
    ag_tokenizer_decode(t, e.ids, e.n, false, &back);
    AG_ASSERT(!back.n || ag_utf8_valid(back.text, back.n));
    if (ag_tokenizer_write_json(t, &json, &err) == AG_OK) AG_ASSERT(ag_utf8_valid(json.text, json.n));
    if (ag_tokenizer_to_gguf(t, 0, &v, &keep, &err) == AG_OK) AG_ASSERT(v.n_tokens == (size_t)ag_tokenizer_vocab_size(t));
    ag_gguf_vocab_owner_free(&keep);
    ag_str_free(&back);
    ag_str_free(&json);
    ag_encoding_free(&e);
    ag_tokenizer_scratch_free(&scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_text tokens[MAX_LINES], merges[MAX_LINES], text = {"", 0};
    int32_t types[MAX_LINES];
    float scores[MAX_LINES];
    char model[16] = "", pre[16] = "";
    ag_gguf_vocab v = {.name = "fuzz",
                       .model = model,
                       .pre = pre,
                       .tokens = tokens,
                       .types = types,
                       .scores = scores,
                       .merges = merges,
                       .bos_id = 0,
                       .eos_id = 1,
                       .pad_id = -1,
                       .unk_id = 0,
                       .add_bos = -1,
                       .add_eos = 1,
                       .add_space_prefix = -1};
    for (size_t at = 0, line = 0; at < size; line++) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        size_t n = end ? (size_t)(end - data) - at : size - at;
        const char *p = (const char *)data + at;
        if (line == 0) {
            const char *space = memchr(p, ' ', n);
            size_t n_model = space ? (size_t)(space - p) : n, n_pre = space ? n - n_model - 1 : 0;
            if (n_model < sizeof model) memcpy(model, p, n_model);
            if (n_pre < sizeof pre) memcpy(pre, space ? space + 1 : "", n_pre);
        } else if (n > 0 && p[0] == 's' && v.n_merges < MAX_LINES) {
            merges[v.n_merges++] = (ag_text){p + 1, n - 1};
        } else if (n > 0 && p[0] == 't') {
            text = (ag_text){p + 1, n - 1};
        } else if (n > 0 && p[0] >= '1' && p[0] <= '6' && v.n_tokens < MAX_LINES) {
            types[v.n_tokens] = p[0] - '0';
            scores[v.n_tokens] = -(float)(v.n_tokens / 2);
            tokens[v.n_tokens++] = (ag_text){p + 1, n - 1};
        }
        at += n + 1;
    }
    ag_tokenizer *t = NULL;
    ag_err err = {0};
    if (ag_tokenizer_from_gguf(&t, &v, &err) == AG_OK)
        check(t, text);
    else
        AG_ASSERT(t == NULL && err.text[0] != 0);
    ag_tokenizer_free(&t);
    return 0;
}
