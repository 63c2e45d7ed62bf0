#include "data/row_encoder.h"

#include "base/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ag_row_encoder_init(ag_row_encoder *encoder, const ag_examples_options *options, const char *path)
{
    *encoder = (ag_row_encoder){.options = options, .path = path, .scratch = ag_tokenizer_scratch_create()};
}

void ag_row_encoder_deinit(ag_row_encoder *encoder)
{
    ag_tokenizer_scratch_free(&encoder->scratch);
    ag_encoding_free(&encoder->encoding);
    ag_str_free(&encoder->text);
    ag_str_free(&encoder->before);
    ag_str_free(&encoder->upto);
    ag_range_list_free(&encoder->marks);
    free(encoder->ids);
    free(encoder->target);
    *encoder = (ag_row_encoder){0};
}

void ag_range_list_add(ag_range_list *list, size_t start, size_t end)
{
    if (list->n == list->room) {
        list->room = list->room ? 2 * list->room : 16;
        list->range = realloc(list->range, list->room * sizeof *list->range);
        if (!list->range) ag_out_of_memory(list->room * sizeof *list->range);
    }
    list->range[list->n++] = (ag_text_range){start, end};
}

void ag_range_list_free(ag_range_list *list)
{
    free(list->range);
    *list = (ag_range_list){0};
}

void ag_row_encoder_add(ag_row_encoder *encoder, int32_t id, bool target)
{
    if (encoder->n == encoder->room) {
        encoder->room = encoder->room ? 2 * encoder->room : 1024;
        encoder->ids = realloc(encoder->ids, encoder->room * sizeof *encoder->ids);
        encoder->target = realloc(encoder->target, encoder->room);
        if (!encoder->ids || !encoder->target) ag_out_of_memory(encoder->room * sizeof *encoder->ids);
    }
    encoder->ids[encoder->n] = id;
    encoder->target[encoder->n++] = target;
}

ag_status ag_row_encoder_fail(const ag_row_encoder *encoder, const ag_row *row, ag_err *err, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return ag_fail(err, AG_E_DATA, "%s: line %zu: %s", encoder->path, row->number, text);
}

static ag_status prefix_line(const ag_row_encoder *encoder, const ag_row *row, ag_err *err)
{
    return ag_err_prefix(err, "%s: line %zu", encoder->path, row->number);
}

/* Whether the tokenizer puts an EOS behind a text by itself. */
static bool adds_eos(const ag_tokenizer *t, int32_t eos)
{
    int32_t before[8], after[8];
    size_t n_before, n_after;
    ag_tokenizer_affixes(t, before, &n_before, after, &n_after, 8);
    return n_after > 0 && n_after <= 8 && after[n_after - 1] == eos;
}

/* Text with the tokenizer's own special tokens and one EOS at the end; every token but the first is a target. */
static ag_status encode_text(ag_row_encoder *encoder, const ag_row *row, const char *text, size_t n, ag_err *err)
{
    const ag_tokenizer *t = encoder->options->tokenizer;
    if (n == 0) return ag_row_encoder_fail(encoder, row, err, "the text is empty");
    ag_encoding *e = &encoder->encoding;
    ag_encoding_clear(e);
    if (ag_tokenizer_encode(t, encoder->scratch, text, n, &(ag_encode_options){.add_special = true, .ids_only = true}, e, err))
        return prefix_line(encoder, row, err);
    if (e->n == 0) return ag_row_encoder_fail(encoder, row, err, "the tokenizer makes no token of the text");
    int32_t eos = ag_tokenizer_special_id(t, AG_SPECIAL_EOS);
    bool doubled = e->n >= 2 && eos >= 0 && e->ids[e->n - 1] == eos && e->ids[e->n - 2] == eos && adds_eos(t, eos);
    for (size_t i = 0; i < e->n - doubled; i++) ag_row_encoder_add(encoder, e->ids[i], i > 0);
    if (eos >= 0 && e->ids[e->n - 1] != eos) ag_row_encoder_add(encoder, eos, true);
    return AG_OK;
}

/* ---- conversations ------------------------------------------------------------------------------------------------ */

static ag_status render(const ag_row_encoder *encoder, const ag_row *row, const json_t *messages, bool prompt, ag_str *out,
                        ag_range_list *marks, ag_err *err)
{
    const ag_chat *chat = encoder->options->chat;
    ag_str_clear(out);
    if (chat->render(chat->user, messages, row->tools, prompt, out, marks, err)) return prefix_line(encoder, row, err);
    return AG_OK;
}

static bool begins_with(const ag_str *text, const ag_str *start)
{
    return start->n <= text->n && (start->n == 0 || memcmp(text->text, start->text, start->n) == 0);
}

/* Where assistant message i stands in encoder->text: behind the rendering of what is before it with a generation prompt, up
 * to the end of the rendering with it. */
