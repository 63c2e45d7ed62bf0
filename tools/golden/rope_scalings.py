#!/usr/bin/env python3
"""Inverse frequencies and attention factors of every rope scaling. Writes tests/golden/description/rope_scalings.json (run from the root).

    python3 tools/golden/rope_scalings.py      # needs torch and transformers >= 5; last run with 2.15.0 and 5.24.0

A row has a config (as a config.json has it, old or new spelling), a sequence length, and what transformers' ROPE_INIT_FUNCTIONS make of both.
"""
import json
import os
import pathlib

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", CUDA_VISIBLE_DEVICES="")
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SIZES = dict(hidden_size=64, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, vocab_size=9)
YARN = dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=32768)
LONG = dict(short_factor=[1.0, 1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0], long_factor=[1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 20.0, 32.0])


def old(rope, **rest):
    """As transformers before 5 spelt it."""
    rope = dict(rope)
    return dict(rope_theta=rope.pop("rope_theta"), rope_scaling=dict(type=rope.pop("rope_type"), **rope), **rest)


CASES = [
    ("llama", dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=3.0), max_position_embeddings=512), [100]),
    ("llama", dict(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0), max_position_embeddings=512), [100, 512, 513, 2000]),
    ("llama", old(dict(rope_type="dynamic", rope_theta=5e5, factor=8.0), max_position_embeddings=64), [64, 500]),
    ("qwen3", dict(rope_parameters=YARN, max_position_embeddings=131072, head_dim=128), [100]),
    ("qwen2", old(YARN, max_position_embeddings=32768), [100]),
    ("llama", dict(rope_parameters=dict(YARN, attention_factor=1.25, beta_fast=16.0, beta_slow=2.0), max_position_embeddings=131072), [100]),
    ("llama", dict(rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=1.2), max_position_embeddings=131072), [100]),
    ("llama", dict(rope_parameters=dict(YARN, truncate=False, rope_theta=150000.0, original_max_position_embeddings=4096), max_position_embeddings=16384), [100]),
    ("llama", dict(rope_parameters=dict(YARN, factor=0.5), max_position_embeddings=16384), [100]),
    ("llama", dict(rope_parameters=dict(YARN, original_max_position_embeddings=16), max_position_embeddings=64), [100]),
    ("llama", dict(rope_parameters=dict(rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=256, **LONG), max_position_embeddings=4096),
     [256, 257]),
    ("llama", dict(rope_parameters=dict(rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=256, factor=5.0, **LONG),
                   max_position_embeddings=4096), [10, 1000]),
    ("llama", dict(rope_parameters=dict(rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=256, attention_factor=1.5, **LONG),
                   max_position_embeddings=256), [1000]),
    ("phi3", old(dict(rope_type="longrope", rope_theta=1e4, **LONG), max_position_embeddings=131072, original_max_position_embeddings=4096, pad_token_id=0),
     [4096, 4097]),
    ("phi3", old(dict(rope_type="longrope", rope_theta=1e4, **LONG), max_position_embeddings=4096, pad_token_id=0), [5000]),
    ("granite", dict(rope_parameters=dict(rope_type="llama3", rope_theta=1e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                          original_max_position_embeddings=128), max_position_embeddings=1024), [100]),
]
rows = []
for model_type, extra, lengths in CASES:
    config = dict(model_type=model_type, **SIZES, **extra)
    for length in lengths:
        c = AutoConfig.for_model(**json.loads(json.dumps(config)))
        freq, factor = ROPE_INIT_FUNCTIONS[c.rope_parameters["rope_type"]](c, "cpu", seq_len=length)
        rows.append(dict(config=config, length=length, freq=[float(f) for f in freq], attention_factor=float(factor)))
out = pathlib.Path("tests/golden/description/rope_scalings.json")
out.write_text("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")
