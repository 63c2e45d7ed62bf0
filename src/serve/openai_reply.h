/* Answers in the protocol's JSON: whole ones, pieces of a stream, errors. Everything is appended to an ag_str. */
#ifndef AG_OPENAI_REPLY_H
#define AG_OPENAI_REPLY_H

#include "base/json.h"
#include "serve/batcher.h"
#include "serve/tool_calls.h"
#include "text/tokenizer.h"

/* {"error": {"message", "type", "param": null, "code"}} as the status wants them. */
void ag_api_error_write(ag_str *out, int status, const char *code, const char *sentence);
const char *ag_api_error_type(int status);

typedef struct {
    int32_t id;
    float logprob;
    int n_top;
    ag_batcher_top top[AG_BATCHER_MAX_TOP];
    size_t offset; /* of its text in the answer */
} ag_api_logprob;

/* What is the same in every piece of one call. */
typedef struct {
    bool is_chat;
    char id[48];
    int64_t created;
    const char *model;
    const ag_tokenizer *tokenizer;
} ag_api_head;
void ag_api_head_init(ag_api_head *head, bool is_chat, const char *model, const ag_tokenizer *tokenizer);

typedef struct {
    const char *text;               /* new text; NULL: none */
    size_t n;
    bool is_first;                  /* chat: the role goes with it */
    const ag_api_logprob *logprobs; /* NULL: none are wanted */
    size_t n_logprobs;
    const ag_tool_calls *calls;     /* NULL: none */
    uint64_t call_ids;              /* number from which the calls' ids are made */
    const char *finish;             /* NULL: goes on */
} ag_api_piece;

/* One choice inside "choices": "message" or "delta" by `streams`. */
void ag_api_choice_write(ag_json_writer *w, const ag_api_head *head, int64_t index, const ag_api_piece *piece, bool streams);
void ag_api_usage_write(ag_json_writer *w, int64_t prompt, int64_t completion, int64_t cached);

/* Opens {"id": …, "choices": [ ; the caller writes choices, ends the list, may add usage, ends the object. */
void ag_api_begin(ag_json_writer *w, const ag_api_head *head, bool streams);
/* A whole event with one choice. */
void ag_api_event_write(ag_str *out, const ag_api_head *head, int64_t index, const ag_api_piece *piece, bool usage_follows);

#endif
