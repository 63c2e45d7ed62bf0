#include "serve/prefix_cache.h"

#include "base/arena.h"
#include "ops/linear/linear.h"

#include <stdlib.h>
#include <string.h>

void ag_prefix_cache_init(ag_prefix_cache *c, ag_kv_cache *cache, int64_t n_slots, int64_t context, int64_t granule, int64_t chunk)
{
    *c = (ag_prefix_cache){.cache = cache, .n_slots = n_slots, .context = context, .granule = granule, .chunk = chunk};
    c->slots = calloc((size_t)n_slots, sizeof *c->slots);
    if (!c->slots) ag_out_of_memory((size_t)n_slots * sizeof *c->slots);
    for (int64_t i = 0; i < n_slots; i++) {
        c->slots[i].ids = malloc((size_t)context * sizeof(int32_t));
        if (!c->slots[i].ids) ag_out_of_memory((size_t)context * sizeof(int32_t));
    }
}

void ag_prefix_cache_deinit(ag_prefix_cache *c)
{
    for (int64_t i = 0; i < c->n_slots; i++) free(c->slots[i].ids);
    free(c->slots);
    *c = (ag_prefix_cache){0};
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t chunk_start(const ag_prefix_cache *c, int64_t at) { return at / c->chunk * c->chunk; }

int64_t ag_prefix_cut(const ag_prefix_cache *c, int64_t n, int64_t limit)
{
    limit = min64(limit, n - 1); /* the last token's logits are wanted */
    const int64_t start = chunk_start(c, limit), end = min64(n, start + c->chunk);
    if (end - start <= AG_LINEAR_FEW) return start; /* that chunk is computed as few rows, whole */
    int64_t cut = start + (limit - start) / c->granule * c->granule;
    while (cut > start && end - cut <= AG_LINEAR_FEW) cut -= c->granule;
    return cut;
}

int64_t ag_prefix_exact(const ag_prefix_cache *c, int64_t n)
{
    const int64_t start = chunk_start(c, n);
    if (n - start <= AG_LINEAR_FEW) return start;
    return start + (n - start) / c->granule * c->granule;
}

int64_t ag_prefix_piece_end(const ag_prefix_cache *c, int64_t n, int64_t at, int64_t room)
{
    const int64_t start = chunk_start(c, at), end = min64(n, start + c->chunk);
    if (end - at <= room) return end;
    int64_t cut = start + (at + room - start) / c->granule * c->granule;
    while (cut > at && end - cut <= AG_LINEAR_FEW) cut -= c->granule;
    return cut - at > AG_LINEAR_FEW ? cut : at;
}

static int64_t common(const ag_prefix_slot *s, int adapter, const int32_t *prompt, int64_t n, int64_t n_ids)
{
    if (s->adapter != adapter) return 0;
    int64_t i = 0;
    while (i < n && i < n_ids && s->ids[i] == prompt[i]) i++;
    return i;
}

/* What slot s can give a prompt now. */
static int64_t usable(const ag_prefix_cache *c, const ag_prefix_slot *s, int adapter, const int32_t *prompt, int64_t n)
{
    return ag_prefix_cut(c, n, common(s, adapter, prompt, n, s->n_exact));
}

static int64_t oldest_free(const ag_prefix_cache *c)
{
    int64_t oldest = -1;
    for (int64_t i = 0; i < c->n_slots; i++)
        if (!c->slots[i].busy && (oldest < 0 || c->slots[i].used < c->slots[oldest].used)) oldest = i;
    AG_ASSERT(oldest >= 0);
    return oldest;
}

int64_t ag_prefix_cache_take(ag_prefix_cache *c, int adapter, const int32_t *prompt, int64_t n, int64_t *n_reused)
{
    AG_ASSERT(n >= 1 && n <= c->context);
    int64_t best = -1, most = 0;
    for (int64_t i = 0; i < c->n_slots; i++) {
        const int64_t found = usable(c, &c->slots[i], adapter, prompt, n);
        if (found > most || (found == most && found > 0 && !c->slots[i].busy && c->slots[best].busy)) best = i, most = found;
    }
    int64_t slot = oldest_free(c);
    /* The conversation that goes on keeps its slot; one of which only the beginning is wanted keeps its own. */
    if (best >= 0 && !c->slots[best].busy && 2 * most >= c->slots[best].n_exact) slot = best;
    if (best >= 0) ag_kv_cache_copy(c->cache, slot, best, most);
    else ag_kv_cache_truncate(c->cache, slot, 0);
    ag_prefix_slot *s = &c->slots[slot];
    *s = (ag_prefix_slot){.adapter = adapter, .ids = s->ids, .n_ids = n, .n_exact = most, .used = ++c->clock, .busy = true};
    memcpy(s->ids, prompt, (size_t)n * sizeof *prompt);
    *n_reused = most;
    return slot;
}

int64_t ag_prefix_cache_coming(const ag_prefix_cache *c, int adapter, const int32_t *prompt, int64_t n)
{
    int64_t now = 0, later = 0;
    for (int64_t i = 0; i < c->n_slots; i++) {
        const ag_prefix_slot *s = &c->slots[i];
        const int64_t have = usable(c, s, adapter, prompt, n);
        if (have > now) now = have;
        if (!s->busy) continue;
        const int64_t exact = ag_prefix_exact(c, s->n_ids), will = ag_prefix_cut(c, n, common(s, adapter, prompt, n, exact));
        if (will > later) later = will;
    }
    return later > now ? later - now : 0;
}

void ag_prefix_cache_give_back(ag_prefix_cache *c, int64_t slot, int64_t n_ids)
{
    ag_prefix_slot *s = &c->slots[slot];
    AG_ASSERT(s->busy && n_ids <= c->context);
    s->busy = false;
    s->n_ids = n_ids;
    s->used = ++c->clock;
    const int64_t length = ag_kv_cache_length(c->cache, slot);
    ag_kv_cache_truncate(c->cache, slot, min64(s->n_exact, length));
}

bool ag_prefix_cache_unpolished(const ag_prefix_cache *c, int64_t rows, int64_t *slot, int64_t *from, int64_t *to)
{
    uint64_t newest = 0;
    for (int64_t i = 0; i < c->n_slots; i++) {
        const ag_prefix_slot *s = &c->slots[i];
        if (s->busy || s->used <= newest) continue;
        const int64_t target = ag_prefix_exact(c, s->n_ids), end = min64(target, chunk_start(c, s->n_exact) + c->chunk);
        int64_t until = end - s->n_exact <= rows ? end : s->n_exact + rows / c->granule * c->granule;
        if (until - s->n_exact <= AG_LINEAR_FEW) continue;
        newest = s->used;
        *slot = i;
        *from = s->n_exact;
        *to = until;
    }
    return newest > 0;
}
