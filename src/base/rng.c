#include "base/rng.h"

#include <string.h>

/* ---- Philox 4x32-10: constants and rounds of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11) ---------- */

ag_philox4 ag_philox(uint64_t key, uint64_t counter_low, uint64_t counter_high)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_low, c1 = (uint32_t)(counter_low >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (ag_philox4){{c0, c1, c2, c3}};
}

/* ---- MT19937 as in ATen/core/MT19937RNGEngine.h ------------------------------------------------------------------------- */

enum { N = AG_MT19937_WORDS, M = 397 };

void ag_mt19937_seed(ag_mt19937 *mt, uint64_t seed)
{
    *mt = (ag_mt19937){.seed = seed, .left = 1};
    mt->state[0] = (uint32_t)seed; /* torch uses the low word only, but keeps the whole seed */
    for (uint32_t i = 1; i < N; i++) mt->state[i] = 1812433253u * (mt->state[i - 1] ^ mt->state[i - 1] >> 30) + i;
}

static uint32_t twist(uint32_t u, uint32_t v) { return ((u & 0x80000000u) | (v & 0x7fffffffu)) >> 1 ^ (v & 1 ? 0x9908b0dfu : 0); }

static void next_state(ag_mt19937 *mt)
{
    uint32_t *s = mt->state;
    for (int i = 0; i < N - M; i++) s[i] = s[i + M] ^ twist(s[i], s[i + 1]);
    for (int i = N - M; i < N - 1; i++) s[i] = s[i + M - N] ^ twist(s[i], s[i + 1]);
    s[N - 1] = s[M - 1] ^ twist(s[N - 1], s[0]);
    mt->left = N;
    mt->next = 0;
}

uint32_t ag_mt19937_u32(ag_mt19937 *mt)
{
    if (--mt->left <= 0) next_state(mt);
    uint32_t y = mt->state[mt->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

uint64_t ag_mt19937_u64(ag_mt19937 *mt)
{
    uint64_t high = ag_mt19937_u32(mt);
    return high << 32 | ag_mt19937_u32(mt);
}

float ag_mt19937_uniform_f32(ag_mt19937 *mt) { return (float)(ag_mt19937_u32(mt) & 0xffffffu) * 0x1p-24f; }

/* Fisher-Yates in both of torch's forms (ATen/native/TensorFactories.cpp, randperm_cpu): from 2^32/20 values on one word is too
 * coarse for the remainder, so two are drawn, and the shuffle runs inside out. */
void ag_mt19937_randperm(ag_mt19937 *mt, int64_t *out, int64_t n)
{
    if (n < (int64_t)(UINT32_MAX / 20)) {
        for (int64_t i = 0; i < n; i++) out[i] = i;
        for (int64_t i = 0; i < n - 1; i++) {
            int64_t z = i + (int64_t)(ag_mt19937_u32(mt) % (uint64_t)(n - i));
            int64_t kept = out[i];
            out[i] = out[z];
            out[z] = kept;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t z = (int64_t)(ag_mt19937_u64(mt) % (uint64_t)(i + 1));
        out[i] = i;
        out[i] = out[z];
        out[z] = i;
    }
}

/* ---- the state as torch saves it: CPUGeneratorImplState in ATen/CPUGeneratorImpl.cpp, little-endian ----------------------- */

enum {
    AT_SEED = 0, AT_LEFT = 8, AT_SEEDED = 12, AT_NEXT = 16, AT_STATE = 24, /* 624 words, 8 bytes each */
    AT_NORMAL_X = AT_STATE + 8 * N, AT_NORMAL_Y = AT_NORMAL_X + 8, AT_NORMAL_RHO = AT_NORMAL_X + 16,
    AT_NORMAL_VALID = AT_NORMAL_X + 24, AT_FLOAT_NORMAL = AT_NORMAL_X + 32, AT_FLOAT_NORMAL_VALID = AT_NORMAL_X + 36
};
_Static_assert(AT_FLOAT_NORMAL_VALID + 4 == AG_MT19937_SAVED_BYTES, "the layout fills what torch saves");

static void put(unsigned char *at, uint64_t value, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++) at[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *at, int n_bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}

void ag_mt19937_save(const ag_mt19937 *mt, unsigned char out[AG_MT19937_SAVED_BYTES])
{
    uint64_t normal;
    uint32_t float_normal;
    memcpy(&normal, &mt->cached_normal, sizeof normal);
    memcpy(&float_normal, &mt->cached_float_normal, sizeof float_normal);
    memset(out, 0, AG_MT19937_SAVED_BYTES);
    put(out + AT_SEED, mt->seed, 8);
    put(out + AT_LEFT, (uint32_t)mt->left, 4);
    put(out + AT_SEEDED, 1, 4);
    put(out + AT_NEXT, (uint32_t)mt->next, 8);
    for (int i = 0; i < N; i++) put(out + AT_STATE + 8 * i, mt->state[i], 8);
    if (mt->has_normal) {
        put(out + AT_NORMAL_Y, normal, 8);
        put(out + AT_NORMAL_VALID, 1, 4);
    }
    if (mt->has_float_normal) {
        put(out + AT_FLOAT_NORMAL, float_normal, 4);
        put(out + AT_FLOAT_NORMAL_VALID, 1, 1);
    }
}

ag_status ag_mt19937_load(ag_mt19937 *mt, const unsigned char *bytes, size_t n, ag_err *err)
{
    if (n != AG_MT19937_SAVED_BYTES)
        return ag_fail(err, AG_E_FORMAT, "the saved random state has %zu bytes, torch's CPU generator has %d", n, AG_MT19937_SAVED_BYTES);
    uint64_t left = get(bytes + AT_LEFT, 4), next = get(bytes + AT_NEXT, 8), normal = get(bytes + AT_NORMAL_Y, 8);
    if (get(bytes + AT_SEEDED, 4) != 1 || left < 1 || left > N || next > N || left + next > N + 1)
        return ag_fail(err, AG_E_FORMAT, "the saved random state is not one of torch's CPU generator: left %llu and next %llu do not "
                       "fit its %d words", (unsigned long long)left, (unsigned long long)next, N);
    for (int i = 0; i < N; i++)
        if (get(bytes + AT_STATE + 8 * i, 8) > UINT32_MAX)
            return ag_fail(err, AG_E_FORMAT, "the saved random state's word %d is over 32 bits", i);
    uint32_t float_normal = (uint32_t)get(bytes + AT_FLOAT_NORMAL, 4);
    *mt = (ag_mt19937){.seed = get(bytes + AT_SEED, 8), .left = (int32_t)left, .next = (int32_t)next,
                       .has_normal = get(bytes + AT_NORMAL_VALID, 4) != 0, .has_float_normal = bytes[AT_FLOAT_NORMAL_VALID] != 0};
    for (int i = 0; i < N; i++) mt->state[i] = (uint32_t)get(bytes + AT_STATE + 8 * i, 4);
    memcpy(&mt->cached_normal, &normal, sizeof normal);
    memcpy(&mt->cached_float_normal, &float_normal, sizeof float_normal);
    if (!mt->has_normal) mt->cached_normal = 0;
    if (!mt->has_float_normal) mt->cached_float_normal = 0;
    return AG_OK;
}
