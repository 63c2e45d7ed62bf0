#!/usr/bin/env python3
"""Makes what llama.cpp's quantizer makes of two models: weights and their blocks, and which tensor got which type.

usage: gguf_quantized.py NARROW WIDE OUT_DIR

NARROW and WIDE stand for files <name>.f32.gguf and <name>.<type>.llama.gguf, made of the former by
`llama-quantize <name>.f32.gguf <name>.<type>.llama.gguf <type>` for q4_0, q4_K_M, q5_K_M and q6_K. NARROW's rows are no multiple of 256
(SmolLM2-135M: 576, tied head), WIDE's are (768, a head of its own).

weight/encode.safetensors: wide.x [8,768], narrow.x [8,576], and for each type T the bytes T.blocks of those rows.
gguf/recipes.txt: a line "narrow|wide recipe tensor type…", types in the order of layers where the tensor is in layers.
"""
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader
from safetensors.torch import save_file

narrow, wide, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
RECIPES = ["q4_0", "q4_K_M", "q5_K_M", "q6_K"]


def tensors(path):
    return {t.name: t for t in GGUFReader(path).tensors}


lines, arrays = [], {}
ROWS = slice(40, 48)
for label, name, wanted in (("narrow", narrow, {"Q5_0": ("q4_K_M", "blk.1.attn_q.weight"), "Q5_1": ("q5_K_M", "blk.1.attn_q.weight")}),
                            ("wide", wide, {"Q4_0": ("q4_0", "blk.1.attn_q.weight"), "Q4_K": ("q4_K_M", "blk.1.attn_q.weight"),
                                            "Q5_K": ("q5_K_M", "blk.1.attn_q.weight"), "Q6_K": ("q6_K", "blk.1.attn_q.weight")})):
    arrays[label + ".x"] = torch.from_numpy(tensors(name + ".f32.gguf")["blk.1.attn_q.weight"].data[ROWS].astype(np.float32).copy())
    for recipe in RECIPES:
        found = tensors(f"{name}.{recipe}.llama.gguf")
        kinds = {}
        for tensor in found.values():
            parts = tensor.name.split(".")
            kind, layer = (".".join(parts[2:]), int(parts[1])) if parts[0] == "blk" else (tensor.name, 0)
            if kind.endswith("weight") and "norm" not in kind:
                kinds.setdefault(kind, {})[layer] = tensor.tensor_type.name.lower()
        for kind, types in sorted(kinds.items()):
            lines.append(" ".join([label, recipe.lower(), kind] + [types[i] for i in sorted(types)]))
        for type_name, (of_recipe, tensor) in wanted.items():
            if of_recipe == recipe:
                assert found[tensor].tensor_type.name == type_name
                arrays[type_name.lower() + ".blocks"] = torch.from_numpy(found[tensor].data[ROWS].copy())
(out / "weight").mkdir(parents=True, exist_ok=True)
(out / "gguf").mkdir(parents=True, exist_ok=True)
save_file(arrays, str(out / "weight" / "encode.safetensors"))
(out / "gguf" / "recipes.txt").write_text("\n".join(lines) + "\n")
