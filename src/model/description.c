#define _GNU_SOURCE
#include "model/description.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name, *path;
} projections[AG_N_PROJ] = {
    [AG_PROJ_Q] = {"q_proj", "self_attn.q_proj"},    [AG_PROJ_K] = {"k_proj", "self_attn.k_proj"},
    [AG_PROJ_V] = {"v_proj", "self_attn.v_proj"},    [AG_PROJ_O] = {"o_proj", "self_attn.o_proj"},
    [AG_PROJ_GATE] = {"gate_proj", "mlp.gate_proj"}, [AG_PROJ_UP] = {"up_proj", "mlp.up_proj"},
    [AG_PROJ_DOWN] = {"down_proj", "mlp.down_proj"},
};

const char *ag_projection_name(ag_projection p) { return projections[p].name; }
const char *ag_projection_path(ag_projection p) { return projections[p].path; }

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

int64_t ag_description_parameters(const ag_description *d)
{
    int64_t per_layer = 2 * d->C, N, K;
    for (int p = 0; p < AG_N_PROJ; p++) {
        ag_projection_size(&N, &K, d, (ag_projection)p);
        per_layer += N * K + (d->has_bias[p] ? N : 0);
    }
    return d->L * per_layer + d->C + d->V * d->C * (d->tied ? 1 : 2);
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
    if ((d->rope_kind == AG_ROPE_LINEAR || d->rope_kind == AG_ROPE_LLAMA3) && !(d->rope_factor > 0 && isfinite(d->rope_factor)))
        return ag_fail(err, AG_E_FORMAT, "%s: the rope scaling's factor is %g, expected a positive number", name,
                       d->rope_factor);
    if (d->rope_kind == AG_ROPE_LLAMA3 && !(d->rope_low_freq_factor > 0 && d->rope_high_freq_factor > d->rope_low_freq_factor &&
                                            isfinite(d->rope_high_freq_factor)))
        return ag_fail(err, AG_E_FORMAT, "%s: low_freq_factor %g and high_freq_factor %g must be positive and ascending", name,
                       d->rope_low_freq_factor, d->rope_high_freq_factor);
    if (d->residual_scale != 1 && (d->has_bias[AG_PROJ_O] || d->has_bias[AG_PROJ_DOWN]))
        return ag_fail(err, AG_E_UNSUPPORTED, "%s: biases of o_proj or down_proj together with a residual multiplier are not supported",
                       name);
    const float scales[] = {d->embedding_scale, d->residual_scale, d->attention_scale, d->logit_scale};
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

void ag_description_rope(double *freq, double *mscale, const ag_description *d)
{
    for (int64_t i = 0; i < d->D / 2; i++) {
        double f = pow(d->rope_theta, -2.0 * (double)i / (double)d->D);
        switch (d->rope_kind) {
        case AG_ROPE_DEFAULT: break;
        case AG_ROPE_LINEAR: f /= d->rope_factor; break;
        case AG_ROPE_LLAMA3: f = llama3(d, f); break;
        case AG_ROPE_FACTORS: f /= (double)d->rope_factors[i]; break;
        }
        freq[i] = f;
    }
    *mscale = 1;
}
