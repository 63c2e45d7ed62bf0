#include "nf4_problem.h"

nf4_problem nf4_problem_create(int64_t N, int64_t K, bool doubly_quantized, uint32_t seed)
{
    const int64_t n = N * K, n_blocks = (n + 63) / 64, n_nested = (n_blocks + 255) / 256;
    nf4_problem p = {.host = {.type = AG_W_NF4, .N = N, .K = K}, .device = {.N = N, .K = K}};
    p.values = host_floats(n), p.absmax = host_floats(n_blocks), p.nested = host_floats(n_nested);
    p.packed = malloc((size_t)(n / 2)), p.absmax_q = malloc((size_t)n_blocks);
    assert_true(p.packed && p.absmax_q);
    check_fill(p.values, n, seed, 0.1f);
    ag_nf4_quantize(p.packed, p.absmax, p.values, n);
    p.host.data = p.packed;
    p.device.packed = device_bytes(p.packed, (size_t)(n / 2));
    if (doubly_quantized) {
        ag_nf4_double_quantize(p.absmax_q, p.nested, &p.host.offset, p.absmax, n_blocks);
        p.host.absmax_q = p.absmax_q, p.host.nested_absmax = p.nested;
        p.device.absmax_q = device_bytes(p.absmax_q, (size_t)n_blocks), p.device.nested_absmax = device_f32(p.nested, n_nested);
        p.device.map = device_f32(ag_dynamic_map_signed(), 256), p.device.offset = p.host.offset;
    } else {
        p.host.absmax = p.absmax;
        p.device.absmax = device_f32(p.absmax, n_blocks);
    }
    return p;
}

void nf4_problem_free(nf4_problem *p)
{
    device_drop((void *)p->device.packed), device_drop((void *)p->device.absmax), device_drop((void *)p->device.absmax_q);
    device_drop((void *)p->device.nested_absmax), device_drop((void *)p->device.map);
    free(p->values), free(p->absmax), free(p->nested), free(p->packed), free(p->absmax_q);
}
