#include "model/decoder_internal.h"

#include <stdlib.h>
#include <string.h>

/* Layer after layer; in a layer [n_slots, capacity, G, D] keys, then the same of values. */
struct ag_kv_cache {
    float *data;
    size_t bytes;
    int64_t n_slots, capacity, row; /* row: G·D floats */
    int64_t length[AG_KV_MAX_SLOTS], expected[AG_KV_MAX_SLOTS];
};

size_t ag_kv_cache_bytes(const ag_model *model, int64_t n_slots, int64_t capacity)
{
    const ag_description *d = &model->d;
    return (size_t)(2 * d->L * n_slots * capacity * d->G * d->D) * sizeof(float);
}

ag_status ag_kv_cache_create(ag_kv_cache **out, const ag_model *model, int64_t n_slots, int64_t capacity, ag_err *err)
{
    *out = NULL;
    AG_ASSERT(n_slots >= 1 && n_slots <= AG_KV_MAX_SLOTS && capacity >= 1);
    void *data;
    size_t bytes = ag_kv_cache_bytes(model, n_slots, capacity);
    AG_TRY(ag_pages_alloc(&data, bytes, "the cache of keys and values", err));
    ag_kv_cache *cache = calloc(1, sizeof *cache);
    if (!cache) ag_out_of_memory(sizeof *cache);
    *cache = (ag_kv_cache){.data = data, .bytes = bytes, .n_slots = n_slots, .capacity = capacity, .row = model->d.G * model->d.D};
    for (int64_t i = 0; i < n_slots; i++) cache->expected[i] = capacity;
    *out = cache;
    return AG_OK;
}

void ag_kv_cache_free(ag_kv_cache **cache)
{
    if (!cache || !*cache) return;
    ag_pages_free((*cache)->data, (*cache)->bytes);
    free(*cache);
    *cache = NULL;
}

int64_t ag_kv_cache_length(const ag_kv_cache *cache, int64_t slot)
{
    AG_ASSERT(slot >= 0 && slot < cache->n_slots);
    return cache->length[slot];
}

void ag_kv_cache_truncate(ag_kv_cache *cache, int64_t slot, int64_t length)
{
    AG_ASSERT(slot >= 0 && slot < cache->n_slots && length >= 0 && length <= cache->length[slot]);
    cache->length[slot] = length;
}

void ag_kv_cache_copy(ag_kv_cache *cache, int64_t to, int64_t from, int64_t n)
{
    AG_ASSERT(to >= 0 && to < cache->n_slots && n >= 0 && n <= ag_kv_cache_length(cache, from));
    const int64_t rows = cache->n_slots * cache->capacity, n_blocks = (int64_t)(cache->bytes / sizeof(float)) / (rows * cache->row);
    for (int64_t b = 0; b < n_blocks && to != from; b++) { /* keys and values of every layer */
        float *block = cache->data + b * rows * cache->row;
        memcpy(block + ag_kv_cache_first_row(cache, to) * cache->row, block + ag_kv_cache_first_row(cache, from) * cache->row,
               (size_t)(n * cache->row) * sizeof *block);
    }
    cache->expected[to] = cache->expected[from] > cache->length[from] ? cache->expected[from] : cache->length[from]; /* the keys' age */
    cache->length[to] = n;
}

void ag_kv_cache_expect(ag_kv_cache *cache, int64_t slot, int64_t length)
{
    AG_ASSERT(slot >= 0 && slot < cache->n_slots);
    cache->expected[slot] = length;
}

int64_t ag_kv_cache_age(const ag_kv_cache *cache, const ag_description *d, int64_t slot, int64_t n_new)
{
    const int64_t length = cache->length[slot] + n_new;
    return ag_rope_age(d, length > cache->expected[slot] ? length : cache->expected[slot]);
}

int64_t ag_kv_cache_capacity(const ag_kv_cache *cache) { return cache->capacity; }

int64_t ag_kv_cache_first_row(const ag_kv_cache *cache, int64_t slot) { return slot * cache->capacity; }

void ag_kv_cache_append(ag_kv_cache *cache, int64_t l, const ag_decoder_run *runs, int64_t n_runs, float **k, float **v,
                        int64_t *n_rows)
{
    const int64_t rows = cache->n_slots * cache->capacity;
    float *keys = cache->data + 2 * l * rows * cache->row, *values = keys + rows * cache->row;
    for (int64_t i = 0, from = 0; i < n_runs; i++) {
        const int64_t to = ag_kv_cache_first_row(cache, runs[i].slot) + ag_kv_cache_length(cache, runs[i].slot);
        const size_t bytes = (size_t)(runs[i].n_new * cache->row) * sizeof(float);
        memcpy(keys + to * cache->row, *k + from * cache->row, bytes);
        memcpy(values + to * cache->row, *v + from * cache->row, bytes);
        from += runs[i].n_new;
    }
    *k = keys;
    *v = values;
    *n_rows = rows;
}

void ag_kv_cache_advance(ag_kv_cache *cache, const ag_decoder_run *runs, int64_t n_runs)
{
    for (int64_t i = 0; i < n_runs; i++) cache->length[runs[i].slot] += runs[i].n_new;
}
