/* Operations of a warp, atomics, and copies in the background. */
#include "emu_state.h"

/* ---- loads and stores of a few bytes at once ------------------------------------------------------------------------------
 */
template <class T> static T load(const void *from)
{
    if ((uintptr_t)from % sizeof(T)) emu_fault("reads %zu bytes at an address that is not a multiple of it", sizeof(T));
    emu_watch(from, sizeof(T), EMU_READS);
    T value;
    memcpy(&value, from, sizeof value);
    return value;
}
template <class T> static void store(void *to, T value)
{
    if ((uintptr_t)to % sizeof(T)) emu_fault("writes %zu bytes at an address that is not a multiple of it", sizeof(T));
    emu_watch(to, sizeof(T), EMU_WRITES);
    memcpy(to, &value, sizeof value);
}
uint4 load16(const void *from) { return load<uint4>(from); }
void store16(void *to, uint4 value) { store(to, value); }
uint32_t load4(const void *from) { return load<uint32_t>(from); }
void store4(void *to, uint32_t value) { store(to, value); }

/* ---- atomics --------------------------------------------------------------------------------------------------------------
 */
template <class T, class F> static T atomic(T *p, F f)
{
    emu_watch(p, sizeof(T), EMU_ADDS);
    const T before = *p;
    *p = f(before);
    return before;
}
float atomic_add(float *p, float x) { return atomic(p, [=](float v) { return v + x; }); }
int atomic_add(int *p, int x) { return atomic(p, [=](int v) { return v + x; }); }
uint64_t atomic_add(uint64_t *p, uint64_t x) { return atomic(p, [=](uint64_t v) { return v + x; }); }
int atomic_max(int *p, int x) { return atomic(p, [=](int v) { return v > x ? v : x; }); }

/* ---- cp.async -------------------------------------------------------------------------------------------------------------
 */
static void land(emu_copy &copy)
{
    unsigned char bytes[16] = {0};
    memcpy(bytes, copy.from, (size_t)copy.n_valid);
    memcpy(copy.to, bytes, 16);
    copy.landed = true;
}

/* The bytes come at any time between the copy and its wait: at once, or as late as can be. */
void copy16_async(void *shared, const void *global, int n_valid)
{
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16)
        emu_fault("copies 16 bytes (cp.async) at an address that is not a multiple of 16");
    if (n_valid < 0 || n_valid > 16) emu_fault("copies %d of 16 bytes (cp.async)", n_valid);
    if ((uintptr_t)shared - (uintptr_t)emu.shared >= sizeof emu.shared)
        emu_fault("copies (cp.async) to what is not shared memory");
    if (n_valid) emu_watch(global, (size_t)n_valid, EMU_READS);
    emu_watch(shared, 16, EMU_SENDS);
    auto &groups = emu.fibers[emu.current].groups;
    if (groups.empty()) groups.emplace_back();
    groups.back().push_back({shared, global, n_valid, false});
    if (emu_random() & 1) land(groups.back().back());
}

void copy_commit()
{
    auto &groups = emu.fibers[emu.current].groups;
    if (groups.empty()) groups.emplace_back();
    groups.emplace_back();
}

void emu_copy_wait(int n)
{
    auto &groups = emu.fibers[emu.current].groups;
    while ((int)groups.size() - 1 > n) {
        for (emu_copy &copy : groups.front()) {
            if (!copy.landed) land(copy);
            emu_watch(copy.to, 16, EMU_WRITES);
        }
        groups.erase(groups.begin());
    }
}

/* ---- shuffles and votes ---------------------------------------------------------------------------------------------------
 */
struct shuffle_arguments {
    uint32_t x;
    int lane;
    bool is_xor;
    uint32_t got;
};

static void perform_shuffle(void *arguments[WARP])
{
    shuffle_arguments **a = (shuffle_arguments **)arguments;
    for (int lane = 0; lane < WARP; lane++)
        a[lane]->got = a[(a[lane]->is_xor ? lane ^ a[lane]->lane : a[lane]->lane) % WARP]->x;
}

uint32_t emu_shuffle(uint32_t x, int lane, bool is_xor, emu_place place)
{
    shuffle_arguments a = {x, lane, is_xor, 0};
    emu_collective("a shuffle", &a, perform_shuffle, place);
    return a.got;
}

struct ballot_arguments {
    bool x;
    uint32_t got;
};

static void perform_ballot(void *arguments[WARP])
{
    ballot_arguments **a = (ballot_arguments **)arguments;
    uint32_t all = 0;
    for (int lane = 0; lane < WARP; lane++) all |= (uint32_t)a[lane]->x << lane;
    for (int lane = 0; lane < WARP; lane++) a[lane]->got = all;
}

uint32_t emu_ballot(bool x, emu_place place)
{
    ballot_arguments a = {x, 0};
    emu_collective("a vote", &a, perform_ballot, place);
    return a.got;
}

/* ---- ldmatrix -------------------------------------------------------------------------------------------------------------
 */
struct matrices_arguments {
    const void *row;
    uint32_t *r;
};

