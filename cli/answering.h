/* One answer as text: generation with stop words, special tokens left out, streamed as whole characters. Shared by generate and chat. */
#ifndef AGOGE_CLI_ANSWERING_H
#define AGOGE_CLI_ANSWERING_H

#include "cli/session.h"
#include "model/generate.h"

typedef struct {
    int64_t max_new_tokens, top_k, seed;
    double temperature, top_p, min_p, repeat_penalty;
    cli_list stops;
} cli_sampling_options;
#define CLI_SAMPLING_DEFAULT {.max_new_tokens = 256, .top_p = 1, .repeat_penalty = 1}
#define CLI_SAMPLING(type, field)                                                                                                 \
    CLI_INT("max-new-tokens", type, field.max_new_tokens, "N", "stop after N new tokens (default 256)", 1, 1 << 24),              \
    CLI_DOUBLE("temperature", type, field.temperature, "T", "0 is greedy (default)"),                                             \
    CLI_INT("top-k", type, field.top_k, "K", "choose among the K likeliest (default 0: all)", 0, INT32_MAX),                      \
    CLI_DOUBLE("top-p", type, field.top_p, "P", "choose among the likeliest that make up P (default 1: all)"),                    \
    CLI_DOUBLE("min-p", type, field.min_p, "P", "leave out what is below P times the likeliest (default 0)"),                     \
    CLI_DOUBLE("repeat-penalty", type, field.repeat_penalty, "R", "make repetition less likely (default 1: not)"),                \
    CLI_INT("seed", type, field.seed, "S", "of the random choice (default 0)", 0, INT64_MAX),                                     \
    CLI_REPEATED("stop", type, field.stops, "TEXT", "end the answer in front of TEXT")

/* Called with each piece of text as soon as it is certain; false ends the answer. */
typedef bool cli_piece_fn(void *user, const char *text, size_t n);

typedef struct {
    ag_decoder *decoder;
    ag_kv_cache *cache;
    int32_t *cached;     /* ids that the cache holds, [capacity] */
    int64_t n_cached, capacity;
} cli_answerer;
/* Room for `capacity` tokens in all. */
AG_MUST_USE ag_status cli_answerer_open(cli_answerer *a, const cli_session *s, int64_t capacity, ag_err *err);
void cli_answerer_close(cli_answerer *a);

typedef struct {
    ag_str text;     /* of the answer, without special tokens and stop text */
    int32_t *ids;    /* [stats.n_new] */
    const char *finish; /* "stop", "length" or "interrupted" */
    ag_generate_result stats;
} cli_answer;
/* What the cache still holds of an earlier call and the prompt begins with is not computed again. */
AG_MUST_USE ag_status cli_answer_prompt(cli_answer *out, cli_answerer *a, const cli_session *s, const cli_sampling_options *sampling,
                                        const int32_t *prompt, int64_t n_prompt, cli_piece_fn *on_piece, void *user, ag_err *err);
void cli_answer_free(cli_answer *answer);

#endif
