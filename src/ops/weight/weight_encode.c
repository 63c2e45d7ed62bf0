#include "ops/weight/weight_encode.h"

#include "ops/simd_levels.h"

#include <pthread.h>

ag_weight_encode_fn *ag_weight_encoder_of(ag_weight_type type, ag_cpu_level level)
{
    ag_weight_encode_fn *encode = NULL;
    switch (type) {
#define X(which, name)                            \
    case which:                                   \
        encode = ag_##name##_encode_ref;          \
        AG_USE_SIMD(encode, ag_##name##_encode, level); \
        break;
        X(AG_W_Q4_0, q4_0)
        X(AG_W_Q5_0, q5_0)
        X(AG_W_Q5_1, q5_1)
        X(AG_W_Q4_K, q4_k)
        X(AG_W_Q5_K, q5_k)
        X(AG_W_Q6_K, q6_k)
#undef X
    default: break;
    }
    return encode;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ag_weight_encode_fn *best[AG_N_WEIGHT_TYPES];

static void find_best(void)
{
    for (int t = 0; t < AG_N_WEIGHT_TYPES; t++) best[t] = ag_weight_encoder_of((ag_weight_type)t, ag_cpu_best_level());
}

ag_weight_encode_fn *ag_weight_encoder(ag_weight_type type)
{
    pthread_once(&once, find_best);
    return best[type];
}
