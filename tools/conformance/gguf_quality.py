#!/usr/bin/env python3
"""agoge's quantized GGUF files against llama.cpp's own, of the same model and text.

usage: gguf_quality.py AGOGE LLAMA_BIN MODEL_DIR TEXT [--wide] [--chunks N] [TYPE…]     (needs gguf; --wide needs torch and safetensors)

LLAMA_BIN holds llama.cpp's llama-quantize and llama-perplexity. For each type (q4_k_m q5_k_m q6_k q4_0): every tensor must have the type that
llama.cpp gives it; then the error of each type of tensor against the f32 weights, and both files' perplexities, with N chunks of 512 tokens.

--wide measures another model with the same function first made of MODEL_DIR, a Llama of 9 heads and 576 wide (SmolLM2-135M), whose rows no k-quant
fits: 768 wide with zeros, norms folded into the matrices, the residual stream turned in random planes, heads turned, neurons scaled, a head of its
own. Its weights are no longer on the grid of the file that SmolLM2-135M comes in.
"""
import argparse
import json
import math
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


def make_wide(source, out):
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    config = json.loads((source / "config.json").read_text())
    old = {name: tensor.double() for name, tensor in load_file(source / "model.safetensors").items()}
    C, N, D, H, G, F = 576, 768, 64, 12, 4, config["intermediate_size"]
    assert config["hidden_size"] == C and config["num_attention_heads"] == 9 and config["num_key_value_heads"] == 3

    def pad(x, rows, columns):
        y = torch.zeros(rows, columns, dtype=torch.float64)
        y[: x.shape[0], : x.shape[1]] = x
        return y

    turn = torch.eye(N, dtype=torch.float64)
    for _ in range(3):
        order, angle = torch.randperm(N), torch.rand(N // 2, dtype=torch.float64) * 2 * math.pi
        planes = torch.eye(N, dtype=torch.float64)
        i, j = order[0::2], order[1::2]
        planes[i, i] = planes[j, j] = angle.cos()
        planes[i, j], planes[j, i] = -angle.sin(), angle.sin()
        turn = turn @ planes
    keep = math.sqrt(C / N)  # a mean over 768 instead of 576
    embed = pad(old["model.embed_tokens.weight"], config["vocab_size"], N)

    def norm(name):
        return torch.cat([old[name] * keep, torch.zeros(N - C, dtype=torch.float64)])

    new = {"model.embed_tokens.weight": embed @ turn, "model.norm.weight": torch.ones(N),
           "lm_head.weight": (embed * norm("model.norm.weight")) @ turn}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        attn, ffn = norm(at + "input_layernorm.weight"), norm(at + "post_attention_layernorm.weight")
        for name in ("input_layernorm", "post_attention_layernorm"):
            new[at + name + ".weight"] = torch.ones(N)
        projection = {name: old[f"{at}{part}.{name}_proj.weight"] for part, names in (("self_attn", "qkvo"), ("mlp", ("gate", "up", "down")))
                      for name in names}
        for name, rows in (("q", H * D), ("k", G * D)):
            new[f"{at}self_attn.{name}_proj.weight"] = (pad(projection[name], rows, N) * attn) @ turn
        v, o = (pad(projection["v"], G * D, N) * attn) @ turn, turn.T @ pad(projection["o"], N, H * D)
        heads = torch.linalg.qr(torch.randn(G, D, D, dtype=torch.float64))[0]
        new[at + "self_attn.v_proj.weight"] = torch.einsum("gij,gjk->gik", heads, v.view(G, D, N)).reshape(G * D, N)
        new[at + "self_attn.o_proj.weight"] = torch.einsum("nhj,hij->nhi", o.view(N, H, D), heads.repeat_interleave(H // G, 0)).reshape(N, H * D)
        scale = torch.exp(0.3 * torch.randn(F, dtype=torch.float64))
        new[at + "mlp.gate_proj.weight"] = (pad(projection["gate"], F, N) * ffn) @ turn
        new[at + "mlp.up_proj.weight"] = (pad(projection["up"], F, N) * ffn) @ turn * scale[:, None]
        new[at + "mlp.down_proj.weight"] = turn.T @ pad(projection["down"], N, F) / scale
    config.update(hidden_size=N, num_attention_heads=H, num_key_value_heads=G, head_dim=D, rms_norm_eps=config["rms_norm_eps"] * C / N,
                  tie_word_embeddings=False, torch_dtype="float32")
    config.pop("dtype", None)
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.float().contiguous() for name, tensor in new.items()}, out / "model.safetensors", metadata={"format": "pt"})
    for path in source.glob("*token*.json"):
        shutil.copy(path, out)


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def compare(f32, ours, theirs):
    """Prints the errors of both; ends the program where a tensor has another type."""
    base, a, b = ({t.name: t for t in GGUFReader(path).tensors} for path in (f32, ours, theirs))
    assert set(a) == set(b), "other tensors"
    sums = defaultdict(lambda: np.zeros(3))
    for name, tensor in a.items():
        assert tensor.tensor_type == b[name].tensor_type, f"{name}: {tensor.tensor_type.name}, llama.cpp takes {b[name].tensor_type.name}"
        if tensor.tensor_type.name == "F32":
            continue
        x = base[name].data.reshape(-1).astype(np.float32)
        errors = [float(((dequantize(t.data, t.tensor_type).reshape(-1) - x) ** 2).sum()) for t in (tensor, b[name])]
        sums[tensor.tensor_type.name] += [*errors, float((x * x).sum())]
    for kind, (p, q, r) in sums.items():
        print(f"  {kind}: error {math.sqrt(p / r):.5f}, llama.cpp {math.sqrt(q / r):.5f}, ratio {math.sqrt(p / q):.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("agoge")
    parser.add_argument("llama_bin", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("text")
    parser.add_argument("types", nargs="*", default=["q4_k_m", "q5_k_m", "q6_k", "q4_0"])
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--chunks", default="16")
    o = parser.parse_args()

    def perplexity(path):
        said = run(o.llama_bin / "llama-perplexity", "-m", path, "-f", o.text, "-c", "512", "--chunks", o.chunks)
        return float(re.search(r"Final estimate: PPL = ([0-9.]+)", said)[1])

    with tempfile.TemporaryDirectory() as work:
        work, model = Path(work), o.model
        if o.wide:
            model = work / "wide"
            make_wide(o.model, model)
        f32 = work / "f32.gguf"
        run(o.agoge, "export-gguf", "--model", model, "--type", "f32", "--out", f32)
        print("unquantized: perplexity", perplexity(f32))
        for kind in o.types:
            ours, theirs = work / f"{kind}.agoge.gguf", work / f"{kind}.llama.gguf"
            run(o.agoge, "quantize", "--model", model, "--type", kind, "--out", ours)
            run(o.llama_bin / "llama-quantize", f32, theirs, kind.replace("_k", "_K").replace("_m", "_M"))
            print(kind)
            compare(f32, ours, theirs)
            a, b = perplexity(ours), perplexity(theirs)
            print(f"  perplexity {a:.4f}, llama.cpp {b:.4f}, ratio {a / b:.4f}", flush=True)
            ours.unlink()
            theirs.unlink()


if __name__ == "__main__":
    main()
