#define _GNU_SOURCE
#include "model/family.h"

#include <math.h>
#include <string.h>

void ag_projection_size(int64_t *N, int64_t *K, const ag_description *d, ag_projection p)
{
    switch (p) {
    case AG_PROJ_Q: *N = d->H * d->D, *K = d->C; return;
    case AG_PROJ_K:
    case AG_PROJ_V: *N = d->G * d->D, *K = d->C; return;
    case AG_PROJ_O: *N = d->C, *K = d->H * d->D; return;
    case AG_PROJ_GATE:
    case AG_PROJ_UP: *N = d->F, *K = d->C; return;
    default: *N = d->C, *K = d->F; return;
    }
}

int64_t ag_norm_width(const ag_description *d, ag_norm norm)
{
    switch (norm) {
    case AG_NORM_ATTN:
    case AG_NORM_FFN: return d->C;
    case AG_NORM_ATTN_POST:
    case AG_NORM_FFN_POST: return d->has_post_norms ? d->C : 0;
    default: return d->has_qk_norm ? d->D : 0;
    }
}

int64_t ag_layer_window(const ag_description *d, int64_t layer)
{
    return !d->slides || d->slides[layer] ? d->sliding_window : 0;
}

int64_t ag_description_parameters(const ag_description *d)
{
    int64_t per_layer = 0, N, K;
    for (int n = 0; n < AG_N_NORMS; n++) per_layer += ag_norm_width(d, (ag_norm)n);
    for (int p = 0; p < AG_N_PROJ; p++) {
        ag_projection_size(&N, &K, d, (ag_projection)p);
        per_layer += N * K + (d->has_bias[p] ? N : 0);
    }
    return d->L * per_layer + d->C + d->V * d->C * (d->tied ? 1 : 2);
}

static bool is_positive(double x) { return x > 0 && isfinite(x); }

static ag_status check_factors(const float *factors, int64_t n, const char *name, ag_err *err)
{
    for (int64_t i = 0; i < n; i++)
        if (!is_positive((double)factors[i]))
            return ag_fail(err, AG_E_FORMAT, "%s: a rope factor is %g, expected positive numbers", name, (double)factors[i]);
    return AG_OK;
}

static ag_status check_rope(const ag_description *d, const char *name, ag_err *err)
{
    const ag_rope_kind kind = d->rope_kind;
    const bool has_factor = kind == AG_ROPE_LINEAR || kind == AG_ROPE_LLAMA3 || kind == AG_ROPE_DYNAMIC || kind == AG_ROPE_YARN;
    if (has_factor && !is_positive(d->rope_factor))
        return ag_fail(err, AG_E_FORMAT, "%s: the rope scaling's factor is %g, expected a positive number", name,
                       d->rope_factor);
    if (kind == AG_ROPE_LLAMA3 && !(d->rope_low_freq_factor > 0 && d->rope_high_freq_factor > d->rope_low_freq_factor &&
                                    isfinite(d->rope_high_freq_factor)))
        return ag_fail(err, AG_E_FORMAT, "%s: low_freq_factor %g and high_freq_factor %g must be positive and ascending", name,
                       d->rope_low_freq_factor, d->rope_high_freq_factor);
    if (kind >= AG_ROPE_DYNAMIC && d->rope_original_context < 1)
        return ag_fail(err, AG_E_FORMAT, "%s: the rope scaling's original context is %lld, expected a positive number", name,
                       (long long)d->rope_original_context);
    if (kind == AG_ROPE_DYNAMIC && ag_rope_dims(d) < 4)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: dynamic rope scaling needs at least 4 dimensions that rotate", name);
    if (d->rope_dims < 0 || d->rope_dims > d->D || d->rope_dims % 2 != 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: %lld of %lld dimensions rotate; an even number of them must", name,
                       (long long)d->rope_dims, (long long)d->D);
    if (kind == AG_ROPE_YARN && !(is_positive(d->rope_beta_fast) && is_positive(d->rope_beta_slow) && d->rope_theta > 1))
        return ag_fail(err, AG_E_FORMAT, "%s: beta_fast %g and beta_slow %g must be positive, and rope_theta %g over 1", name,
                       d->rope_beta_fast, d->rope_beta_slow, d->rope_theta);
    if ((kind == AG_ROPE_YARN || kind == AG_ROPE_LONGROPE) && !is_positive(d->rope_attention_factor))
        return ag_fail(err, AG_E_FORMAT, "%s: the rope scaling's attention factor is %g, expected a positive number", name,
                       d->rope_attention_factor);
    if (kind == AG_ROPE_LONGROPE && (!d->rope_factors || !d->rope_long_factors))
        return ag_fail(err, AG_E_FORMAT, "%s: longrope needs a list of short and one of long factors", name);
    if (d->rope_factors) AG_TRY(check_factors(d->rope_factors, ag_rope_dims(d) / 2, name, err));
    if (d->rope_long_factors) AG_TRY(check_factors(d->rope_long_factors, ag_rope_dims(d) / 2, name, err));
    if (d->rope_local_theta != 0 && !is_positive(d->rope_local_theta))
        return ag_fail(err, AG_E_FORMAT, "%s: the local rope_theta is %g, expected a positive number", name,
                       d->rope_local_theta);
    return AG_OK;
}

