#include "eval/generation.h"

#include "base/canonical_json.h"
#include "data/rows.h"

#include <string.h>

const char *ag_truncation_policy_name(ag_truncation_policy policy)
{
    return policy == AG_TRUNCATION_REJECT ? "reject" : "mark_unsupported";
}

const char *ag_generation_status_name(ag_generation_status status)
{
    static const char *const names[] = {"ok", "unsupported", "invalid"};
    return names[status];
}

ag_sha256 ag_serializer_digest(void)
{
    static const char definition[] =
        AG_SERIALIZER_ID "/" AG_SERIALIZER_VERSION ": the prompt is the first completion_start_char Unicode code points "
                         "of text, tokenized with the tokenizer's special tokens; the expected completion is the rest of text";
    return ag_sha256_bytes(definition, sizeof definition - 1);
}

/* ---- tasks ------------------------------------------------------------------------------------------------------- */
typedef struct {
    ag_task_list *list;
    const ag_task_options *o;
    const char *path;
    ag_tokenizer_scratch *scratch;
    ag_encoding encoding;
    ag_str id;
} loader;

static ag_text keep(ag_arena *arena, const char *text, size_t n) { return (ag_text){ag_arena_strndup(arena, text, n), n}; }

static void refuse(ag_task *t, ag_generation_status status, const char *reason)
{
    t->status = status;
    t->reason = reason;
}

/* The byte at which code point `start` begins; n where the text is shorter. */
static size_t byte_of(const char *text, size_t n, int64_t start)
{
    size_t at = 0;
    while (at < n && start-- > 0) (void)ag_utf8_next(text, n, &at);
    return at;
}

/* Prompt and expected completion, or why the row has none. */
static void serialize(ag_task *t, const json_t *root, ag_arena *arena)
{
    const json_t *text = json_object_get(root, "text"), *boundary = json_object_get(root, "completion_start_char");
    if (!json_is_string(text)) {
        refuse(t, AG_GENERATION_INVALID, "text is missing or no string");
        return;
    }
    const char *bytes = json_string_value(text);
    const size_t n = json_string_length(text);
    if (!json_is_integer(boundary)) {
        refuse(t, AG_GENERATION_INVALID, "completion_start_char is missing or no integer");
        return;
    }
    const int64_t start = json_integer_value(boundary);
    const size_t at = start < 0 ? n : byte_of(bytes, n, start);
    if (at >= n) {
        refuse(t, AG_GENERATION_INVALID, "completion_start_char lies outside the text");
        return;
    }
    t->prompt = keep(arena, bytes, at);
    t->expected = keep(arena, bytes + at, n - at);
    if (at == 0) refuse(t, AG_GENERATION_INVALID, "the prompt is empty");
}

/* The ids of the prompt; what the tokenizer puts behind a text (an EOS) does not belong to a prompt. */
static ag_status encode(loader *l, ag_task *t, ag_err *err)
{
    int32_t before[16], after[16];
    size_t n_before = 0, n_after = 0;
    ag_encoding_clear(&l->encoding);
    AG_TRY(ag_tokenizer_encode(l->o->tokenizer, l->scratch, t->prompt.text, t->prompt.n,
                               &(ag_encode_options){.add_special = true, .ids_only = true}, &l->encoding, err));
    ag_tokenizer_affixes(l->o->tokenizer, before, &n_before, after, &n_after, 16);
    t->n_ids = (int64_t)l->encoding.n - (int64_t)(n_after < l->encoding.n ? n_after : 0);
    t->ids = ag_arena_array(&l->list->arena, (size_t)t->n_ids + 1, sizeof *t->ids);
    memcpy(t->ids, l->encoding.ids, (size_t)t->n_ids * sizeof *t->ids);
    if (t->n_ids == 0) refuse(t, AG_GENERATION_INVALID, "the prompt has no token");
    return AG_OK;
}

static ag_status hold_against_window(loader *l, ag_task *t, ag_err *err)
{
    const ag_task_options *o = l->o;
    if (t->n_ids + o->max_new_tokens <= o->context_window) {
        if (t->n_ids > l->list->longest_prompt) l->list->longest_prompt = t->n_ids;
        return AG_OK;
    }
    if (o->policy == AG_TRUNCATION_REJECT)
        return ag_fail(
            err, AG_E_DATA,
            "task %s: its prompt has %lld tokens and %lld new ones are asked for, the context window is %lld; give a larger "
            "--context-window, or --truncation-policy mark_unsupported",
            t->id, (long long)t->n_ids, (long long)o->max_new_tokens, (long long)o->context_window);
    refuse(t, AG_GENERATION_UNSUPPORTED,
           ag_arena_printf(&l->list->arena,
                           "the prompt has %lld tokens, with %lld new ones it is over the context "
                           "window of %lld",
                           (long long)t->n_ids, (long long)o->max_new_tokens, (long long)o->context_window));
    return AG_OK;
}

