#define _GNU_SOURCE
#include "data/chat_prompt.h"

#include <string.h>

static ag_status encode(int32_t **ids, int64_t *n, const ag_model_text *text, const char *bytes, size_t n_bytes,
                        const ag_encode_options *options, ag_arena *arena, ag_err *err)
{
    ag_encoding e = {0};
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    ag_status status = ag_tokenizer_encode(text->tokenizer, scratch, bytes, n_bytes, options, &e, err);
    if (!status) {
        *n = (int64_t)e.n;
        *ids = ag_arena_array(arena, e.n, sizeof **ids);
        if (e.n) memcpy(*ids, e.ids, e.n * sizeof **ids);
    }
    ag_tokenizer_scratch_free(&scratch);
    ag_encoding_free(&e);
    return status;
}

ag_status ag_text_prompt_encode(int32_t **ids, int64_t *n, const ag_model_text *text, const char *bytes, size_t n_bytes, bool add_special,
                                ag_arena *arena, ag_err *err)
{
    return encode(ids, n, text, bytes, n_bytes, &(ag_encode_options){.add_special = add_special, .ids_only = true}, arena, err);
}

/* Where the messages' contents stand in the rendered text: each is looked for behind the one before. A template that changes a
 * content (trims it, say) is followed as far as its longest unchanged form, the trimmed one. */
static size_t find_contents(ag_text_range *ranges, const json_t *messages, const ag_str *rendered)
{
    size_t n = 0, from = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const char *content = json_string_value(json_object_get(json_array_get(messages, i), "content"));
        if (!content || !*content) continue;
        size_t n_content = strlen(content);
        while (n_content > 0 && strchr(" \t\r\n", content[n_content - 1])) n_content--;
        while (n_content > 0 && strchr(" \t\r\n", *content)) content++, n_content--;
        const char *at = n_content ? memmem(rendered->text + from, rendered->n - from, content, n_content) : NULL;
        if (!at) continue;
        ranges[n] = (ag_text_range){(size_t)(at - rendered->text), (size_t)(at - rendered->text) + n_content};
        from = ranges[n++].end;
    }
    return n;
}

ag_status ag_chat_prompt_encode(int32_t **ids, int64_t *n, const ag_model_text *text, const ag_chat_render_args *args, ag_arena *arena,
                                ag_err *err)
{
    ag_str rendered = {0};
    ag_status status = ag_model_text_render(text, args, &rendered, NULL, err);
    if (!status) {
        ag_text_range *ranges = ag_arena_array(arena, json_array_size(args->messages) + 1, sizeof *ranges);
        const size_t n_ranges = find_contents(ranges, args->messages, &rendered);
        status = encode(ids, n, text, rendered.text ? rendered.text : "", rendered.n,
                        &(ag_encode_options){.ids_only = true, .plain_ranges = ranges, .n_plain_ranges = n_ranges}, arena, err);
    }
    ag_str_free(&rendered);
    return status;
}
