#!/usr/bin/env python3
"""Makes tests/golden/head_ce/torch.h with torch.nn.functional.cross_entropy in double.

    python3 tools/golden/make_head_ce.py > tests/golden/head_ce/torch.h
"""
import torch

M, C, V, SCALE = 11, 24, 61, 0.5


def emit(name, tensor):
    values = ", ".join("%.9gf" % v if "." in "%.9g" % v or "e" in "%.9g" % v else "%.9g.0f" % v for v in tensor.flatten().tolist())
    print(f"static const float {name}[{tensor.numel()}] = {{{values}}};")


def emit_ids(name, tensor):
    print(f"static const int32_t {name}[{tensor.numel()}] = {{{', '.join(str(int(v)) for v in tensor)}}};")


torch.manual_seed(3)
x = torch.randn(M, C).double().requires_grad_()
w = torch.randn(V, C).double()
targets = torch.randint(V, (M,))
logits = SCALE * (x @ w.T)
nll = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
torch.nn.functional.cross_entropy(logits, targets).backward()
print(f"/* Made by tools/golden/make_head_ce.py with torch {torch.__version__}. */")
print("#include <stdint.h>")
print(f"enum {{ GOLDEN_M = {M}, GOLDEN_C = {C}, GOLDEN_V = {V} }};")
print(f"static const float golden_logit_scale = {SCALE}f, golden_dloss = 1.0f / {M};")
emit("golden_x", x.detach())
emit("golden_w", w)
emit_ids("golden_targets", targets)
emit_ids("golden_best", logits.argmax(1))
emit("golden_nll", nll.detach())
emit("golden_dx", x.grad)
