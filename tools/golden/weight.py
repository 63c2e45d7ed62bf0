#!/usr/bin/env python3
"""Makes tests/golden/weight/: NF4 by bitsandbytes, GGUF blocks by the gguf package. Usage: weight.py OUT_DIR

nf4.safetensors, for each case: x, packed, absmax; for those with `.dq.` in the name also offset, absmax_q (nearest code, which
is what bitsandbytes' generic path and its CUDA kernel choose), nested_absmax, and dequant = nf4[code]·(map[q]·nested + offset).
gguf.safetensors, for each type T: T.rows (bytes of two rows of random blocks), T.dequant; and q8_0.x with q8_0.quantized.
"""
import sys
from pathlib import Path

import bitsandbytes.functional as BF
import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
code = BF.get_4bit_type("nf4", device="cpu")
dynamic = BF.create_dynamic_map(signed=True)


def nf4():
    t = {"code": code.clone(), "dynamic_map": dynamic.clone()}
    rng = torch.Generator().manual_seed(7)
    for name, shape, dtype in [("one", (1,), torch.float32), ("short", (63,), torch.float32), ("zeros", (130,), torch.float32),
                               ("odd", (5, 77), torch.float32), ("straddle", (64, 33), torch.bfloat16),
                               ("many", (300, 64), torch.bfloat16)]:
        x = torch.randn(shape, generator=rng) * 0.3
        flat = x.view(-1)
        if name in ("zeros", "odd"):
            flat[64:128] = 0
            flat[:15] = (code[1:] + code[:-1]) / 2  # exact ties, absmax 1
            flat[15] = 1.0
            flat[16:64] = flat[16:64].clamp(-1, 1)
        if name == "many":
            flat[200:205] = 5.0
        x = x.to(dtype)
        packed, state = BF.quantize_4bit(x, blocksize=64, quant_type="nf4")
        t |= {f"{name}.x": x.clone(), f"{name}.packed": packed.view(-1).clone(), f"{name}.absmax": state.absmax.clone()}
        if len(state.absmax) > 1:
            offset = state.absmax.double().mean().float()
            # a float64 input reaches the generic path, which finds the nearest code
            q, nested = torch.ops.bitsandbytes.quantize_blockwise((state.absmax - offset).double(), dynamic, 256)
            nested = nested.float()
            scale = dynamic[q.long()] * nested.repeat_interleave(256)[: len(q)] + offset
            nibbles = torch.stack([packed.view(-1) >> 4, packed.view(-1) & 15], 1).view(-1)[: flat.numel()]
            t |= {f"{name}.offset": offset.reshape(1), f"{name}.absmax_q": q, f"{name}.nested_absmax": nested,
                  f"{name}.dequant": (code[nibbles.long()] * scale.repeat_interleave(64)[: flat.numel()])}
    save_file(t, str(out / "nf4.safetensors"))


def random_blocks(rng, kind, n_rows, n_blocks):
    """Random bits, but f16 scales of moderate size: any bits would bring infinities."""
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (n_rows, n_blocks, size), dtype=np.uint8)
    halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
              "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}[kind.name]
    for at in halves:
        scale = (rng.standard_normal((n_rows, n_blocks, 1)) * 0.01).astype(np.float16)
        scale[0, 0] = 3e-7  # subnormal
        raw[..., at:at + 2] = scale.view(np.uint8)
    return raw.reshape(n_rows, n_blocks * size)


def ggml():
    rng = np.random.default_rng(11)
    t = {}
    for name in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]:
        kind = gguf.GGMLQuantizationType[name]
        rows = random_blocks(rng, kind, 2, 3)
        t[f"{name.lower()}.rows"] = torch.from_numpy(rows.copy())
        t[f"{name.lower()}.dequant"] = torch.from_numpy(np.ascontiguousarray(dequantize(rows, kind)))
    for name in ["F16", "BF16"]:
        kind = gguf.GGMLQuantizationType[name]
        x = (rng.standard_normal((2, 40)) * np.array([1, 1e-6])[:, None]).astype(np.float32)
        rows = np.ascontiguousarray(quantize(x, kind)).view(np.uint8)
        t |= {f"{name.lower()}.x": torch.from_numpy(x), f"{name.lower()}.rows": torch.from_numpy(rows.copy()),
              f"{name.lower()}.dequant": torch.from_numpy(np.ascontiguousarray(dequantize(rows, kind)).reshape(2, 40))}
    x = (rng.standard_normal((3, 96)) * 0.2).astype(np.float32)
    x[1, 32:64] = 0
    x[2, :32] = np.linspace(-1, 1, 32, dtype=np.float32) * 63.5  # halves: rounded away from zero
    x[2, 0] = 127
    t |= {"q8_0.x": torch.from_numpy(x), "q8_0.quantized": torch.from_numpy(quantize(x, gguf.GGMLQuantizationType.Q8_0).copy())}
    save_file(t, str(out / "gguf.safetensors"))


nf4()
ggml()
