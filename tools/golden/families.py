#!/usr/bin/env python3
"""Tiny models of every family and rope scaling, and what transformers and PEFT make of them. Writes tests/golden/families/.

    python3 tools/golden/families.py LLAMA_CPP       # run from the root; needs torch, transformers >= 5, peft, gguf, safetensors;
                                                     # last run with 2.15.0, 5.24.0, 0.21.2, 0.19, 0.8 and llama.cpp's tree of llama-cpp-python 0.3.36

<model>/                 config.json and weights (bf16), as save_pretrained writes them; Granite 4 and MiniCPM spelt as their own files are
<model>/vectors.safetensors   ids_i, labels_i, logits_i of each row alone (f32, eager attention)
<model>/adapter/         a PEFT adapter, with vectors.safetensors: logits_i, and grad.<tensor> of Σ cross-entropy / targets in f64
generated.json           greedy answers of transformers' generate that pass the context after which the rope scaling changes
<model>.gguf             the same model (bf16) by llama.cpp's own converter, where it knows all of the model; without a tokenizer

MiniCPM (2024) has no class in transformers and its own code is not to be had offline: the numbers come from GraniteForCausalLM with the
multipliers that modeling_minicpm.py's formulas amount to (embedding scale_emb, residual scale_depth/sqrt(layers), logits over
hidden/dim_model_base, attention 1/sqrt(head_dim)), which is the same function.
"""
import json
import os
import pathlib
import shutil
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", CUDA_VISIBLE_DEVICES="", TQDM_DISABLE="1")
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

transformers.utils.logging.disable_progress_bar()
DEFAULT = dict(rope_type="default", rope_theta=100.0)
SIZES = dict(hidden_size=16, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=40,
             max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=0)
NARROW = {k: v for k, v in SIZES.items() if k != "head_dim"}
GEMMA = dict(SIZES, sliding_window=4, hidden_activation="gelu_pytorch_tanh")
MODELS = {
    "qwen3": dict(model_type="qwen3", rope_parameters=dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16), **SIZES),
    "smollm3": dict(model_type="smollm3", rope_parameters=DEFAULT, **dict(NARROW, num_hidden_layers=4)),
    "phi3": dict(model_type="phi3", original_max_position_embeddings=8,
                 rope_parameters=dict(rope_type="longrope", rope_theta=100.0, short_factor=[1.0, 1.2], long_factor=[1.5, 3.0]), **NARROW),
    "phi4mini": dict(model_type="phi3", original_max_position_embeddings=8, head_dim=8,
                     rope_parameters=dict(rope_type="longrope", rope_theta=100.0, partial_rotary_factor=0.75, short_factor=[1.0, 1.2, 1.1],
                                          long_factor=[1.5, 3.0, 4.0]), **dict(NARROW, num_attention_heads=2, num_key_value_heads=1)),
    "granite4": dict(model_type="granitemoehybrid", shared_intermediate_size=12, layer_types=["full_attention"] * 2, num_local_experts=0,
                     num_experts_per_tok=0, position_embedding_type="rope", embedding_multiplier=2.0, residual_multiplier=0.5,
                     attention_multiplier=0.4, logits_scaling=1.5, mamba_n_heads=4, mamba_d_head=8, rope_parameters=DEFAULT, **NARROW),
    "minicpm": dict(model_type="minicpm", scale_emb=3, scale_depth=1.4, dim_model_base=8,
                    rope_parameters=dict(rope_type="linear", rope_theta=100.0, factor=2.0), **NARROW),
    "gemma2": dict(model_type="gemma2", query_pre_attn_scalar=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0, rope_parameters=DEFAULT, **GEMMA),
    "gemma3": dict(model_type="gemma3_text", query_pre_attn_scalar=8,
                   rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=2.0),
                                        sliding_attention=dict(rope_type="default", rope_theta=10000.0)), **dict(GEMMA, num_hidden_layers=6)),
    "dynamic": dict(model_type="llama", rope_parameters=dict(rope_type="dynamic", rope_theta=100.0, factor=2.0), **dict(NARROW, max_position_embeddings=8)),
}
IN_GGUF = ["qwen3", "smollm3", "phi3", "phi4mini", "granite4", "minicpm", "gemma3"]
ADAPTERS = {
    "qwen3": ["q_proj", "k_proj", "v_proj"],
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "granite4": ["q_proj", "k_proj", "v_proj", "o_proj", "input_linear", "output_linear"],
    "gemma2": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gemma3": ["q_proj", "k_proj"],
}
ROWS = [13, 7]


def class_config(spec):
    """The config of the class that computes: for MiniCPM, Granite's."""
    spec = dict(spec)
    if spec["model_type"] == "minicpm":
        head_dim = spec["hidden_size"] // spec["num_attention_heads"]
        scale, depth, base = spec.pop("scale_emb"), spec.pop("scale_depth"), spec.pop("dim_model_base")
        spec.update(model_type="granite", embedding_multiplier=float(scale), residual_multiplier=depth / spec["num_hidden_layers"] ** 0.5,
                    logits_scaling=spec["hidden_size"] / base, attention_multiplier=head_dim**-0.5)
    return AutoConfig.for_model(**spec, dtype="bfloat16")


def build(spec, seed, scale=0.4):
    model = AutoModelForCausalLM.from_config(class_config(spec), dtype=torch.bfloat16, attn_implementation="eager")
    g = torch.Generator().manual_seed(seed)
    around = 0 if spec["model_type"].startswith("gemma") else 1
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=g)
            p.copy_(around + 0.3 * x.clamp(-2, 2) if "norm" in name else scale * x)
    return model.eval()


