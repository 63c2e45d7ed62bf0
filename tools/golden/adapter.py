#!/usr/bin/env python3
"""Makes tests/golden/adapter/ with PEFT on a tiny Llama. Usage: adapter.py OUT_DIR

all7/ rslora/ qv/ pattern/ layers/ regex/   adapters with random A and B, as save_pretrained writes them
config_<what>.json         configs of adapters that agoge must refuse
init.safetensors           A and B of get_peft_model right after torch.manual_seed(42), r 3, all seven projections
merged.safetensors         <projection>.base, .merged: merge_and_unload of all7/ in f32 and rslora/, layer 1 (".rslora_merged")
"""
import shutil
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def model():
    torch.manual_seed(1)
    c = LlamaConfig(hidden_size=48, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    head_dim=12, vocab_size=64, max_position_embeddings=64)
    m = AutoModelForCausalLM.from_config(c)
    m.name_or_path = "tiny/llama"
    return m


def adapter(name, seed=None, **options):
    m = model()
    c = LoraConfig(task_type="CAUSAL_LM", revision="0" * 40, **options)
    if seed is not None:
        torch.manual_seed(seed)
    p = get_peft_model(m, c)
    if seed is None:
        rng = torch.Generator().manual_seed(len(name))
        for n, t in p.named_parameters():
            if "lora_" in n:
                t.data = torch.randn(t.shape, generator=rng) * 0.2
    return p


def save(name, **options):
    p = adapter(name, **options)
    p.save_pretrained(out / name)
    (out / name / "README.md").unlink(missing_ok=True)
    return p


for name, options in {
    "all7": dict(r=4, lora_alpha=4, lora_dropout=0.25, target_modules=SEVEN),
    "rslora": dict(r=2, lora_alpha=12, use_rslora=True, target_modules=SEVEN),
    "qv": dict(r=3, lora_alpha=16, target_modules=["q_proj", "v_proj"]),
    "pattern": dict(r=4, lora_alpha=8, rank_pattern={"q_proj": 6, "layers.0.mlp.down_proj": 2}, target_modules=["q_proj", "v_proj", "down_proj"],
                    alpha_pattern={"layers.1.self_attn.q_proj": 16, "v_proj": 3}, layers_to_transform=[0, 1]),
    "layers": dict(r=2, lora_alpha=8, layers_to_transform=[1], target_modules=["q_proj", "down_proj"]),
    "regex": dict(r=2, lora_alpha=5, target_modules=r".*layers\.0\..*\.(k|up)_proj"),
}.items():
    save(name, **options)

for name, options in {
    "dora": dict(r=2, use_dora=True, target_modules=["q_proj"]),
    "save_head": dict(r=2, modules_to_save=["lm_head"], target_modules=["q_proj"]),
    "regex_key": dict(r=2, rank_pattern={"(q|k)_proj": 6}, target_modules=["q_proj"]),
    "bias": dict(r=2, bias="all", target_modules=["q_proj"]),
    "embed": dict(r=2, target_modules=["q_proj", "embed_tokens"]),
}.items():
    p = adapter(name, **options)
    p.save_pretrained(out / "tmp")
    shutil.copy(out / "tmp" / "adapter_config.json", out / f"config_{name}.json")
    shutil.rmtree(out / "tmp")

p = adapter("init", seed=42, r=3, target_modules=SEVEN)
save_file({n.replace(".default", ""): t.detach().clone() for n, t in p.named_parameters() if "lora_" in n}, str(out / "init.safetensors"))

merged = {}
for name, key in [("all7", "merged"), ("rslora", "rslora_merged")]:
    base = dict(model().named_parameters())
    m = adapter(name, **(dict(r=4, lora_alpha=4, target_modules=SEVEN) if name == "all7" else
                         dict(r=2, lora_alpha=12, use_rslora=True, target_modules=SEVEN))).merge_and_unload()
    for n, t in m.named_parameters():
        leaf = n.split(".")[-2]
        if n.startswith("model.layers.1.") and leaf in ("q_proj", "v_proj", "down_proj"):
            merged[f"{leaf}.{key}"] = t.detach().clone()
            merged[f"{leaf}.base"] = base[n].detach().clone()
save_file(merged, str(out / "merged.safetensors"))
