#!/usr/bin/env python3
"""Goldens of the file formats and of what a config means. Writes tests/golden/{gguf,safetensors,description}/ (run from the root).

    python3 tools/golden/formats.py      # needs torch, transformers >= 5, gguf, safetensors, bitsandbytes; last run with 2.15.0, 5.24.0, 0.19, 0.8, 0.50.2

gguf/<model>/                a tiny Hugging Face model (bf16, random weights) as save_pretrained writes it
gguf/<model>/logits.safetensors   ids and what transformers makes of them (f32, eager attention), no padding
gguf/tiny-nf4/               the first of them in NF4 with double quantization, by bitsandbytes
gguf/<model>.<type>.gguf     the same model by the gguf package, rows of q and k permuted where llama.cpp's converter does so
                             (transformers' own GGUF reader must give back the weights, which is asserted here)
safetensors/library.safetensors   a file of many dtypes by the format's own library
description/rope.safetensors      inverse frequencies by transformers, named as the cases in tests/unit/test_description.c
"""
import json
import os
import pathlib
import shutil

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", CUDA_VISIBLE_DEVICES="", TQDM_DISABLE="1")
import bitsandbytes.functional as BF
import gguf
import numpy as np
import torch
import transformers
from gguf.quants import quantize
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

transformers.utils.logging.disable_progress_bar()
OUT = pathlib.Path("tests/golden")
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
SIZES = dict(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
             bos_token_id=1, eos_token_id=2, pad_token_id=0, dtype="bfloat16")
MODELS = {
    "tiny": dict(model_type="llama", vocab_size=48, num_hidden_layers=2, rms_norm_eps=1e-5, rope_parameters=LLAMA3,
                 tie_word_embeddings=False, **SIZES),
    "qwen2": dict(model_type="qwen2", vocab_size=40, num_hidden_layers=1, rms_norm_eps=1e-6,
                  rope_parameters=dict(rope_type="default", rope_theta=1e6), tie_word_embeddings=True, **SIZES),
    "biased": dict(model_type="llama", vocab_size=40, num_hidden_layers=1, rms_norm_eps=1e-5, attention_bias=True,
                   rope_parameters=dict(rope_type="default", rope_theta=1e4), tie_word_embeddings=True, **SIZES),
    "granite": dict(model_type="granite", vocab_size=40, num_hidden_layers=1, rms_norm_eps=1e-5, embedding_multiplier=3.0,
                    residual_multiplier=0.4, attention_multiplier=0.3, logits_scaling=2.5,
                    rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=1e4), tie_word_embeddings=True, **SIZES),
    "mistral": dict(model_type="mistral", vocab_size=40, num_hidden_layers=1, rms_norm_eps=1e-5, sliding_window=4, head_dim=12,
                    rope_parameters=dict(rope_type="default", rope_theta=1e4), tie_word_embeddings=False, **SIZES),
}
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def randomize(model, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            x = torch.randn(p.shape, generator=g)
            p.copy_(1 + 0.3 * x.clamp(-2, 2) if "norm" in name else 0.3 * x)


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    part, suffix = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[part]}.{suffix}"