def respell(folder, spec):
    """config.json as the family's published files have it, where transformers 5 spells it otherwise."""
    path = folder / "config.json"
    c = json.loads(path.read_text())
    if spec["model_type"] == "granitemoehybrid":
        c["layer_types"] = ["attention"] * len(c["layer_types"])
    if spec["model_type"] == "minicpm":
        for key in ["embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier", "rope_parameters"]:
            c.pop(key)
        rope = dict(spec["rope_parameters"])
        c.update(model_type="minicpm", architectures=["MiniCPMForCausalLM"], rope_theta=rope.pop("rope_theta"),
                 rope_scaling=rope if rope["rope_type"] != "default" else None, **{k: spec[k] for k in ["scale_emb", "scale_depth", "dim_model_base"]})
    path.write_text(json.dumps(c, indent=1) + "\n")


def rows_of(vocab, lengths, seed):
    g = torch.Generator().manual_seed(seed)
    out = {}
    for i, n in enumerate(lengths):
        ids = torch.randint(3, vocab, (n,), generator=g)
        labels = ids.clone()
        labels[torch.rand(n, generator=g) < 0.3] = -100
        labels[0] = -100
        labels[-1] = ids[-1]
        out[f"ids_{i}"], out[f"labels_{i}"] = ids, labels
    return out


def forget_lengths(model):
    """transformers' dynamic scaling remembers the longest sequence; every row is to be as if it were the first."""
    for m in model.modules():
        if hasattr(m, "original_inv_freq"):
            m.inv_freq, m.max_seq_len_cached = m.original_inv_freq.clone(), m.original_max_seq_len


def logits_of(model, rows, key="logits"):
    out = {}
    for i in range(sum(k.startswith("ids_") for k in rows)):
        forget_lengths(model)
        with torch.no_grad():
            out[f"{key}_{i}"] = model(rows[f"ids_{i}"][None]).logits[0].float().contiguous()
    return out


def gradients(model, rows):
    model = model.double()
    total, n = 0, 0
    for i in range(sum(k.startswith("ids_") for k in rows)):
        forget_lengths(model)
        logits, labels = model(rows[f"ids_{i}"][None]).logits[0, :-1], rows[f"labels_{i}"][1:]
        total = total + torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        n += int((labels >= 0).sum())
    (total / n).backward()
    return {"grad." + k.replace(".default", ""): p.grad.float().contiguous() for k, p in model.named_parameters() if p.grad is not None}


def make_adapter(folder, model, targets, rows, scale):
    torch.manual_seed(11)
    p = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=3, target_modules=targets))
    for name, t in p.named_parameters():
        if "lora_" in name:
            t.data = torch.randn_like(t) * 0.75 * scale
    p.base_model.model.config._name_or_path = "."
    p.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"].sort()
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
    vectors = logits_of(p.eval(), rows)
    vectors.update(gradients(p, rows))
    save_file(vectors, folder / "vectors.safetensors")


def make(out, name, spec, lengths=ROWS, adapter=None, seed=1, scale=0.4):
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model = build(spec, seed, scale)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    respell(folder, spec)
    model = model.float()
    rows = rows_of(spec["vocab_size"], lengths, seed + 1)
    save_file({**rows, **logits_of(model, rows)}, folder / "vectors.safetensors")
    if adapter:
        make_adapter(folder / "adapter", model, adapter, rows, scale)
    return folder


def answer(spec, seed, prompt, n):
    model = build(spec, seed).float()
    forget_lengths(model)
    out = model.generate(torch.tensor([prompt]), max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0, output_logits=True,
                         return_dict_in_generate=True)
    best = torch.stack(out.logits)[:, 0].topk(2, -1).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-3  # no ties that rounding could decide
    return dict(prompt=prompt, answer=out.sequences[0, len(prompt):].tolist())


def convert(llama_cpp, folder, path, file_type="MOSTLY_BF16"):
    """By llama.cpp's converter, but for the tokenizer, which these models have not."""
    for p in [llama_cpp / "gguf-py", llama_cpp]:
        if str(p) not in sys.path:
            sys.path.insert(0, str(p))
    import conversion
    import gguf
    import logging
    logging.disable(logging.WARNING)
    with torch.inference_mode():
        hparams = conversion.ModelBase.load_hparams(folder, False)
        base = conversion.get_model_class(conversion.get_model_architecture(hparams, conversion.ModelType.TEXT))

        class WithoutTokenizer(base):
            model_arch = base.model_arch

            def set_vocab(self):
                self.gguf_writer.add_tokenizer_model("none")

            def modify_tensors(self, data, name, bid):  # Gemma 3 would cut the embedding to the tokenizer's words
                return super().modify_tensors(data, name, bid) if "embed_tokens" not in name or "Gemma3" not in base.__name__ else \
                    [(self.map_tensor_name(name), data)]

        WithoutTokenizer(folder, getattr(gguf.LlamaFileType, file_type), path, eager=True).write()


if __name__ == "__main__":
    out = pathlib.Path("tests/golden/families")
    for name, spec in MODELS.items():
        folder = make(out, name, spec, adapter=ADAPTERS.get(name))
        if name in IN_GGUF:
            convert(pathlib.Path(sys.argv[1]), folder, out / f"{name}.gguf")
    answers = {name: answer(MODELS[name], 1, [5, 9, 23, 7, 31], 14) for name in ["phi3", "dynamic", "smollm3", "gemma3"]}
    (out / "generated.json").write_text(json.dumps(answers) + "\n")
