/* The encoders of GGUF blocks: nearer to the weights than llama.cpp's own, near the best that there is, the same bytes on every level. */
#include "ops/weight/weight_blocks.h"
#include "ops/weight/weight_encode.h"
#include "support/golden.h"
#include "support/op_check.h"

#include <float.h>
#include <stdio.h>

static const ag_weight_type written[] = {AG_W_Q4_0, AG_W_Q5_0, AG_W_Q5_1, AG_W_Q4_K, AG_W_Q5_K, AG_W_Q6_K};
enum { N_WRITTEN = sizeof written / sizeof *written, MOST_WEIGHTS = 768 };

static double squared_error(const float *x, ag_weight_type type, const void *bytes, int64_t K)
{
    float decoded[MOST_WEIGHTS];
    const ag_weight w = {.type = type, .N = 1, .K = K, .data = bytes};
    double sum = 0;
    ag_weight_row(decoded, &w, 0, 0, K);
    for (int64_t k = 0; k < K; k++) sum += ((double)decoded[k] - x[k]) * ((double)decoded[k] - x[k]);
    return sum;
}

static void errors_are_below_those_of_llama_cpp(void **state)
{
    (void)state;
    ag_err err;
    golden g = golden_open("weight/encode.safetensors");
    for (int t = 0; t < N_WRITTEN; t++) {
        char key[32];
        const char *name = ag_weight_type_name(written[t]), *of = strncmp(name, "q5_0", 4) == 0 || strncmp(name, "q5_1", 4) == 0 ? "narrow.x" : "wide.x";
        snprintf(key, sizeof key, "%s.blocks", name);
        const int64_t N = golden_dim(&g, of, 0), K = golden_dim(&g, of, 1), row_bytes = ag_weight_row_bytes(written[t], K);
        const float *x = golden_get(&g, of, "F32", N * K);
        const uint8_t *theirs = golden_get(&g, key, "U8", N * row_bytes);
        uint8_t *ours = malloc((size_t)row_bytes);
        double our_error = 0, their_error = 0;
        for (int64_t n = 0; n < N; n++) {
            assert_int_equal(AG_OK, ag_weight_quantize_row(ours, written[t], x + n * K, K, &err));
            our_error += squared_error(x + n * K, written[t], ours, K);
            their_error += squared_error(x + n * K, written[t], theirs + n * row_bytes, K);
        }
        if (!(our_error > 0 && our_error < their_error)) fail_msg("%s: %g, llama.cpp's %g", name, our_error, their_error);
        free(ours);
    }
    golden_close(&g);
}

/* What the encoder minimises, for a scale alone, in double: the best over a dense range of scales, each with its nearest codes. */
static double least_error(const float *x, int m, double *of_scale, double scale)
{
    double rms = 0, largest = 0, best = DBL_MAX;
    for (int i = 0; i < 32; i++) {
        rms += (double)x[i] * x[i] / 32;
        largest = fmax(largest, fabs((double)x[i]));
    }
    rms = sqrt(rms);
    enum { STEPS = 20000 };
    for (int step = of_scale ? 0 : -STEPS; step <= (of_scale ? 0 : STEPS); step++) {
        const double d = of_scale ? scale : 2 * largest / m * step / STEPS;
        double error = 0;
        for (int i = 0; i < 32; i++) {
            const double q = d != 0 ? fmin(fmax(nearbyint(x[i] / d), -m), m - 1) : 0;
            error += (rms + fabs((double)x[i])) * (x[i] - d * q) * (x[i] - d * q);
        }
        if (error < best) best = error;
    }
    return best;
}

static void a_scale_is_near_the_best_there_is(void **state)
{
    (void)state;
    double sum = 0, best_sum = 0;
    for (uint32_t seed = 1; seed <= 40; seed++) {
        float x[32], decoded[32];
        uint8_t block[22];
        double d = 0;
        check_fill(x, 32, seed, 0.1f);
        if (seed % 3 == 0) x[seed % 32] *= 5;
        ag_weight_encoder(AG_W_Q4_0)(block, x);
        ag_q4_0_decode(decoded, block);
        for (int i = 0; i < 32; i++) /* the scale, from the largest code */
            if (fabs((double)decoded[i]) > 0 && ((block[2 + i % 16] >> (i < 16 ? 0 : 4)) & 15) - 8 != 0)
                d = decoded[i] / (((block[2 + i % 16] >> (i < 16 ? 0 : 4)) & 15) - 8);
        const double error = least_error(x, 8, &d, d), best = least_error(x, 8, NULL, 0);
        if (error > 1.1 * best) fail_msg("seed %u: %g, the best is %g", seed, error, best);
        sum += error;
        best_sum += best;
    }
    if (sum > 1.015 * best_sum) fail_msg("%g, the best is %g", sum, best_sum); /* giving x its whole share costs 0.6 % */
}

