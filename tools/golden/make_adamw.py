#!/usr/bin/env python3
"""Makes tests/golden/adamw/steps.h with torch.optim.AdamW: 5 steps over 37 values, with and without weight decay.

    python3 tools/golden/make_adamw.py > tests/golden/adamw/steps.h
"""
import torch

N, STEPS = 37, 5


def line(values):
    return ", ".join(float(v).hex() + "f" for v in values)


def emit(name, rows):
    body = ",\n    ".join("{" + line(r) + "}" for r in rows)
    print(f"static const float {name}[{len(rows)}][{N}] = {{\n    {body}}};")


print(f"/* Made by tools/golden/make_adamw.py with torch {torch.__version__} on its CPU. */")
print(f"enum {{ GOLDEN_N = {N}, GOLDEN_STEPS = {STEPS} }};")
torch.manual_seed(11)
start = torch.randn(N)
gradients = [torch.randn(N) * 10.0 ** (-i) for i in range(STEPS)]
emit("golden_start", [start])
emit("golden_g", gradients)
CASES = [("a", dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)),
         ("b", dict(lr=2e-4, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)),
         ("c", dict(lr=3e-3, betas=(0.3, 0.99), eps=1e-8, weight_decay=0.01))]
for name, options in CASES:
    p = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([p], foreach=False, fused=False, **options)
    ps, ms, vs = [], [], []
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
        state = optimizer.state[p]
        ps.append(p.detach().clone())
        ms.append(state["exp_avg"].clone())
        vs.append(state["exp_avg_sq"].clone())
    emit(f"golden_{name}_p", ps)
    emit(f"golden_{name}_m", ms)
    emit(f"golden_{name}_v", vs)
