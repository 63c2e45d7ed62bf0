#!/usr/bin/env python3
"""Makes tests/golden/adapter_kinds/ and adapter_training/ with PEFT: what an adapter can train beside plain pairs.
Usage: adapter_kinds.py tests/golden

base/ tied/ granite/       a tiny Llama with biases, untied, one with a tied embedding, and a Granite (four multipliers), as
                           save_pretrained writes them
<kind>/                    an adapter with random numbers as save_pretrained writes it, and vectors.safetensors: ids_i, labels_i, logits_i,
                           merged_logits_i (merge_and_unload, f32), grad.<tensor of the file>: of the mean loss over both rows, f64 weights
layout_<name>/             the numbers of bias/ under names that older programs gave: no prefix, the adapter's name, a torch archive
adapter_training/<kind>/   four AdamW steps as transformers' Trainer groups parameters: init/ final/ (adapters), steps.json
                           (loss, gradient norm, learning rates of the groups); adam8: bitsandbytes' AdamW8bit, nearest codes
"""
import json
import shutil
import sys
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GraniteConfig, LlamaConfig, Trainer, get_scheduler

warnings.filterwarnings("ignore")
out, training = Path(sys.argv[1]) / "adapter_kinds", Path(sys.argv[1]) / "adapter_training"
for folder in (out, training):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
torch.set_num_threads(1)
QV, SEVEN = ["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def make_base(name, tied=False, config=LlamaConfig, **options):
    torch.manual_seed(3)
    c = config(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=6,
                    vocab_size=41, max_position_embeddings=64, attention_bias=True, mlp_bias=True, tie_word_embeddings=tied,
                    bos_token_id=0, eos_token_id=1, **options)
    m = AutoModelForCausalLM.from_config(c)
    g = torch.Generator().manual_seed(4)
    for n, p in m.named_parameters():
        p.data = torch.randn(p.shape, generator=g) * (0.3 if "norm" not in n else 0.2) + (1 if "norm" in n else 0)
    m.save_pretrained(out / name)
    (out / name / "generation_config.json").unlink(missing_ok=True)


def base(name, dtype=torch.float32):
    m = AutoModelForCausalLM.from_pretrained(out / name, dtype=dtype, attn_implementation="eager")
    m.name_or_path = "tiny/" + name
    return m


g = torch.Generator().manual_seed(9)
ROWS = [(torch.randint(0, 41, (n,), generator=g), torch.randint(0, 41, (n,), generator=g)) for n in (9, 6)]
for ids, labels in ROWS:
    labels.copy_(ids)
    labels[:2] = -100


def file_name(parameter):
    """The name in the adapter's file of a trained parameter."""
    return parameter.replace(".modules_to_save.default", "").replace(".default", "").replace("lora_magnitude_vector.weight", "lora_magnitude_vector")


def loss_of(model):
    total, targets = 0, 0
    for ids, labels in ROWS:
        logits = model(ids[None]).logits[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum")
        targets += int((labels[1:] >= 0).sum())
    return total / targets


def save(p, folder):
    p.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)


def randomize(p, seed):
    rng = torch.Generator().manual_seed(seed)
    for n, t in p.named_parameters():
        if t.requires_grad:
            noise = torch.randn(t.shape, generator=rng)
            t.data = t.data + 0.2 * noise if "lora_A" not in n and "lora_B" not in n and "embedding" not in n else 0.3 * noise


def kind(name, base_name, **options):
    folder = out / name
    p = get_peft_model(base(base_name), LoraConfig(task_type="CAUSAL_LM", **options))
    randomize(p, sum(map(ord, name)))
    save(p, folder)
    v = {}
    with torch.no_grad():
        for i, (ids, labels) in enumerate(ROWS):
            v[f"ids_{i}"], v[f"labels_{i}"] = ids, labels
            v[f"logits_{i}"] = p(ids[None]).logits[0].clone()
    # (merged anew: merge_and_unload works in place)
    m = PeftModel.from_pretrained(base(base_name), folder).merge_and_unload()
    with torch.no_grad():
        for i, (ids, _) in enumerate(ROWS):
            v[f"merged_logits_{i}"] = m(ids[None]).logits[0].clone()
    d = PeftModel.from_pretrained(base(base_name, torch.float64), folder, is_trainable=True, autocast_adapter_dtype=False).double()
    d.eval()
    loss_of(d).backward()
    stored = load_file(folder / "adapter_model.safetensors")
    for n, t in d.named_parameters():
        if t.requires_grad:
            assert file_name(n) in stored, n
            v["grad." + file_name(n)] = t.grad.float()
    # PEFT saves the bias of a saved module three times
    assert sum(k.startswith("grad.") for k in v) == len(stored) - sum("original_module" in k or "modules_to_save" in k for k in stored), name
    save_file({k: t.contiguous() for k, t in v.items()}, str(folder / "vectors.safetensors"))


make_base("base")
make_base("tied", tied=True)
make_base("granite", config=GraniteConfig, embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.4, logits_scaling=0.5)
kind("dora", "base", r=2, lora_alpha=3, use_dora=True, target_modules=SEVEN, bias="lora_only", exclude_modules=["layers.1.mlp.up_proj"])
kind("bias", "base", r=3, lora_alpha=6, target_modules=QV, bias="all")
kind("saved", "base", r=2, lora_alpha=4, target_modules=["o_proj", "v_proj"], modules_to_save=["norm", "0.self_attn.q_proj", "1.mlp.down_proj"],
     bias="all")
kind("tables", "base", r=2, lora_alpha=4, target_modules=["k_proj"], modules_to_save=["embed_tokens", "lm_head"])
kind("embedding", "base", r=3, lora_alpha=5, target_modules=["embed_tokens", "down_proj"], use_rslora=True)
kind("granite_pair", "granite", r=2, lora_alpha=4, target_modules=["embed_tokens", "o_proj"], modules_to_save=["lm_head", "model.norm"], bias="all")
kind("granite_dora", "granite", r=2, lora_alpha=3, use_dora=True, target_modules=["o_proj", "down_proj"], modules_to_save=["embed_tokens"])
kind("tied_head", "tied", r=2, lora_alpha=4, target_modules=QV, modules_to_save=["lm_head"])
kind("tied_embed", "tied", r=2, lora_alpha=4, target_modules=QV, modules_to_save=["embed_tokens"])
kind("tied_pair", "tied", r=2, lora_alpha=4, target_modules=["embed_tokens", "v_proj"])
kind("patterns", "base", r=2, lora_alpha=4, target_modules=SEVEN, rank_pattern={"(q|k)_proj": 3, "^model.layers.1.mlp.*": 1}, layers_to_transform=[1],
     layers_pattern="layers", alpha_pattern={"up_proj": 7})

# ---- older layouts --------------------------------------------------------------------------------------------------------------
stored = load_file(out / "bias" / "adapter_model.safetensors")
for name, rename in {
    "bare": lambda k: k.removeprefix("base_model.model."),
    "named": lambda k: k.replace("lora_A.", "lora_A.default.").replace("lora_B.", "lora_B.default."),
    "wrapped": lambda k: "module." + k.replace(".base_layer.bias", ".bias"),
}.items():
    (out / f"layout_{name}").mkdir()
    shutil.copy(out / "bias" / "adapter_config.json", out / f"layout_{name}")
    save_file({rename(k): t for k, t in stored.items()}, str(out / f"layout_{name}" / "adapter_model.safetensors"))
(out / "layout_torch").mkdir()
shutil.copy(out / "bias" / "adapter_config.json", out / "layout_torch")
torch.save(stored, out / "layout_torch" / "adapter_model.bin")

# ---- training ---------------------------------------------------------------------------------------------------------------------
STEPS, LR, DECAY = 4, 1e-2, 0.1


def trainer_groups(model):
    """Trainer.create_optimizer's two groups."""
    decays = set(Trainer.get_decay_parameter_names(None, model))
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [{"params": [p for n, p in named if n in decays], "weight_decay": DECAY},
            {"params": [p for n, p in named if n not in decays], "weight_decay": 0.0}]


def train(name, base_name, ratio=None, bits8=False, **options):
    folder = training / name
    p = get_peft_model(base(base_name), LoraConfig(task_type="CAUSAL_LM", **options))
    randomize(p, sum(map(ord, name)))
    save(p, folder / "init")
    p.train()
    if bits8:
        import bitsandbytes as bnb
        import bitsandbytes.backends.cpu.ops as CO

        def nearest(A, code, absmax_out, out_u8, blocksize):
            q, m = torch.ops.bitsandbytes.quantize_blockwise(A.double(), code, 256)
            out_u8.copy_(q.reshape(out_u8.shape)), absmax_out.copy_(m)
        CO._quant_blockwise_fp32_direct = nearest
        manager = bnb.optim.GlobalOptimManager.get_instance()
        for module in p.modules():
            if isinstance(module, torch.nn.Embedding):
                manager.register_module_override(module, "weight", {"optim_bits": 32})
        optimizer = bnb.optim.AdamW8bit(trainer_groups(p), lr=LR, betas=(0.9, 0.999), eps=1e-8, min_8bit_size=512 if bits8 == "small" else 4096)
    elif ratio:
        optimizer = create_loraplus_optimizer(p, torch.optim.AdamW, lr=LR, loraplus_lr_ratio=ratio, loraplus_weight_decay=DECAY,
                                              betas=(0.9, 0.999), eps=1e-8)
    else:
        optimizer = torch.optim.AdamW(trainer_groups(p), lr=LR, betas=(0.9, 0.999), eps=1e-8)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=STEPS)
    params = [t for t in p.parameters() if t.requires_grad]
    steps = []
    for _ in range(STEPS):
        loss = loss_of(p)
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(params, 1.0))
        steps.append({"loss": float(loss), "grad_norm": norm, "lr": schedule.get_last_lr()})
        optimizer.step(), schedule.step(), optimizer.zero_grad()
    save(p, folder / "final")
    (folder / "steps.json").write_text(json.dumps({"base": base_name, "ratio": ratio, "lr": LR, "weight_decay": DECAY, "steps": steps}, indent=1) + "\n")


train("dora", "base", r=2, lora_alpha=3, use_dora=True, target_modules=["q_proj", "down_proj"], bias="lora_only")
train("saved", "tied", r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["embed_tokens", "norm"], bias="all")
train("loraplus", "base", ratio=8.0, r=2, lora_alpha=4, target_modules=["embed_tokens", "o_proj"], bias="all")
train("adam8", "base", bits8=True, r=171, lora_alpha=342, target_modules=["up_proj"], layers_to_transform=[1], modules_to_save=["norm"])
