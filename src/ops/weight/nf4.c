/* NF4 and its double quantization, as bitsandbytes does them (functional.py, backends/default/ops.py). */
#include "ops/weight/weight_blocks.h"

#include "base/num.h"
#include "ops/simd_levels.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

const float ag_nf4_code[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,
    -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
};

/* (code[i] + code[i+1]) / 2, rounded to f32 as torch computes it. */
const float ag_nf4_midpoint[15] = {
    -0.8480963706970215f, -0.6106328964233398f, -0.4599952697753906f, -0.33967941999435425f, -0.23460739850997925f,
    -0.13791173696517944f, -0.045525018125772476f, 0.03979014977812767f, 0.120255246758461f, 0.2035212516784668f,
    0.2920137643814087f, 0.3893125355243683f, 0.5016634464263916f, 0.6427869200706482f, 0.8614784479141235f,
};

/* ---- the dynamic maps ------------------------------------------------------------------------------------------ */
static float dynamic_map[256], unsigned_map[256];
static pthread_once_t dynamic_map_once = PTHREAD_ONCE_INIT;

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* torch.linspace in f32: from both ends towards the middle, each point rounded once (torch is compiled to use FMA there). */
static float linspace(float start, float end, int n, int i)
{
    const float step = (end - start) / (float)(n - 1);
    return i < n / 2 ? fmaf(step, (float)i, start) : fmaf(-step, (float)(n - 1 - i), end);
}

/* For each of seven decades 2^i means of neighbouring points on [0.1,1], both signs; and 0 and 1. */
static void make_dynamic_map(void)
{
    static const float decade[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
    int n = 0;
    for (int i = 0; i < 7; i++) {
        const int n_points = (1 << i) + 1;
        for (int j = 0; j + 1 < n_points; j++) {
            const float mean = (linspace(0.1f, 1, n_points, j) + linspace(0.1f, 1, n_points, j + 1)) / 2;
            dynamic_map[n++] = decade[i] * mean;
            dynamic_map[n++] = -decade[i] * mean;
        }
    }
    dynamic_map[n++] = 0;
    dynamic_map[n++] = 1;
    AG_ASSERT(n == 256);
    qsort(dynamic_map, 256, sizeof *dynamic_map, ascending);
    n = 0;
    for (int i = 0; i < 7; i++) { /* without signs there are twice as many */
        const int n_points = (2 << i) + 1;
        for (int j = 0; j + 1 < n_points; j++)
            unsigned_map[n++] = decade[i] * ((linspace(0.1f, 1, n_points, j) + linspace(0.1f, 1, n_points, j + 1)) / 2);
    }
    unsigned_map[n++] = 0;
    unsigned_map[n++] = 1;
    AG_ASSERT(n == 256);
    qsort(unsigned_map, 256, sizeof *unsigned_map, ascending);
}

const float *ag_dynamic_map_signed(void)
{
    pthread_once(&dynamic_map_once, make_dynamic_map);
    return dynamic_map;
}

const float *ag_dynamic_map_unsigned(void)
{
    pthread_once(&dynamic_map_once, make_dynamic_map);
    return unsigned_map;
}

/* ---- NF4 ------------------------------------------------------------------------------------------------------------- */
/* One block of at most 64; an odd one is filled up with a scaled 0, whose code is 7. */
static void quantize_block(uint8_t *packed, float *absmax, const float *x, int64_t n)
{
    float largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    *absmax = largest;
    const float scale = 1 / (largest > AG_NF4_ABSMAX_MIN ? largest : AG_NF4_ABSMAX_MIN);
    for (int64_t i = 0; i < (n + 1) / 2; i++) {
        int code[2];
        for (int j = 0; j < 2; j++) {
            const float scaled = 2 * i + j < n ? x[2 * i + j] * scale : 0;
            code[j] = 0;
            for (int m = 0; m < 15; m++) code[j] += scaled > ag_nf4_midpoint[m];
        }
        packed[i] = (uint8_t)(code[0] << 4 | code[1]);
    }
}

void ag_nf4_quantize_ref(uint8_t *packed, float *absmax, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += AG_NF4_BLOCK)
        quantize_block(packed + i / 2, absmax + i / AG_NF4_BLOCK, x + i, n - i < AG_NF4_BLOCK ? n - i : AG_NF4_BLOCK);
}