def permute(w, n_heads):  # llama.cpp, convert_hf_to_gguf.py: LlamaModel.permute
    return w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def rope_factors(c):  # convert_hf_to_gguf.py: LlamaModel.generate_extra_tensors
    r, dim = c.rope_parameters, c.hidden_size // c.num_attention_heads
    freqs = 1.0 / (r["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    low, high = r["original_max_position_embeddings"] / r["low_freq_factor"], r["original_max_position_embeddings"] / r["high_freq_factor"]
    out = []
    for f in freqs:
        wavelen = 2 * np.pi / f
        if wavelen < high:
            out.append(1)
        elif wavelen > low:
            out.append(r["factor"])
        else:
            smooth = (r["original_max_position_embeddings"] / wavelen - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
            out.append(1 / ((1 - smooth) / r["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def write_gguf(path, model, kind):
    c, arch = model.config, model.config.model_type
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_vocab_size(c.vocab_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    if c.rope_parameters["rope_type"] == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(c.rope_parameters["factor"])
    if arch == "granite":  # convert_hf_to_gguf.py: GraniteModel.set_gguf_parameters
        w.add_attention_scale(c.attention_multiplier)
        w.add_embedding_scale(c.embedding_multiplier)
        w.add_residual_scale(c.residual_multiplier)
        w.add_logit_scale(c.logits_scaling)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_tokenizer_model("gpt2")
    w.add_token_list([f"<{i}>" for i in range(c.vocab_size - 1)] + ["é"])
    w.add_token_types([gguf.TokenType.NORMAL] * c.vocab_size)
    w.add_bos_token_id(c.bos_token_id)
    w.add_eos_token_id(c.eos_token_id)
    w.add_pad_token_id(c.pad_token_id)
    w.add_add_bos_token(False)
    if c.rope_parameters["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", rope_factors(c))
    for name, p in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        x = p.float().numpy()
        if arch in ("llama", "granite") and ("q_proj" in name or "k_proj" in name):
            x = permute(x, c.num_attention_heads if "q_proj" in name else c.num_key_value_heads)
        x = np.ascontiguousarray(x)
        if x.ndim == 1 or kind == "F32":
            w.add_tensor(gguf_name(name), x)
        else:
            t = gguf.GGMLQuantizationType[kind]
            w.add_tensor(gguf_name(name), quantize(x, t), raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_logits(model, path):
    ids = torch.randint(0, model.config.vocab_size, (1, 11), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logits = model.float().eval()(ids).logits[0]
    save_file({"ids": ids[0].to(torch.int32).contiguous(), "logits": logits.contiguous()}, path)


def dequantize(weight):  # bitsandbytes 0.50.2's own dequantize_4bit is wrong on CPUs where a row is shorter than a block
    state, packed = weight.quant_state, weight.data.flatten()
    absmax = BF.dequantize_blockwise(state.absmax, state.state2) + state.offset
    codes = torch.stack([packed >> 4, packed & 15], 1).flatten().long()
    return (state.code[codes].view(-1, state.blocksize) * absmax[:, None]).view(state.shape)


def dequantized(model):  # as an ordinary model of f32
    plain = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager").float()
    names = dict(model.named_modules())
    with torch.no_grad():
        for name, p in plain.named_parameters():
            weight = names[name.rsplit(".", 1)[0]].weight
            p.copy_(dequantize(weight) if getattr(weight, "quant_state", None) is not None else weight.float())
    return plain


def models():
    out = OUT / "gguf"
    for i, (name, options) in enumerate(MODELS.items()):
        options = dict(options)
        config = AutoConfig.for_model(options.pop("model_type"), **options)
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        randomize(model, i)
        shutil.rmtree(out / name, ignore_errors=True)
        model.save_pretrained(out / name)
        for kind in ("F32", "F16", "Q8_0", "Q4_1") if name == "tiny" else ("F32",):
            if name != "mistral":
                write_gguf(out / f"{name}.{kind.lower()}.gguf", model, kind)
        if name == "tiny":
            back = AutoModelForCausalLM.from_pretrained(out, gguf_file=f"{name}.f32.gguf", dtype=torch.float32).state_dict()
            for key, p in model.state_dict().items():
                assert torch.equal(back[key], p.float()), key
        if name == "tiny":
            q = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)
            AutoModelForCausalLM.from_pretrained(out / name, dtype=torch.bfloat16, quantization_config=q, device_map="cpu").save_pretrained(out / "tiny-nf4")
            small = AutoModelForCausalLM.from_pretrained(out / "tiny-nf4", dtype=torch.float32, device_map="cpu")
            write_logits(dequantized(small), out / "tiny-nf4" / "logits.safetensors")
            (out / "tiny-nf4" / "generation_config.json").unlink(missing_ok=True)
            (out / name / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2, 9]}) + "\n")
        else:
            (out / name / "generation_config.json").unlink(missing_ok=True)
        reload = AutoModelForCausalLM.from_pretrained(out / name, dtype=torch.float32, attn_implementation="eager")
        write_logits(reload, out / name / "logits.safetensors")


def library():
    out = OUT / "safetensors"
    out.mkdir(parents=True, exist_ok=True)
    save_file({
        "b.f32": torch.arange(6, dtype=torch.float32).reshape(2, 3), "a.f32": torch.tensor(2.5), "empty": torch.zeros(0, 4),
        "half": torch.tensor([1.0, -2.0, 0.5], dtype=torch.float16), "brain": torch.tensor([1.0, 3.0], dtype=torch.bfloat16),
        "byte": torch.tensor([1, 2, 255], dtype=torch.uint8), "yes": torch.tensor([True, False]), "long": torch.tensor([-1, 2**40]),
        "über \"x\"": torch.tensor([7], dtype=torch.int32), "deep": torch.ones(1, 2, 1, 2, 1, dtype=torch.int16),
    }, out / "library.safetensors", metadata={"format": "pt"})


def rope():
    out = OUT / "description"
    out.mkdir(parents=True, exist_ok=True)
    cases = {
        "default": (64, dict(rope_type="default", rope_theta=1e5)),
        "linear": (64, dict(rope_type="linear", rope_theta=1e4, factor=4.0)),
        "llama3.2": (64, dict(rope_type="llama3", rope_theta=5e5, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                              original_max_position_embeddings=8192)),
        "small": (16, dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                           original_max_position_embeddings=32)),
    }
    tensors = {}
    for name, (dim, parameters) in cases.items():
        c = AutoConfig.for_model("llama", hidden_size=2 * dim, num_attention_heads=2, head_dim=dim, rope_parameters=parameters,
                                 max_position_embeddings=131072)
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(c)
        assert rotary.attention_scaling == 1.0
        tensors[name] = rotary.inv_freq.float().clone()
    save_file(tensors, out / "rope.safetensors")


models()
library()
rope()
