#include "support/model_golden.h"

#include "support/op_check.h"
#include "support/unit_test.h"

#include <math.h>

enum { MAX_ROWS = 8, MAX_TOKENS = 512 };

typedef struct {
    int64_t T;
    int32_t ids[MAX_TOKENS], targets[MAX_TOKENS], positions[MAX_TOKENS];
    const float *logits; /* [T,V] */
} row;

static ag_err err;

static row load_row(const golden *rows, const golden *want, int i, int64_t V)
{
    char name[32];
    row r = {0};
    snprintf(name, sizeof name, "ids_%d", i);
    r.T = golden_n(rows, name);
    assert_true(r.T > 1 && r.T <= MAX_TOKENS);
    const int64_t *ids = golden_get(rows, name, "I64", r.T);
    snprintf(name, sizeof name, "labels_%d", i);
    const int64_t *labels = golden_get(rows, name, "I64", r.T);
    for (int64_t t = 0; t < r.T; t++) {
        r.ids[t] = (int32_t)ids[t];
        r.positions[t] = (int32_t)t;
        r.targets[t] = t + 1 < r.T && labels[t + 1] >= 0 ? (int32_t)labels[t + 1] : -1;
    }
    snprintf(name, sizeof name, "logits_%d", i);
    r.logits = golden_get(want, name, "F32", r.T * V);
    return r;
}

static double distance(const float *got, const float *want, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        assert_true(isfinite(got[i]));
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
    }
    return worst;
}

static void infer(ag_decoder *dec, ag_kv_cache *cache, const row *r, int64_t from, int64_t n, float *logits)
{
    must(ag_decoder_infer(dec, cache, &(ag_decoder_run){.slot = 0, .n_new = n}, 1, r->ids + from, logits, &err));
}

/* The cache follows the length of the whole row, so what was decoded is what a forward pass over the row gives. */
static void compare_inference(model_difference *d, ag_decoder *dec, ag_kv_cache *cache, const row *r, int64_t V)
{
    float *got = malloc((size_t)V * sizeof *got);
    const float *last = r->logits + (r->T - 1) * V;
    ag_kv_cache_expect(cache, 0, r->T);
    ag_kv_cache_truncate(cache, 0, 0);
    for (int64_t t = 0; t < r->T; t++) {
        infer(dec, cache, r, t, 1, got);
        d->decoded = fmax(d->decoded, distance(got, r->logits + t * V, V));
    }
    ag_kv_cache_truncate(cache, 0, 0);
    infer(dec, cache, r, 0, r->T, got);
    d->prefilled = fmax(d->prefilled, distance(got, last, V));
    ag_kv_cache_truncate(cache, 0, r->T / 2);
    infer(dec, cache, r, r->T / 2, r->T - r->T / 2, got);
    d->prefilled = fmax(d->prefilled, distance(got, last, V));
    for (int64_t i = 0; i < r->T * V; i++) d->largest = fmax(d->largest, fabs((double)r->logits[i]));
    free(got);
}

static double cross_entropy(const float *logits, int64_t V, int32_t target)
{
    double sum = 0, top = -INFINITY;
    for (int64_t v = 0; v < V; v++) top = fmax(top, (double)logits[v]);
    for (int64_t v = 0; v < V; v++) sum += exp((double)logits[v] - top);
    return log(sum) + top - (double)logits[target];
}

static void compare_loss(model_difference *d, ag_decoder *dec, const row *r, int64_t V)
{
    float nll[MAX_TOKENS];
    const ag_attention_span span = {0, r->T, 0, r->T};
    must(ag_decoder_score(
        dec,
        &(ag_decoder_batch){
            .T = r->T, .ids = r->ids, .positions = r->positions, .targets = r->targets, .spans = &span, .n_spans = 1},
        nll, NULL, &err));
    double got = 0, want = 0;
    int64_t n = 0;
    for (int64_t t = 0; t < r->T; t++) {
        if (r->targets[t] < 0) continue;
        got += (double)nll[n++];
        want += cross_entropy(r->logits + t * V, V, r->targets[t]);
    }
    if (n > 0) d->loss = fmax(d->loss, fabs(got - want) / (double)n);
}