static ag_status find_turn(ag_row_encoder *encoder, const ag_row *row, json_t *messages, size_t i, ag_err *err)
{
    AG_TRY(render(encoder, row, messages, true, &encoder->before, NULL, err));
    json_array_append(messages, json_array_get(row->messages, i));
    AG_TRY(render(encoder, row, messages, false, &encoder->upto, NULL, err));
    if (!begins_with(&encoder->upto, &encoder->before) || !begins_with(&encoder->text, &encoder->upto))
        return ag_row_encoder_fail(
            encoder, row, err,
            "message %zu: the chat template writes this turn differently when more follows, or "
            "without the generation prompt in front, so 'assistant_only_loss' cannot find it; use a template with "
            "{%% generation %%} marks, or train on the whole text",
            i + 1);
    ag_range_list_add(&encoder->marks, encoder->before.n, encoder->upto.n);
    return AG_OK;
}

static ag_status find_turns(ag_row_encoder *encoder, const ag_row *row, ag_err *err)
{
    json_t *messages = json_array(); /* those before the one looked at; borrows by reference count, within this row */
    ag_status status = AG_OK;
    for (size_t i = 0; !status && i < json_array_size(row->messages); i++) {
        json_t *message = json_array_get(row->messages, i);
        if (strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0)
            status = find_turn(encoder, row, messages, i, err);
        else
            json_array_append(messages, message);
    }
    json_decref(messages);
    return status;
}

static bool is_white(const char *text, size_t start, size_t end)
{
    while (start < end && strchr(" \t\r\n", text[start])) start++;
    return start >= end;
}

/* The end of a turn found by rendering: behind its last special token, where only white space follows that one. */
static size_t trim_turn(const ag_row_encoder *encoder, ag_text_range turn)
{
    const ag_encoding *e = &encoder->encoding;
    for (size_t i = e->n; i-- > 0;) {
        if (e->byte_start[i] >= turn.end || e->byte_end[i] == 0) continue;
        if (e->byte_start[i] < turn.start) break;
        if (!ag_tokenizer_is_special(encoder->options->tokenizer, e->ids[i])) continue;
        return is_white(encoder->text.text, e->byte_end[i], turn.end) ? e->byte_end[i] : turn.end;
    }
    return turn.end;
}

/* Which tokens of the rendered conversation the assistant wrote, as transformers' assistant masks say it: those that share a
 * character with a marked range. */
static ag_status mark_assistant(ag_row_encoder *encoder, const ag_row *row, ag_err *err)
{
    bool rendered = !encoder->options->chat->marks_assistant;
    if (rendered) AG_TRY(find_turns(encoder, row, err));
    const ag_encoding *e = &encoder->encoding;
    const ag_range_list *marks = &encoder->marks;
    memset(encoder->target, 0, encoder->n);
    for (size_t m = 0, i = 0; m < marks->n; m++) {
        ag_text_range turn = marks->range[m];
        if (rendered) turn.end = trim_turn(encoder, turn);
        while (i < e->n && e->byte_end[i] <= turn.start) i++;
        for (; i < e->n && e->byte_start[i] < turn.end; i++) encoder->target[i] = i > 0;
    }
    return AG_OK;
}

static ag_status encode_chat(ag_row_encoder *encoder, const ag_row *row, ag_err *err)
{
    const ag_examples_options *o = encoder->options;
    bool wants_marks = o->assistant_only && o->chat->marks_assistant;
    encoder->marks.n = 0;
    AG_TRY(render(encoder, row, row->messages, false, &encoder->text, wants_marks ? &encoder->marks : NULL, err));
    ag_encoding *e = &encoder->encoding;
    ag_encoding_clear(e);
    ag_encode_options how = {.ids_only = !o->assistant_only};
    if (ag_tokenizer_encode(o->tokenizer, encoder->scratch, encoder->text.n ? encoder->text.text : "", encoder->text.n, &how, e,
                            err))
        return prefix_line(encoder, row, err);
    if (e->n == 0) return ag_row_encoder_fail(encoder, row, err, "the chat template makes no text of the messages");
    for (size_t i = 0; i < e->n; i++) ag_row_encoder_add(encoder, e->ids[i], i > 0);
    return o->assistant_only ? mark_assistant(encoder, row, err) : AG_OK;
}

ag_status ag_row_encode(ag_row_encoder *encoder, const ag_row *row, ag_err *err)
{
    encoder->n = 0;
    encoder->plain_chat = false;
    if (encoder->options->completion_only) return ag_completion_encode(encoder, row, err);
    if (row->form != AG_ROW_MESSAGES) return encode_text(encoder, row, row->text, row->n_text, err);
    if (encoder->options->chat) return encode_chat(encoder, row, err);
    if (encoder->options->assistant_only)
        return ag_row_encoder_fail(encoder, row, err,
                                   "'assistant_only_loss' needs a model with a chat template, and this one has none");
    encoder->plain_chat = true;
    ag_str_clear(&encoder->text);
    ag_messages_write_plain(row->messages, &encoder->text);
    return encode_text(encoder, row, encoder->text.text, encoder->text.n, err);
}
