#include "train/samples.h"

#include "model/generate.h"

#include <stdlib.h>
#include <string.h>

enum { PREFILL_ROWS = 64, MOST_PROMPT_TOKENS = 2048 };

struct ag_samples {
    const ag_train_job *job;
    ag_decoder *decoder;
    ag_kv_cache *cache;
    ag_encoding *prompts; /* [n] */
    int32_t *ids;         /* of an answer */
    ag_str *texts;        /* [n] */
    const char **views;   /* [n] of texts */
    size_t n;
    ag_arena arena;
};

static int64_t capacity_of(const ag_train_config *c, int64_t longest_prompt) { return longest_prompt + c->eval_prompt_tokens; }

static ag_decoder_options options_of(const ag_train_job *job, int64_t capacity)
{
    return (ag_decoder_options){.model = job->model, .backend = job->backend, .compute = job->decoder.compute, .max_tokens = PREFILL_ROWS, .max_targets = 1,
                                .max_positions = capacity, .longest_span = capacity};
}

static ag_status render(ag_str *out, const ag_train_job *job, const char *prompt, ag_err *err)
{
    if (!job->chat.render) {
        ag_str_add(out, prompt);
        return AG_OK;
    }
    json_t *messages = json_pack("[{ss ss}]", "role", "user", "content", prompt);
    if (!messages) return ag_fail(err, AG_E_DATA, "a prompt of eval_prompts is no valid UTF-8");
    ag_range_list marks = {0};
    ag_status status = job->chat.render(job->chat.user, messages, NULL, true, out, &marks, err);
    ag_range_list_free(&marks);
    json_decref(messages);
    return status;
}

static ag_status encode(ag_encoding *e, const ag_train_job *job, const char *prompt, ag_tokenizer_scratch *scratch, ag_err *err)
{
    ag_str text = {0};
    ag_status status = render(&text, job, prompt, err);
    if (!status)
        status = ag_tokenizer_encode(job->text->tokenizer, scratch, text.text ? text.text : "", text.n,
                                     &(ag_encode_options){.add_special = !job->chat.render, .ids_only = true}, e, err);
    ag_str_free(&text);
    /* A post-processor ends plain text with what ends a sequence; an answer goes on from the text. */
    while (!status && e->n > 1 && !job->chat.render && e->ids[e->n - 1] == job->model->d.eos_id) e->n--;
    if (!status && (e->n == 0 || e->n > MOST_PROMPT_TOKENS))
        status = ag_fail(err, AG_E_DATA, "a prompt of eval_prompts has %zu tokens; 1 to %d are answered: \"%.60s\"", e->n, MOST_PROMPT_TOKENS, prompt);
    return status;
}

size_t ag_samples_bytes(const ag_train_job *job)
{
    if (job->config->eval_prompts.n == 0) return 0;
    /* Of the longest prompts that are answered; those of the config are not tokenized for a plan. */
    const int64_t capacity = capacity_of(job->config, PREFILL_ROWS);
    ag_decoder_options o = options_of(job, capacity);
    ag_adapter_use(&o, &job->adapter);
    ag_decoder_bytes bytes;
    ag_decoder_plan(&bytes, &o);
    return bytes.activations + bytes.workspace + ag_kv_cache_bytes(job->model, 1, capacity);
}

static ag_status open_samples(ag_samples *s, const ag_adapter *adapter, ag_err *err)
{
    const ag_train_config *c = s->job->config;
    ag_tokenizer_scratch *scratch = ag_tokenizer_scratch_create();
    int64_t longest = 0;
    ag_status status = AG_OK;
    for (size_t i = 0; i < s->n && !status; i++) {
        status = encode(&s->prompts[i], s->job, c->eval_prompts.item[i], scratch, err);
        if ((int64_t)s->prompts[i].n > longest) longest = (int64_t)s->prompts[i].n;
    }
    ag_tokenizer_scratch_free(&scratch);
    AG_TRY(status);
    ag_decoder_options o = options_of(s->job, capacity_of(c, longest));
    ag_adapter_use(&o, adapter);
    o.grads = NULL; /* nothing is trained here */
    AG_TRY(ag_decoder_create(&s->decoder, &o, err));
    return ag_kv_cache_create(&s->cache, o.model, 1, capacity_of(c, longest), err);
}

ag_status ag_samples_open(ag_samples **out, const ag_train_job *job, const ag_adapter *adapter, ag_err *err)
{
    ag_samples *s = calloc(1, sizeof *s);
    if (!s) ag_out_of_memory(sizeof *s);
    *out = s;
    s->job = job;
    s->n = job->config->eval_prompts.n;
    s->prompts = ag_arena_array(&s->arena, s->n, sizeof *s->prompts);
    s->texts = ag_arena_array(&s->arena, s->n, sizeof *s->texts);
    s->views = ag_arena_array(&s->arena, s->n, sizeof *s->views);
    s->ids = ag_arena_array(&s->arena, (size_t)job->config->eval_prompt_tokens, sizeof *s->ids);
    const ag_status status = open_samples(s, adapter, err);
    if (status) ag_samples_close(out);
    return status;
}

void ag_samples_close(ag_samples **samples)
{
    ag_samples *s = *samples;
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) {
        ag_encoding_free(&s->prompts[i]);
        ag_str_free(&s->texts[i]);
    }
    ag_decoder_free(&s->decoder);
    ag_kv_cache_free(&s->cache);
    ag_arena_free(&s->arena);
    free(s);
    *samples = NULL;
}

ag_status ag_samples_answer(ag_samples *s, ag_err *err)
{
    ag_decoder_refresh(s->decoder);
    for (size_t i = 0; i < s->n; i++) {
        ag_generate_result result;
        const ag_generate_options o = {.sampling = ag_sampling_greedy(), .max_new_tokens = s->job->config->eval_prompt_tokens};
        ag_kv_cache_truncate(s->cache, 0, 0);
        AG_TRY(ag_generate(s->decoder, s->cache, s->prompts[i].ids, (int64_t)s->prompts[i].n, 0, &o, s->ids, &result, err));
        ag_str_clear(&s->texts[i]);
        ag_str_add(&s->texts[i], "");
        ag_tokenizer_decode(s->job->text->tokenizer, s->ids, (size_t)result.n_new, true, &s->texts[i]);
        s->views[i] = s->texts[i].text ? s->texts[i].text : "";
    }
    return AG_OK;
}

const char *const *ag_samples_texts(const ag_samples *s) { return s->views; }