template <bool transposed> static void perform_load(void *arguments[WARP])
{
    matrices_arguments **a = (matrices_arguments **)arguments;
    for (int m = 0; m < 4; m++) {
        uint16_t x[8][8];
        for (int row = 0; row < 8; row++) memcpy(x[row], a[8 * m + row]->row, 16);
        for (int lane = 0; lane < WARP; lane++) {
            const int g = lane / 4, t = lane % 4;
            a[lane]->r[m] =
                transposed ? (uint32_t)x[2 * t + 1][g] << 16 | x[2 * t][g] : (uint32_t)x[g][2 * t + 1] << 16 | x[g][2 * t];
        }
    }
}

void emu_load_matrices(uint32_t r[4], const void *row, bool transposed, emu_place place)
{
    if ((uintptr_t)row % 16) emu_fault("loads a matrix (ldmatrix) from a row that is not 16 bytes aligned");
    if ((uintptr_t)row - (uintptr_t)emu.shared >= sizeof emu.shared)
        emu_fault("loads a matrix (ldmatrix) from what is not shared memory");
    emu_watch(row, 16, EMU_READS);
    matrices_arguments a = {row, r};
    emu_collective("ldmatrix", &a, transposed ? perform_load<true> : perform_load<false>, place);
}

/* ---- mma ------------------------------------------------------------------------------------------------------------------
 */
struct mma_arguments {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

static void perform_mma_bf16(void *arguments[WARP])
{
    mma_arguments **x = (mma_arguments **)arguments;
    float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < WARP; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            const uint32_t pair = x[lane]->a[i];
            float *to = &a[g + i % 2 * 8][2 * t + i / 2 * 8];
            to[0] = bf16_low(pair), to[1] = bf16_high(pair);
            c[g + i / 2 * 8][2 * t + i % 2] = x[lane]->c[i];
        }
        for (int i = 0; i < 2; i++)
            b[2 * t + 8 * i][g] = bf16_low(x[lane]->b[i]), b[2 * t + 8 * i + 1][g] = bf16_high(x[lane]->b[i]);
    }
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++) c[m][n] += a[m][k] * b[k][n];
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++) x[lane]->c[i] = c[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
}

void emu_mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, emu_place place)
{
    mma_arguments x = {c, a, {b0, b1}};
    emu_collective("mma", &x, perform_mma_bf16, place);
}

/* ---- mma of 8 and 4 bits --------------------------------------------------------------------------------------------------
 */
struct low_bit_arguments {
    float *c;
    const uint32_t *a;
    uint32_t b[2], a_scales, b_scales;
};

/* The tensor core's own decoders, written down from the formats and not shared with the kernels' quantizers. */
static float decode_e4m3(uint32_t code)
{
    const int exponent = (int)(code >> 3 & 15), mantissa = (int)(code & 7);
    if (exponent == 15 && mantissa == 7) return NAN;
    const float magnitude = exponent ? ldexpf(1 + (float)mantissa / 8, exponent - 7) : ldexpf((float)mantissa / 8, -6);
    return code >> 7 & 1 ? -magnitude : magnitude;
}
static float decode_e2m1(uint32_t code)
{
    static const float value[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -value[code & 7] : value[code & 7];
}

/* n values of `bits` bits a register; a scale for every 16 of K where there are scales. */
template <int bits> static void perform_low_bit(void *arguments[WARP])
{
    low_bit_arguments **x = (low_bit_arguments **)arguments;
    const int n = 32 / bits, K = 8 * n;
    static float a[16][64], b[64][8];
    for (int lane = 0; lane < WARP; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < n; i++) {
            for (int r = 0; r < 4; r++) {
                const uint32_t code = x[lane]->a[r] >> (bits * i);
                const int row = g + r % 2 * 8, k = n * t + i + r / 2 * 4 * n;
                a[row][k] = bits == 8
                                ? decode_e4m3(code & 255)
                                : decode_e2m1(code & 15) * decode_e4m3(x[4 * g + r % 2]->a_scales >> (8 * (k / 16)) & 127);
            }
            for (int r = 0; r < 2; r++) {
                const uint32_t code = x[lane]->b[r] >> (bits * i);
                const int k = n * t + i + r * 4 * n;
                b[k][g] = bits == 8 ? decode_e4m3(code & 255)
                                    : decode_e2m1(code & 15) * decode_e4m3(x[4 * g]->b_scales >> (8 * (k / 16)) & 127);
            }
        }
    }
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++) {
            float sum = x[lane]->c[i];
            for (int k = 0; k < K; k++) sum += a[lane / 4 + i / 2 * 8][k] * b[k][2 * (lane % 4) + i % 2];
            x[lane]->c[i] = sum;
        }
}

void emu_mma_fp8(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, emu_place place)
{
    low_bit_arguments x = {c, a, {b0, b1}, 0, 0};
    emu_collective("mma (FP8)", &x, perform_low_bit<8>, place);
}

void emu_mma_nvfp4(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, uint32_t a_scales, uint32_t b_scales,
                   emu_place place)
{
    low_bit_arguments x = {c, a, {b0, b1}, a_scales, b_scales};
    emu_collective("mma (NVFP4)", &x, perform_low_bit<4>, place);
}
