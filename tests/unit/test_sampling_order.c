/* The choice of the next token against the plain way: sort everything, cut, draw. */
#include "base/rng.h"
#include "model/sampling.h"
#include "support/unit_test.h"

#include <math.h>

enum { V = 700, N_DRAWS = 60 };

typedef struct {
    float logit;
    int32_t id;
} pair;

static int by_logit(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int32_t plain(const float *logits, const ag_sampling *s, uint64_t index)
{
    pair c[V];
    for (int32_t v = 0; v < V; v++) c[v] = (pair){logits[v] / s->temperature, v};
    qsort(c, V, sizeof *c, by_logit);
    int n = s->top_k > 0 && s->top_k < V ? (int)s->top_k : V;
    double w[V], sum = 0, part = 0;
    for (int i = 0; i < V; i++) w[i] = exp((double)c[i].logit - (double)c[0].logit);
    for (int i = 0; i < n; i++) sum += w[i];
    if (s->top_p < 1) {
        int i = 0;
        while (i < n && part < (double)s->top_p * sum) part += w[i++];
        n = i;
    }
    if (s->min_p > 0)
        for (int i = 1; i < n; i++)
            if (w[i] < (double)s->min_p) n = i;
    sum = 0;
    for (int i = 0; i < n; i++) sum += w[i];
    const ag_philox4 r = ag_philox(s->seed, index, 0);
    double left = ((double)r.word[0] + (double)r.word[1] * 0x1p-32) * 0x1p-32 * sum;
    for (int i = 0; i < n; i++)
        if ((left -= w[i]) < 0) return c[i].id;
    return c[n - 1].id;
}

static void choices_are_those_of_sorting_everything(void **state)
{
    (void)state;
    static const ag_sampling settings[] = {
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 1},
        {.temperature = 0.5f, .top_k = 40, .top_p = 1, .repeat_penalty = 1, .seed = 2},
        {.temperature = 2, .top_p = 0.9f, .repeat_penalty = 1, .seed = 3},
        {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1, .seed = 4},
        {.temperature = 1.5f, .top_k = 100, .top_p = 0.95f, .min_p = 0.02f, .repeat_penalty = 1, .seed = 5},
        {.temperature = 1, .top_p = 0.001f, .repeat_penalty = 1, .seed = 6},
        {.temperature = 1, .top_k = 1, .top_p = 1, .repeat_penalty = 1, .seed = 7},
    };
    ag_chooser *chooser = ag_chooser_create(V);
    for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
        int n_different = 0;
        int32_t before = -1;
        for (uint64_t i = 0; i < N_DRAWS; i++) {
            float logits[V], copy[V];
            for (int v = 0; v < V; v++) {
                const ag_philox4 r = ag_philox(99, i, (uint64_t)v);
                logits[v] = (float)(r.word[0] % 64) * 0.125f; /* many are equal */
            }
            memcpy(copy, logits, sizeof copy);
            const int32_t id = ag_sample(chooser, &settings[k], copy, NULL, 0, i);
            assert_int_equal(plain(logits, &settings[k], i), id);
            n_different += id != before;
            before = id;
        }
        assert_true(n_different > N_DRAWS / 2);
    }
    ag_chooser_free(&chooser);
}

static void ids_that_a_mask_took_away_never_come(void **state)
{
    (void)state;
    ag_chooser *chooser = ag_chooser_create(V);
    const ag_sampling s = {.temperature = 5, .top_p = 1, .repeat_penalty = 1};
    for (uint64_t i = 0; i < N_DRAWS; i++) {
        float logits[V];
        for (int v = 0; v < V; v++) logits[v] = v == 3 || v == 600 ? -8.0f : -INFINITY;
        const int32_t id = ag_sample(chooser, &s, logits, NULL, 0, i);
        assert_true(id == 3 || id == 600);
    }
    ag_chooser_free(&chooser);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_those_of_sorting_everything),
        cmocka_unit_test(ids_that_a_mask_took_away_never_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
