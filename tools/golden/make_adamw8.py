#!/usr/bin/env python3
"""Makes tests/golden/adamw8/steps.safetensors with bitsandbytes' AdamW8bit on the CPU. Usage: make_adamw8.py OUT_DIR

big. [67,65]: moments in 8 bits, blocks of 256 with a short last one; small. [31,7]: moments in f32. p0, grad1 … grad4; then p, state1, state2,
absmax1, absmax2 after each step; qmap1, qmap2. Codes are the nearest ones (bitsandbytes' generic path), not those of its CPU kernel's table.
"""
import sys
from pathlib import Path

import bitsandbytes as bnb
import bitsandbytes.backends.cpu.ops as CO
import torch
from safetensors.torch import save_file


def nearest(A, code, absmax_out, out_u8, blocksize):
    q, m = torch.ops.bitsandbytes.quantize_blockwise(A.double(), code, 256)
    out_u8.copy_(q.reshape(out_u8.shape)), absmax_out.copy_(m)


CO._quant_blockwise_fp32_direct = nearest
torch.set_num_threads(1)
out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
g = torch.Generator().manual_seed(11)
params = {"big": torch.nn.Parameter(torch.randn(67, 65, generator=g) * 0.1), "small": torch.nn.Parameter(torch.randn(31, 7, generator=g) * 0.1)}
v = {f"{k}.p0": p.detach().clone() for k, p in params.items()}
optimizer = bnb.optim.AdamW8bit(params.values(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
for step in range(1, 5):
    for k, p in params.items():
        p.grad = torch.randn(p.shape, generator=g) * 10.0 ** (torch.randn(p.shape, generator=g).clamp(-1, 1) - 2)
        p.grad.view(-1)[:300] *= 0 if step < 3 else 1  # a block of zeros and more
        v[f"{k}.grad{step}"] = p.grad.clone()
    optimizer.step()
    for k, p in params.items():
        v[f"{k}.p{step}"] = p.detach().clone()
        for name in ("state1", "state2", "absmax1", "absmax2"):
            if name in optimizer.state[p]:
                v[f"{k}.{name}.{step}"] = optimizer.state[p][name].clone()
v["qmap1"], v["qmap2"] = optimizer.state[params["big"]]["qmap1"].clone(), optimizer.state[params["big"]]["qmap2"].clone()
save_file({k: t.contiguous() for k, t in v.items()}, str(out / "steps.safetensors"))
