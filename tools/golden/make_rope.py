#!/usr/bin/env python3
"""Makes tests/golden/rope/llama.h with the rotary embedding of transformers' Llama, in float.

    python3 tools/golden/make_rope.py > tests/golden/rope/llama.h
"""
import re

import torch
import transformers
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

T, H, D, BASE = 5, 2, 8, 10000.0
POSITIONS = [0, 1, 7, 100, 511]


def emit(name, tensor):
    values = ", ".join(re.sub("0+p", "p", float(v).hex()) + "f" for v in tensor.flatten())
    print(f"static const float {name}[] = {{{values}}};")


print(f"/* Made by tools/golden/make_rope.py with transformers {transformers.__version__}. */")
print(f"enum {{ GOLDEN_T = {T}, GOLDEN_H = {H}, GOLDEN_D = {D}, GOLDEN_BASE = {int(BASE)} }};")
print(f"static const int32_t golden_positions[] = {{{', '.join(map(str, POSITIONS))}}};")
torch.manual_seed(5)
x = torch.randn(T, H, D)
config = LlamaConfig(hidden_size=H * D, num_attention_heads=H, head_dim=D, rope_theta=BASE, max_position_embeddings=512)
cos, sin = LlamaRotaryEmbedding(config)(x, torch.tensor([POSITIONS]))
y, _ = apply_rotary_pos_emb(x.transpose(0, 1).unsqueeze(0), x.transpose(0, 1).unsqueeze(0), cos, sin)
emit("golden_x", x)
emit("golden_y", y.squeeze(0).transpose(0, 1))
