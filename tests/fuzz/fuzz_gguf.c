/* Any bytes as a GGUF file: what is taken can be read to the last byte, every getter answers, and a description is made or
 * refused. */
#include "model/description_gguf.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask(const ag_gguf *g, const ag_gguf_pair *pair, ag_arena *arena)
{
    ag_err err;
    int64_t i = 0;
    double x = 0;
    bool yes = false;
    const char *text = NULL;
    const ag_gguf_text *texts;
    const int64_t *ints;
    const float *floats;
    size_t n, sum = 0;
    const char *key = pair->key;
    int n_good = !ag_gguf_get_int(g, key, INT64_MIN, INT64_MAX, &i, &err) + !ag_gguf_get_double(g, key, &x, &err);
    n_good += !ag_gguf_get_bool(g, key, &yes, &err) + !ag_gguf_get_text(g, key, &text, arena, &err);
    if (!ag_gguf_get_texts(g, key, &texts, &n, arena, &err))
        for (size_t j = 0; j < n; j++)
            for (size_t k = 0; k < texts[j].n; k++) sum += (unsigned char)texts[j].text[k];
    n_good += !ag_gguf_get_ints(g, key, &ints, &n, arena, &err) + !ag_gguf_get_floats(g, key, &floats, &n, arena, &err);
    if (n_good > 3 || ag_gguf_pair_of(g, key) != pair || sum == SIZE_MAX) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_err err;
    ag_gguf g;
    if (ag_gguf_parse(&g, data, size, "fuzz", &err)) return 0;
    ag_arena arena = {0};
    unsigned sum = 0;
    for (size_t i = 0; i < g.n_pairs; i++) ask(&g, &g.pairs[i], &arena);
    for (size_t i = 0; i < g.n_tensors; i++) {
        const ag_gguf_tensor *t = &g.tensors[i];
        if (ag_gguf_find(&g, t->name) != t) abort();
        for (size_t j = 0; j < t->bytes; j++) sum += t->data[j];
        sum += (unsigned char)ag_gguf_shape_text(&arena, t)[0];
    }
    ag_description d;
    if (!ag_description_from_gguf(&d, &g, &arena, &err) && ag_description_parameters(&d) <= 0) abort();
    ag_arena_free(&arena);
    ag_gguf_close(&g);
    return sum == 0xffffffff;
}
