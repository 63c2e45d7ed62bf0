#!/usr/bin/env python3
"""Makes tests/golden/attention/sdpa.h with torch's scaled_dot_product_attention in double, forward and gradients.

    python3 tools/golden/make_attention.py > tests/golden/attention/sdpa.h

Three cases: causal; three documents in one row, gaps between them, a window of 4; 3 new queries after 6 cached keys."""
import re

import torch

H, G, D = 4, 2, 8
CASES = [("causal", 11, 11, 0, [(0, 11, 0, 11)]), ("packed", 13, 13, 4, [(0, 6, 0, 6), (6, 1, 6, 1), (8, 5, 8, 5)]),
         ("cached", 3, 9, 0, [(0, 3, 0, 9)])]


def emit(name, tensor):
    values = ", ".join(re.sub("0+p", "p", float(v).hex()) + "f" for v in tensor.detach().float().flatten())
    print(f"static const float golden_{name}[] = {{{values}}};")


def heads_first(x):
    return x.transpose(0, 1).unsqueeze(0)


print(f"/* Made by tools/golden/make_attention.py with torch {torch.__version__} on its CPU. */")
print(f"enum {{ GOLDEN_H = {H}, GOLDEN_G = {G}, GOLDEN_D = {D} }};")
torch.manual_seed(7)
for name, n_q, n_kv, window, spans in CASES:
    q, d_o = (torch.randn(n_q, H, D).float().double() for _ in range(2))
    k, v = (torch.randn(n_kv, G, D).float().double() for _ in range(2))
    mask = torch.zeros(n_q, n_kv, dtype=torch.bool)
    for q0, nq, kv0, nkv in spans:
        for t in range(nq):
            last = t + nkv - nq
            mask[q0 + t, kv0 + max(0, last - window + 1 if window else 0):kv0 + last + 1] = True
    rows = mask.any(1)
    inside = q[rows].clone().requires_grad_()
    k.requires_grad_(), v.requires_grad_()
    o = torch.nn.functional.scaled_dot_product_attention(heads_first(inside), heads_first(k), heads_first(v), mask[rows], enable_gqa=True)
    o = o.squeeze(0).transpose(0, 1)
    dq, dk, dv = torch.autograd.grad(o, [inside, k, v], d_o[rows])
    scores = torch.einsum("thd,shd->ths", inside, k.repeat_interleave(H // G, 1)) / D**0.5
    lse = scores.masked_fill(~mask[rows].unsqueeze(1), -torch.inf).logsumexp(-1)
    full = lambda x: torch.zeros(n_q, *x.shape[1:], dtype=x.dtype).index_put((rows,), x)
    for what, tensor in (("q", q), ("k", k), ("v", v), ("do", d_o), ("o", full(o)), ("lse", full(lse)), ("dq", full(dq)), ("dk", dk), ("dv", dv)):
        emit(f"{name}_{what}", tensor)
