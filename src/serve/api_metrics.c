/* Counters in the text form of Prometheus. */
#include "serve/api_internal.h"

#include "base/clock.h"

static const double bounds[AG_API_BUCKETS] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};

void ag_api_count(ag_api_server *s, int status)
{
    pthread_mutex_lock(&s->lock);
    if (status == 499) s->gone++;
    else s->by_status[status >= 100 && status < 600 ? status / 100 : 0]++;
    pthread_mutex_unlock(&s->lock);
}

void ag_api_observe(ag_api_server *s, ag_api_histogram *h, double seconds)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < AG_API_BUCKETS; i++) h->below[i] += seconds <= bounds[i];
    h->n++;
    h->sum += seconds;
    pthread_mutex_unlock(&s->lock);
}

static void head(ag_str *out, const char *name, const char *type, const char *help) { ag_str_printf(out, "# HELP agoge_%s %s\n# TYPE agoge_%s %s\n", name, help, name, type); }

static void counter(ag_str *out, const char *name, const char *help, uint64_t value)
{
    head(out, name, "counter", help);
    ag_str_printf(out, "agoge_%s %llu\n", name, (unsigned long long)value);
}

static void gauge(ag_str *out, const char *name, const char *help, double value)
{
    head(out, name, "gauge", help);
    ag_str_printf(out, "agoge_%s %.17g\n", name, value);
}

static void seconds(ag_str *out, const char *name, const char *help, double value)
{
    head(out, name, "counter", help);
    ag_str_printf(out, "agoge_%s %.9f\n", name, value);
}

static void histogram(ag_str *out, const char *name, const char *help, const ag_api_histogram *h)
{
    head(out, name, "histogram", help);
    for (int i = 0; i < AG_API_BUCKETS; i++) ag_str_printf(out, "agoge_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)h->below[i]);
    ag_str_printf(out, "agoge_%s_bucket{le=\"+Inf\"} %llu\nagoge_%s_sum %.9f\nagoge_%s_count %llu\n", name, (unsigned long long)h->n, name, h->sum,
                  name, (unsigned long long)h->n);
}

void ag_api_metrics_write(ag_api_server *s, ag_str *out)
{
    static const char *const ends[] = {"stop", "length", "stop_text", "cancelled", "stopping", "failed"};
    ag_batcher_stats e;
    ag_batcher_read_stats(s->engine, &e);
    head(out, "build_info", "gauge", "The program's version.");
    ag_str_printf(out, "agoge_build_info{version=\"%s\"} 1\n", s->o.version);
    gauge(out, "requests_running", "Answers that are computed now.", (double)e.n_running);
    gauge(out, "requests_waiting", "Answers that wait for a slot.", (double)e.n_waiting);
    gauge(out, "connections", "Open connections.", (double)ag_http_server_connections(s->http));
    counter(out, "prompt_tokens_total", "Tokens of prompts, reused ones included.", e.prompt_tokens);
    counter(out, "prompt_tokens_reused_total", "Tokens of prompts whose keys and values were there already.", e.reused_tokens);
    counter(out, "generated_tokens_total", "Tokens of answers.", e.new_tokens);
    counter(out, "prefix_queries_total", "Prompts that were looked up in the prefix cache.", e.prefix_queries);
    counter(out, "prefix_hits_total", "Prompts of which a beginning was found there.", e.prefix_hits);
    counter(out, "decode_steps_total", "Steps that computed one token of each running answer.", e.steps);
    counter(out, "decode_step_tokens_total", "Tokens in those steps.", e.step_tokens);
    seconds(out, "prefill_seconds_total", "Time spent on prompts.", (double)e.prefill_ns * 1e-9);
    seconds(out, "decode_seconds_total", "Time spent on answers.", (double)e.decode_ns * 1e-9);
    gauge(out, "cache_tokens", "Tokens whose keys and values can be used again; renewed when nothing runs.", (double)e.kv_tokens);
    gauge(out, "cache_capacity_tokens", "Room for tokens in the cache of keys and values.", (double)e.kv_capacity);
    head(out, "answers_total", "counter", "Answers by how they ended.");
    for (int i = 0; i <= AG_END_FAILED; i++) ag_str_printf(out, "agoge_answers_total{end=\"%s\"} %llu\n", ends[i], (unsigned long long)e.ended[i]);
    pthread_mutex_lock(&s->lock);
    head(out, "http_responses_total", "counter", "Responses by class of status.");
    for (int i = 1; i < 6; i++) ag_str_printf(out, "agoge_http_responses_total{code=\"%dxx\"} %llu\n", i, (unsigned long long)s->by_status[i]);
    counter(out, "clients_gone_total", "Requests whose client did not wait for the answer.", s->gone);
    histogram(out, "time_to_first_token_seconds", "From a request to the first token of its answer.", &s->first_token);
    histogram(out, "request_seconds", "From a request to the end of its answer.", &s->whole);
    pthread_mutex_unlock(&s->lock);
    gauge(out, "resident_memory_peak_bytes", "Most memory that the process had.", (double)ag_process_peak_rss());
}