/* Kinds of weights that encoders stumble over. */
static void fill_kind(float *x, int64_t n, int kind)
{
    check_fill(x, n, (uint32_t)kind + 1, 0.05f);
    for (int64_t i = 0; i < n; i++) {
        switch (kind) {
        case 1: x[i] = 0; break;
        case 2: x[i] = i / 32 % 2 ? 0 : x[i]; break;                    /* sub-blocks of zeros */
        case 3: x[i] = -0.25f; break;
        case 4: x[i] = fabsf(x[i]) + 1; break;                           /* all far above 0 */
        case 5: x[i] = -fabsf(x[i]) - 1; break;
        case 6: x[i] = i == n / 2 ? 100.0f : x[i] * 0.01f; break;       /* one that dwarfs the rest */
        case 7: x[i] *= 1e-6f; break;                                    /* scales are subnormal in f16 */
        case 8: x[i] *= 1e-30f; break;                                   /* nothing that f16 knows */
        case 9: x[i] = i % 2 ? 65504.0f : -65504.0f; break;
        case 10: x[i] = i % 32 == 5 ? x[i] : 0; break;                   /* one in each sub-block */
        case 11: x[i] *= (float)(1 + i / 16 % 16); break;                /* scales of all sizes */
        default: break;
        }
    }
}
enum { N_KINDS = 12 };

static void every_level_makes_the_same_bytes(void **state)
{
    (void)state;
    for (const ag_cpu_level *level = check_levels(); *level != AG_CPU_REF; level++)
        for (int t = 0; t < N_WRITTEN; t++)
            for (int kind = 0; kind < N_KINDS; kind++) {
                const int64_t n = ag_weight_block_weights(written[t]), bytes = ag_weight_block_bytes(written[t]);
                float *x = check_floats(n);
                uint8_t want[256], got[256];
                fill_kind(x, n, kind);
                memset(want, 0xa5, sizeof want);
                memset(got, 0xa5, sizeof got);
                ag_weight_encoder_of(written[t], AG_CPU_REF)(want, x);
                ag_weight_encoder_of(written[t], *level)(got, x);
                assert_memory_equal(want, got, sizeof want);
                assert_int_equal(0xa5, got[bytes]);
                check_guards(x, n, "weights");
                check_free(x);
            }
}

static void odd_weights_come_back_near(void **state)
{
    (void)state;
    static const double steps[N_WRITTEN] = {8, 16, 31, 15, 31, 32}; /* that the largest weight of a block spans, about */
    for (int t = 0; t < N_WRITTEN; t++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            const int64_t n = ag_weight_block_weights(written[t]);
            float x[256], decoded[256], largest = 0;
            uint8_t block[256];
            fill_kind(x, n, kind);
            ag_weight_encoder(written[t])(block, x);
            const ag_weight w = {.type = written[t], .N = 1, .K = n, .data = block};
            ag_weight_row(decoded, &w, 0, 0, n);
            for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
            for (int64_t i = 0; i < n; i++) {
                const double off = fabs((double)decoded[i] - x[i]), most = 2 * largest / steps[t] + 6e-8 * 64;
                if (!(off <= most)) fail_msg("%s, kind %d, weight %d: %g came back as %g", ag_weight_type_name(written[t]), kind, (int)i,
                                             (double)x[i], (double)decoded[i]);
                if (x[i] == 0 && largest == 0) assert_true(decoded[i] == 0);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_below_those_of_llama_cpp),
        cmocka_unit_test(a_scale_is_near_the_best_there_is),
        cmocka_unit_test(every_level_makes_the_same_bytes),
        cmocka_unit_test(odd_weights_come_back_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
