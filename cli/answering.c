#include "cli/answering.h"

#include <stdlib.h>
#include <string.h>

ag_status cli_answerer_open(cli_answerer *a, const cli_session *s, int64_t capacity, ag_err *err)
{
    *a = (cli_answerer){.capacity = capacity};
    const int64_t rows = capacity < AG_PREFILL_ROWS ? capacity : AG_PREFILL_ROWS;
    AG_TRY(cli_session_decoder(&a->decoder, s, rows, 1, capacity, err));
    ag_status status = ag_kv_cache_create(&a->cache, s->model, 1, capacity, err);
    if (status) {
        cli_answerer_close(a);
        return status;
    }
    a->cached = malloc((size_t)capacity * sizeof *a->cached);
    if (!a->cached) ag_out_of_memory((size_t)capacity * sizeof *a->cached);
    return AG_OK;
}

void cli_answerer_close(cli_answerer *a)
{
    ag_kv_cache_free(&a->cache);
    ag_decoder_free(&a->decoder);
    free(a->cached);
    *a = (cli_answerer){0};
}

/* ---- text of the answer as it comes ------------------------------------------------------------------------------------ */
typedef struct {
    ag_decode_stream stream;
    ag_str *text;      /* all so far */
    size_t n_out;      /* bytes that were handed on */
    const cli_list *stops;
    bool stopped;      /* a stop text is there; *text was cut in front of it */
    bool interrupted;  /* the receiver wants no more */
    cli_piece_fn *on_piece;
    void *user;
} streamer;

static const char *find(const char *text, size_t n, const char *what, size_t n_what)
{
    for (size_t i = 0; n_what > 0 && i + n_what <= n; i++)
        if (memcmp(text + i, what, n_what) == 0) return text + i;
    return NULL;
}

/* Bytes at the end of the text that could still become a stop text. */
static size_t held_back(const streamer *s)
{
    size_t most = 0;
    for (int i = 0; i < s->stops->n; i++) {
        const char *stop = s->stops->items[i];
        const size_t n_stop = strlen(stop);
        for (size_t n = n_stop > 0 ? n_stop - 1 : 0; n > most; n--)
            if (n <= s->text->n && memcmp(s->text->text + s->text->n - n, stop, n) == 0) most = n;
    }
    return most;
}

static void hand_on(streamer *s, bool is_last)
{
    for (int i = 0; i < s->stops->n && !s->stopped; i++) {
        const char *at = s->text->n ? find(s->text->text, s->text->n, s->stops->items[i], strlen(s->stops->items[i])) : NULL;
        if (!at) continue;
        s->text->n = (size_t)(at - s->text->text);
        s->text->text[s->text->n] = 0;
        s->stopped = true;
    }
    const size_t until = s->text->n - (is_last || s->stopped ? 0 : held_back(s));
    if (until > s->n_out && s->on_piece && !s->on_piece(s->user, s->text->text + s->n_out, until - s->n_out)) s->interrupted = true;
    if (until > s->n_out) s->n_out = until;
}

static bool on_token(void *user, int32_t id)
{
    streamer *s = user;
    ag_decode_stream_add(&s->stream, id, s->text);
    hand_on(s, false);
    return !s->stopped && !s->interrupted;
}

/* ---- an answer ----------------------------------------------------------------------------------------------------------- */
static int64_t common_start(const cli_answerer *a, const int32_t *prompt, int64_t n_prompt)
{
    int64_t n = 0;
    while (n < n_prompt && n < a->n_cached && a->cached[n] == prompt[n]) n++;
    return n;
}

ag_status cli_answer_prompt(cli_answer *out, cli_answerer *a, const cli_session *s, const cli_sampling_options *o,
                            const int32_t *prompt, int64_t n_prompt, cli_piece_fn *on_piece, void *user, ag_err *err)
{
    *out = (cli_answer){.ids = malloc((size_t)o->max_new_tokens * sizeof *out->ids)};
    if (!out->ids) ag_out_of_memory((size_t)o->max_new_tokens * sizeof *out->ids);
    streamer str = {.stream = {.tokenizer = s->text->tokenizer, .skip_special = true}, .text = &out->text, .stops = &o->stops,
                    .on_piece = on_piece, .user = user};
    const ag_generate_options options = {
        .sampling = {.temperature = (float)o->temperature, .top_k = o->top_k, .top_p = (float)o->top_p, .min_p = (float)o->min_p,
                     .repeat_penalty = (float)o->repeat_penalty, .seed = (uint64_t)o->seed},
        .max_new_tokens = o->max_new_tokens, .on_token = on_token, .user = &str};
    ag_status status = ag_generate(a->decoder, a->cache, prompt, n_prompt, common_start(a, prompt, n_prompt), &options, out->ids,
                                   &out->stats, err);
    ag_decode_stream_end(&str.stream, &out->text);
    if (!str.stopped) hand_on(&str, true);
    a->n_cached = 0;
    if (status) return status;

    a->n_cached = ag_kv_cache_length(a->cache, 0);
    for (int64_t i = 0; i < a->n_cached; i++) a->cached[i] = i < n_prompt ? prompt[i] : out->ids[i - n_prompt];
    out->finish = str.interrupted ? "interrupted" : out->stats.finish == AG_FINISH_LENGTH ? "length" : "stop";
    return AG_OK;
}

void cli_answer_free(cli_answer *answer)
{
    ag_str_free(&answer->text);
    free(answer->ids);
    *answer = (cli_answer){0};
}
