/* What an evaluation asks and what it gets: tasks, made from the held-out rows, and one generation a task. */
#ifndef AG_GENERATION_H
#define AG_GENERATION_H

#include "base/arena.h"
#include "base/json.h"
#include "data/split.h"
#include "text/tokenizer.h"

/* Over the window: MARK gives the task the status unsupported, REJECT ends the evaluation. */
typedef enum { AG_TRUNCATION_MARK, AG_TRUNCATION_REJECT } ag_truncation_policy;
const char *ag_truncation_policy_name(ag_truncation_policy policy); /* "mark_unsupported", "reject" */

typedef enum { AG_GENERATION_OK, AG_GENERATION_UNSUPPORTED, AG_GENERATION_INVALID } ag_generation_status;
const char *ag_generation_status_name(ag_generation_status status); /* "ok" … */

/* code-repair-prompt-v1: the prompt is the first completion_start_char code points of the row's text, the expected completion
 * is the rest. */
#define AG_SERIALIZER_ID      "code-repair-prompt-v1"
#define AG_SERIALIZER_VERSION "1"
ag_sha256 ag_serializer_digest(void); /* of the sentence that defines it */

typedef struct {
    const char *id;
    ag_text prompt, expected; /* NULL where the row has none */
    int32_t *ids;             /* of the prompt, as `agoge generate --prompt` makes them */
    int64_t n_ids;
    ag_generation_status status; /* AG_GENERATION_OK: to be generated */
    const char *reason;          /* of another status, else NULL */
} ag_task;

typedef struct {
    ag_task *task;
    size_t n;
    int64_t longest_prompt; /* of those to be generated */
    ag_arena arena;
} ag_task_list;

typedef struct {
    const ag_tokenizer *tokenizer;
    int64_t context_window, max_new_tokens; /* prompt and new tokens together must fit the window */
    ag_truncation_policy policy;
} ag_task_options;

/* The held-out rows in their order. AG_E_DATA where the file is not the split's any more, or a prompt is over the window and
 * the policy rejects (task, count and window are named). The caller frees in any case. */
AG_MUST_USE ag_status ag_tasks_load(ag_task_list *out, const ag_split *split, const ag_task_options *options, ag_err *err);
void ag_tasks_free(ag_task_list *tasks);

/* One row of generations.jsonl. */
typedef struct {
    const char *task_id;
    ag_text prompt, expected, raw_text, completion; /* NULL writes null */
    int64_t n_prompt, n_completion;                 /* -1 writes null */
    ag_generation_status status;
    const char *reason;
} ag_generation;

/* The generation of a task that is not generated. */
ag_generation ag_generation_of_refused(const ag_task *task);
/* Canonical JSON, without a newline; and back, texts in the arena. Reading checks that the row is the task's. */
void ag_generation_write(ag_str *out, const ag_generation *g);
AG_MUST_USE ag_status ag_generation_read(ag_generation *out, const json_t *row, const ag_task *task, const char *name,
                                         ag_arena *arena, ag_err *err);

#endif