/* loss = Σ / targets of all rows. In one batch, or row by row where rows would be rotated by the longest of them. */
static void run_backward(const ag_decoder_options *options, const row *rows, int n_rows, int64_t n_all_targets)
{
    static int32_t ids[MAX_TOKENS], positions[MAX_TOKENS], targets[MAX_TOKENS];
    ag_attention_span spans[MAX_ROWS];
    ag_decoder_batch batch = {.ids = ids, .positions = positions, .targets = targets, .spans = spans, .n_spans = n_rows};
    int64_t n_targets = 0, n;
    for (int i = 0; i < n_rows; i++) {
        assert_true(batch.T + rows[i].T <= MAX_TOKENS);
        memcpy(ids + batch.T, rows[i].ids, (size_t)rows[i].T * sizeof *ids);
        memcpy(positions + batch.T, rows[i].positions, (size_t)rows[i].T * sizeof *positions);
        memcpy(targets + batch.T, rows[i].targets, (size_t)rows[i].T * sizeof *targets);
        for (int64_t t = 0; t < rows[i].T; t++) n_targets += rows[i].targets[t] >= 0;
        spans[i] = (ag_attention_span){batch.T, rows[i].T, batch.T, rows[i].T};
        batch.T += rows[i].T;
    }
    ag_decoder *dec;
    ag_decoder_options o = *options;
    double loss;
    o.train = o.recompute = true;
    must(ag_decoder_create(&dec, &o, &err));
    must(ag_decoder_train(dec, &batch, 1.0 / (double)n_all_targets, 0, &loss, &n, &err));
    assert_int_equal(n_targets, n);
    ag_decoder_free(&dec);
}

static void compare_tensor(model_difference *d, const golden *want, const ag_trained *t, const float *got)
{
    char tensor[AG_ADAPTER_NAME_MAX], name[AG_ADAPTER_NAME_MAX + 8];
    const int64_t n = (int64_t)t->n;
    ag_adapter_trained_name(tensor, t);
    snprintf(name, sizeof name, "grad.%s", tensor);
    const float *numbers = golden_get(want, name, "F32", n);
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)numbers[i]));
    assert_true(largest > 0);
    d->gradient = fmax(d->gradient, distance(got, numbers, n) / largest);
}

static void compare_gradients(model_difference *d, const ag_decoder_options *options, ag_adapter *adapter, const row *rows,
                              int n_rows, const golden *want)
{
    char tensor[AG_ADAPTER_NAME_MAX], name[AG_ADAPTER_NAME_MAX + 8];
    ag_adapter_trained_name(tensor, &adapter->trained[0]);
    snprintf(name, sizeof name, "grad.%s", tensor);
    if (!golden_has(want, name)) return;
    float *params = adapter->params, *grads = calloc(adapter->n_params, sizeof *grads);
    assert_non_null(grads);
    ag_adapter_bind(adapter, params, grads);
    int64_t n_targets = 0, age = 0;
    bool same_age = true;
    for (int i = 0; i < n_rows; i++) {
        for (int64_t t = 0; t < rows[i].T; t++) n_targets += rows[i].targets[t] >= 0;
        const int64_t own = ag_rope_age(&options->model->d, rows[i].T);
        same_age = same_age && (i == 0 || own == age);
        age = own;
    }
    for (int i = 0; !same_age && i < n_rows; i++) run_backward(options, rows + i, 1, n_targets);
    if (same_age) run_backward(options, rows, n_rows, n_targets);
    for (size_t i = 0; i < adapter->n_trained; i++)
        compare_tensor(d, want, &adapter->trained[i], grads + adapter->trained[i].at);
    ag_adapter_bind(adapter, params, NULL);
    free(grads);
}

model_difference model_compare(const ag_model *m, ag_adapter *adapter, const golden *rows, const golden *want,
                               ag_cpu_level level)
{
    static row all[MAX_ROWS];
    model_difference d = {0};
    int n_rows = 0;
    char name[32];
    for (; n_rows < MAX_ROWS; n_rows++) {
        snprintf(name, sizeof name, "ids_%d", n_rows);
        if (!golden_has(rows, name)) break;
        all[n_rows] = load_row(rows, want, n_rows, m->d.V);
    }
    assert_true(n_rows > 0);
    const ag_backend be = check_backend(level, 2);
    ag_decoder_options options = {
        .model = m, .backend = &be, .max_tokens = MAX_TOKENS, .max_positions = MAX_TOKENS, .longest_span = MAX_TOKENS};
    if (adapter) ag_adapter_use(&options, adapter);
    ag_decoder *dec;
    ag_kv_cache *cache;
    must(ag_decoder_create(&dec, &options, &err));
    must(ag_kv_cache_create(&cache, m, 1, MAX_TOKENS, &err));
    for (int i = 0; i < n_rows; i++) {
        compare_inference(&d, dec, cache, &all[i], m->d.V);
        compare_loss(&d, dec, &all[i], m->d.V);
    }
    ag_kv_cache_free(&cache);
    ag_decoder_free(&dec);
    if (adapter) compare_gradients(&d, &options, adapter, all, n_rows, want);
    return d;
}