void ag_nf4_quantize_bf16_ref(uint8_t *packed, float *absmax, const void *x, int64_t n)
{
    float block[AG_NF4_BLOCK];
    for (int64_t i = 0; i < n; i += AG_NF4_BLOCK) {
        const int64_t n_block = n - i < AG_NF4_BLOCK ? n - i : AG_NF4_BLOCK;
        for (int64_t j = 0; j < n_block; j++) {
            uint16_t half;
            memcpy(&half, (const char *)x + 2 * (i + j), sizeof half);
            block[j] = ag_bf16_to_f32(half);
        }
        quantize_block(packed + i / 2, absmax + i / AG_NF4_BLOCK, block, n_block);
    }
}

static struct {
    ag_nf4_quantize_fn *f32;
    ag_nf4_quantize_bf16_fn *bf16;
} quantizers = {ag_nf4_quantize_ref, ag_nf4_quantize_bf16_ref};
static pthread_once_t quantizers_once = PTHREAD_ONCE_INIT;

static void choose_quantizers(void)
{
    const ag_cpu_level level = ag_cpu_best_level();
    AG_USE_SIMD(quantizers.f32, ag_nf4_quantize, level);
    AG_USE_SIMD(quantizers.bf16, ag_nf4_quantize_bf16, level);
}

void ag_nf4_quantize(uint8_t *packed, float *absmax, const float *x, int64_t n)
{
    pthread_once(&quantizers_once, choose_quantizers);
    quantizers.f32(packed, absmax, x, n);
}

void ag_nf4_quantize_blocks(uint8_t *packed, float *absmax, const ag_weight *w, int64_t block0, int64_t block1)
{
    pthread_once(&quantizers_once, choose_quantizers);
    AG_ASSERT(w->type == AG_W_F32 || w->type == AG_W_F16 || w->type == AG_W_BF16);
    const int64_t n_weights = w->N * w->K, first = block0 * AG_NF4_BLOCK;
    const int64_t end = block1 * AG_NF4_BLOCK < n_weights ? block1 * AG_NF4_BLOCK : n_weights;
    if (w->type == AG_W_BF16) {
        quantizers.bf16(packed + first / 2, absmax + block0, (const char *)w->data + 2 * first, end - first);
        return;
    }
    for (int64_t i = first; i < end; i += AG_NF4_BLOCK) {
        float block[AG_NF4_BLOCK];
        const int64_t n = end - i < AG_NF4_BLOCK ? end - i : AG_NF4_BLOCK;
        const ag_weight flat = {.type = w->type, .N = 1, .K = n_weights, .data = w->data};
        ag_weight_row(block, &flat, 0, i, i + n);
        quantizers.f32(packed + i / 2, absmax + i / AG_NF4_BLOCK, block, n);
    }
}

/* ---- double quantization --------------------------------------------------------------------------------------------- */
static uint8_t nearest_code(const float *map, float x)
{
    int low = 0, high = 255; /* map[low] <= x < map[high], but for the ends */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (map[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return (uint8_t)(fabsf(x - map[low]) <= fabsf(x - map[high]) ? low : high);
}

void ag_nf4_double_quantize(uint8_t *absmax_q, float *nested_absmax, float *offset, const float *absmax, int64_t n_blocks)
{
    const float *map = ag_dynamic_map_signed();
    double sum = 0;
    for (int64_t i = 0; i < n_blocks; i++) sum += absmax[i];
    const float mean = n_blocks > 0 ? (float)(sum / (double)n_blocks) : 0;
    *offset = mean;
    for (int64_t i = 0; i < n_blocks; i += AG_NF4_NESTED_BLOCK) {
        const int64_t end = i + AG_NF4_NESTED_BLOCK < n_blocks ? i + AG_NF4_NESTED_BLOCK : n_blocks;
        float largest = 0;
        for (int64_t j = i; j < end; j++) largest = fmaxf(largest, fabsf(absmax[j] - mean));
        nested_absmax[i / AG_NF4_NESTED_BLOCK] = largest;
        const float scale = 1 / largest;
        for (int64_t j = i; j < end; j++) {
            const float scaled = (absmax[j] - mean) * scale;
            absmax_q[j] = largest > 0 ? nearest_code(map, fminf(fmaxf(scaled, -1), 1)) : 0;
        }
    }
}