static ag_status load_row(loader *l, ag_task *t, const ag_split *split, const char *bytes, const ag_row_line *line, ag_err *err)
{
    json_t *root;
    if (ag_json_parse_exact(&root, bytes + line->start, line->n, l->path, err))
        return ag_err_prefix(err, "line %zu", line->number);
    const json_t *id = json_object_get(root, split->identity.canonical_id_field);
    ag_status status = AG_OK;
    if (!json_is_string(id)) {
        status = ag_fail(err, AG_E_DATA, "%s: line %zu: has no id; freeze the split again", l->path, line->number);
    } else {
        ag_split_id_trim(&l->id, json_string_value(id), json_string_length(id));
        t->id = ag_arena_strndup(&l->list->arena, l->id.text ? l->id.text : "", l->id.n);
        serialize(t, root, &l->list->arena);
        if (t->status == AG_GENERATION_OK) status = encode(l, t, err);
        if (!status && t->status == AG_GENERATION_OK) status = hold_against_window(l, t, err);
    }
    ag_json_free(&root);
    return status;
}

ag_status ag_tasks_load(ag_task_list *out, const ag_split *split, const ag_task_options *options, ag_err *err)
{
    const ag_split_part *part = &split->part[AG_SPLIT_HELD_OUT];
    ag_rows *rows;
    *out = (ag_task_list){0};
    AG_TRY(ag_rows_open(&rows, part->path, err));
    loader l = {.list = out, .o = options, .path = part->path, .scratch = ag_tokenizer_scratch_create()};
    ag_status status = AG_OK;
    if (strcmp(ag_sha256_bytes(rows->map.bytes, rows->map.n).hex, part->sha256.hex) != 0)
        status =
            ag_fail(err, AG_E_DATA, "%s: changed since it was validated; start again when nobody writes to it", part->path);
    out->task = ag_arena_array(&out->arena, rows->n, sizeof *out->task);
    for (; out->n < rows->n && !status; out->n++)
        status = load_row(&l, &out->task[out->n], split, rows->bytes, &rows->line[out->n], err);
    ag_tokenizer_scratch_free(&l.scratch);
    ag_encoding_free(&l.encoding);
    ag_str_free(&l.id);
    ag_rows_close(&rows);
    return status;
}

void ag_tasks_free(ag_task_list *tasks)
{
    ag_arena_free(&tasks->arena);
    *tasks = (ag_task_list){0};
}

/* ---- generations ------------------------------------------------------------------------------------------------- */
ag_generation ag_generation_of_refused(const ag_task *t)
{
    return (ag_generation){.task_id = t->id,
                           .prompt = t->prompt,
                           .expected = t->expected,
                           .n_prompt = t->status == AG_GENERATION_UNSUPPORTED ? t->n_ids : -1,
                           .n_completion = -1,
                           .status = t->status,
                           .reason = t->reason};
}

static void write_count(ag_json_writer *w, const char *key, int64_t n)
{
    if (n < 0)
        ag_jw_null(w, key);
    else
        ag_jw_int(w, key, n);
}

void ag_generation_write(ag_str *out, const ag_generation *g)
{
    ag_json_writer w = {.out = out, .indent = -1};
    ag_jw_object(&w, NULL);
    ag_jw_string_n(&w, "completion", g->completion.text, g->completion.n);
    write_count(&w, "completion_token_count", g->n_completion);
    ag_jw_string_n(&w, "expected_completion", g->expected.text, g->expected.n);
    ag_jw_string_n(&w, "prompt", g->prompt.text, g->prompt.n);
    write_count(&w, "prompt_token_count", g->n_prompt);
    ag_jw_string_n(&w, "raw_text", g->raw_text.text, g->raw_text.n);
    ag_jw_string(&w, "reason", g->reason);
    ag_jw_string(&w, "status", ag_generation_status_name(g->status));
    ag_jw_string(&w, "task_id", g->task_id);
    ag_jw_end(&w);
}

static ag_text read_text(const json_t *row, const char *key, ag_arena *arena)
{
    const json_t *value = json_object_get(row, key);
    return json_is_string(value) ? keep(arena, json_string_value(value), json_string_length(value)) : (ag_text){0};
}

static bool same(ag_text a, ag_text b)
{
    return !a.text == !b.text && a.n == b.n && (a.n == 0 || memcmp(a.text, b.text, a.n) == 0);
}

ag_status ag_generation_read(ag_generation *out, const json_t *row, const ag_task *task, const char *name, ag_arena *arena,
                             ag_err *err)
{
    const char *id = json_string_value(json_object_get(row, "task_id")),
               *status = json_string_value(json_object_get(row, "status"));
    *out = (ag_generation){
        .task_id = task->id, .n_prompt = -1, .n_completion = -1, .status = task->status, .reason = task->reason};
    out->prompt = read_text(row, "prompt", arena);
    out->expected = read_text(row, "expected_completion", arena);
    out->raw_text = read_text(row, "raw_text", arena);
    out->completion = read_text(row, "completion", arena);
    AG_TRY(ag_json_get_int(row, "prompt_token_count", 0, INT64_MAX, &out->n_prompt, name, err));
    AG_TRY(ag_json_get_int(row, "completion_token_count", 0, INT64_MAX, &out->n_completion, name, err));
    if (id && strcmp(id, task->id) == 0 && status && strcmp(status, ag_generation_status_name(task->status)) == 0 &&
        same(out->prompt, task->prompt) && same(out->expected, task->expected))
        return AG_OK;
    return ag_fail(err, AG_E_DATA, "%s: the generation of %s is not of this split and tokenizer; evaluate again", name,
                   task->id);
}