/* Bounds that keep every product of two of these, and the parameter count, far from overflow. */
ag_status ag_description_check(const ag_description *d, const char *name, ag_err *err)
{
    const struct {
        const char *what;
        int64_t value, max;
    } bounds[] = {
        {"the width", d->C, 1 << 20},           {"the number of layers", d->L, 1 << 12},
        {"the number of heads", d->H, 1 << 14}, {"the number of key/value heads", d->G, 1 << 14},
        {"the head dim", d->D, 1 << 12},        {"the feed-forward width", d->F, 1 << 22},
        {"the vocabulary", d->V, 1 << 24},      {"the context length", d->context_length, 1 << 30},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].value < 1 || bounds[i].value > bounds[i].max)
            return ag_fail(err, AG_E_FORMAT, "%s: %s is %lld, expected 1 to %lld", name, bounds[i].what,
                           (long long)bounds[i].value, (long long)bounds[i].max);
    if (d->D % 2 != 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: the head dim is %lld; rotary positions need an even one", name,
                       (long long)d->D);
    if (d->H % d->G != 0)
        return ag_fail(err, AG_E_FORMAT, "%s: %lld query heads cannot share %lld key/value heads evenly", name, (long long)d->H,
                       (long long)d->G);
    if (!(d->rms_eps > 0 && d->rms_eps < 1))
        return ag_fail(err, AG_E_FORMAT, "%s: the norms' epsilon is %g, expected more than 0 and less than 1", name,
                       (double)d->rms_eps);
    if (!(d->rope_theta > 0 && isfinite(d->rope_theta)))
        return ag_fail(err, AG_E_FORMAT, "%s: rope_theta is %g, expected a positive number", name, d->rope_theta);
    AG_TRY(check_rope(d, name, err));
    if (d->residual_scale != 1 && d->has_post_norms)
        return ag_fail(err, AG_E_UNSUPPORTED,
                       "%s: norms behind the sublayers together with a residual multiplier are not supported", name);
    if (!(d->attention_softcap >= 0) || !(d->logit_softcap >= 0))
        return ag_fail(err, AG_E_FORMAT, "%s: a softcap must be a positive number", name);
    const float scales[] = {d->embedding_scale, d->residual_scale,    d->attention_scale,
                            d->logit_scale,     d->attention_softcap, d->logit_softcap};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (!isfinite(scales[i])) return ag_fail(err, AG_E_FORMAT, "%s: a multiplier is not a finite number", name);
    return AG_OK;
}

/* Counted in turns within the context that the model was first trained on: slow frequencies are divided by the factor, fast
 * ones stay, those between are blended. */
static double llama3(const ag_description *d, double freq)
{
    const double low = d->rope_low_freq_factor, high = d->rope_high_freq_factor;
    const double turns = (double)d->rope_original_context * freq / (2 * M_PI);
    if (turns < low) return freq / d->rope_factor;
    if (turns > high) return freq;
    const double smooth = (turns - low) / (high - low);
    return (1 - smooth) * freq / d->rope_factor + smooth * freq;
}

/* The dimension pair that turns `rotations` times within the original context (YaRN, Peng et al. 2023, appendix A.2). */
static double yarn_dimension(const ag_description *d, double rotations)
{
    return (double)ag_rope_dims(d) * log((double)d->rope_original_context / (rotations * 2 * M_PI)) / (2 * log(d->rope_theta));
}

/* Fast dimensions keep their frequency, slow ones are divided by the factor, between them a ramp. */
static void yarn(double *freq, const ag_description *d)
{
    double low = yarn_dimension(d, d->rope_beta_fast), high = yarn_dimension(d, d->rope_beta_slow);
    if (!d->rope_keeps_fractions) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, (double)ag_rope_dims(d) - 1);
    if (low == high) high += 0.001; /* as transformers keeps the ramp finite */
    for (int64_t i = 0; i < ag_rope_dims(d) / 2; i++) {
        const double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        freq[i] = freq[i] / d->rope_factor * ramp + freq[i] * (1 - ramp);
    }
}

int64_t ag_rope_age(const ag_description *d, int64_t length)
{
    if ((d->rope_kind != AG_ROPE_DYNAMIC && d->rope_kind != AG_ROPE_LONGROPE) || length <= d->rope_original_context) return 0;
    return d->rope_kind == AG_ROPE_LONGROPE ? 1 : length;
}

static void plain(double *freq, const ag_description *d, double theta)
{
    const int64_t dims = ag_rope_dims(d);
    for (int64_t i = 0; i < dims / 2; i++) freq[i] = pow(theta, -2.0 * (double)i / (double)dims);
}

void ag_description_rope_local(double *freq, const ag_description *d) { plain(freq, d, d->rope_local_theta); }

void ag_description_rope(double *freq, double *mscale, const ag_description *d, int64_t length)
{
    const int64_t age = ag_rope_age(d, length), dims = ag_rope_dims(d), half = dims / 2;
    double theta = d->rope_theta;
    if (d->rope_kind == AG_ROPE_DYNAMIC && age > 0) {
        const double grown = d->rope_factor * (double)age / (double)d->rope_original_context - (d->rope_factor - 1);
        theta *= pow(grown, (double)dims / ((double)dims - 2));
    }
    plain(freq, d, theta);
    if (d->rope_kind == AG_ROPE_YARN) yarn(freq, d);
    for (int64_t i = 0; i < half; i++) {
        if (d->rope_kind == AG_ROPE_LINEAR) freq[i] /= d->rope_factor;
        if (d->rope_kind == AG_ROPE_LLAMA3) freq[i] = llama3(d, freq[i]);
        if (d->rope_kind == AG_ROPE_FACTORS) freq[i] /= (double)d->rope_factors[i];
        if (d->rope_kind == AG_ROPE_LONGROPE) freq[i] /= (double)(age > 0 ? d->rope_long_factors : d->rope_factors)[i];
    }
    *mscale = d->rope_kind == AG_ROPE_YARN || d->rope_kind == AG_ROPE_LONGROPE ? d->rope_attention_factor : 1;
}
