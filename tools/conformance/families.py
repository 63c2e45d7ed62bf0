#!/usr/bin/env python3
"""Every family and rope scaling, read and written, against transformers, PEFT and llama.cpp on random models. Usage:

    families.py AGOGE CONFORM_MODEL LLAMA_CPP LLAMA_LOGPROBS      (needs torch, transformers, peft, gguf)

AGOGE and CONFORM_MODEL are built programs (the second is tests/conformance/conform_model.c), LLAMA_CPP is llama.cpp's source tree (its converter
is used), LLAMA_LOGPROBS is built from llama_logprobs.c beside this file. Models are larger than those of tools/golden/families.py, from other
seeds, and the rows longer. A row of the table it prints:

    folder       agoge on the Hugging Face folder, against transformers: logits (decoded token by token, and at once), mean loss
    adapter      the same with a PEFT adapter on all linear modules; gradients against autograd, as a part of the tensor's largest
    from GGUF    agoge on what llama.cpp's converter makes of the folder, against transformers
    to llama.cpp llama.cpp on agoge's export-gguf --type f32 with the adapter merged, against PEFT: log-probabilities
    LoRA         llama.cpp on agoge's export of the base and, with --lora, of the adapter (--lora-only), against PEFT: log-probabilities
    to folder    transformers on agoge's merged folder, against agoge on it: log-probabilities
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
import families as golden
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

AGOGE, CONFORM, LLAMA_CPP, LLAMA_LOGPROBS = (pathlib.Path(a).resolve() for a in sys.argv[1:5])
WORK = pathlib.Path(tempfile.mkdtemp(prefix="agoge-families-"))
LONG = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=160,
            max_position_embeddings=256, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2, pad_token_id=0)
ROWS = [150, 40, 17]
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64)
LLAMA3 = dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
PLAIN = dict(rope_type="default", rope_theta=1e4)
FACTORS = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0 + 0.1 * i for i in range(8)], long_factor=[1.0 + i for i in range(8)])
GEMMA = dict(LONG, head_dim=32, sliding_window=16, hidden_activation="gelu_pytorch_tanh", num_hidden_layers=7)
MODELS = {
    "Llama, llama3 scaling": dict(model_type="llama", rope_parameters=LLAMA3, **LONG),
    "Llama, head dim of its own, dynamic": dict(model_type="llama", head_dim=32, rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=4.0),
                                               **dict(LONG, max_position_embeddings=64)),
    "Llama, longrope": dict(model_type="llama", rope_parameters=dict(FACTORS, original_max_position_embeddings=64), **LONG),
    "Mistral, window 32": dict(model_type="mistral", sliding_window=32, rope_parameters=PLAIN, **LONG),
    "SmolLM3": dict(model_type="smollm3", rope_parameters=PLAIN, **LONG),
    "MiniCPM (2024)": dict(model_type="minicpm", scale_emb=12, scale_depth=1.4, dim_model_base=32, rope_parameters=PLAIN, tie_word_embeddings=True, **LONG),
    "MiniCPM, longrope": dict(model_type="minicpm", scale_emb=2, scale_depth=1.4, dim_model_base=32, tie_word_embeddings=True,
                              rope_parameters=dict(FACTORS, original_max_position_embeddings=64), **dict(LONG, max_position_embeddings=64)),
    "Granite": dict(model_type="granite", embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.1, logits_scaling=4.0,
                    rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.0), **LONG),
    "Granite, with biases": dict(model_type="granite", embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.1, logits_scaling=4.0,
                                 attention_bias=True, mlp_bias=True, rope_parameters=PLAIN, **LONG),
    "Granite 4, dense": dict(model_type="granitemoehybrid", shared_intermediate_size=96, layer_types=["full_attention"] * 4, num_local_experts=0,
                             num_experts_per_tok=0, position_embedding_type="rope", embedding_multiplier=6.0, residual_multiplier=0.4,
                             attention_multiplier=0.1, logits_scaling=4.0, mamba_n_heads=4, mamba_d_head=32, rope_parameters=PLAIN, **LONG),
    "Qwen2, yarn": dict(model_type="qwen2", rope_parameters=YARN, tie_word_embeddings=True, **LONG),
    "Qwen3": dict(model_type="qwen3", head_dim=32, rope_parameters=PLAIN, tie_word_embeddings=True, **LONG),
    "Qwen3, yarn": dict(model_type="qwen3", head_dim=32, rope_parameters=YARN, **LONG),
    "Phi-3": dict(model_type="phi3", rope_parameters=PLAIN, **LONG),
    "Phi-3, longrope": dict(model_type="phi3", original_max_position_embeddings=64, rope_parameters=FACTORS, **LONG),
    "Phi-4-mini (12 of 16 dimensions rotate)": dict(model_type="phi3", original_max_position_embeddings=64, tie_word_embeddings=True, rope_parameters=dict(
        FACTORS, partial_rotary_factor=0.75, short_factor=FACTORS["short_factor"][:6], long_factor=FACTORS["long_factor"][:6]), **LONG),
    "Gemma 2": dict(model_type="gemma2", query_pre_attn_scalar=32, attn_logit_softcapping=20.0, final_logit_softcapping=15.0, rope_parameters=PLAIN, **GEMMA),
    "Gemma 2, another scale of attention": dict(model_type="gemma2", query_pre_attn_scalar=64, attn_logit_softcapping=5.0, final_logit_softcapping=8.0,
                                                rope_parameters=PLAIN, **GEMMA),
    "Gemma 3": dict(model_type="gemma3_text", query_pre_attn_scalar=32, rope_parameters=dict(
        full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0), sliding_attention=PLAIN), **GEMMA),
}
EXPECTED_REFUSALS = {  # what llama.cpp has no word for
    "Llama, head dim of its own, dynamic": "dynamic", "Mistral, window 32": "window", "Gemma 2, another scale of attention": "query_pre_attn_scalar",
}
NOT_CONVERTED = {  # by llama.cpp's converter, or to something else
    "Llama, head dim of its own, dynamic": "it drops the scaling", "Llama, longrope": "it drops the factors", "Mistral, window 32": "it drops the window",
    "Gemma 2, another scale of attention": "it drops the scale",
}
bad = 0


def targets_of(spec):
    if spec["model_type"] == "phi3":
        return ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
    mlp = ["input_linear", "output_linear"] if spec["model_type"] == "granitemoehybrid" else ["gate_proj", "up_proj", "down_proj"]
    return ["q_proj", "k_proj", "v_proj", "o_proj", *mlp]


def run(*args):
    r = subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=WORK)
    return r.returncode, r.stdout, (r.stdout + r.stderr).strip()


def judge(good, text):
    global bad
    bad += not good
    return text if good else f"**{text}**"


def conform(*args):
    """Differences as a part of the largest logit where that is over 10 (random models have large ones), else absolute."""
    code, out, said = run(CONFORM, *args)
    if code:
        return judge(False, said.splitlines()[-1][:80])
    decoded, prefilled, loss, gradient, largest = (float(x) for x in out.split())
    scale = max(1.0, largest / 10)
    text = f"{max(decoded, prefilled) / scale:.0e}, loss {loss:.0e}" + (f", gradients {gradient:.0e}" if gradient else "")
    return judge(max(decoded, prefilled) / scale < 2e-4 and loss < 2e-5 and gradient < 1e-4, text)


def logprobs(model, ids):
    golden.forget_lengths(model)
    with torch.no_grad():
        return torch.log_softmax(model(ids[None]).logits[0].double(), -1)[:-1].gather(1, ids[1:, None])[:, 0]


def distance(theirs, out):
    ours = torch.tensor(json.loads(out.splitlines()[0])["logprobs"], dtype=torch.float64)
    return float((ours - theirs).abs().max())


def to_llama_cpp(name, folder, want, as_lora):
    out = folder / ("base.gguf" if as_lora else "merged.gguf")
    adapter = ["--adapter", folder / "adapter"]
    code, _, said = run(AGOGE, "export-gguf", "--model", folder, *([] if as_lora else adapter), "--type", "f32", "--out", out)
    if as_lora and not code:
        code, _, said = run(AGOGE, "export-gguf", "--model", folder, *adapter, "--lora-only", "--type", "f32", "--out", folder / "lora.gguf")
    if name in EXPECTED_REFUSALS:
        return judge(code != 0 and EXPECTED_REFUSALS[name] in said, f"refused ({EXPECTED_REFUSALS[name]})" if code else "written, but was to be refused")
    if code:
        return judge(False, said.splitlines()[-1][:80])
    code, out, said = run(LLAMA_LOGPROBS, out, folder / "ids.jsonl", *([folder / "lora.gguf"] if as_lora else []))
    if code:
        return judge(False, said.splitlines()[-1][:80])
    d = distance(want, out)
    return judge(d < (5e-3 if name.startswith("Gemma") else 1e-4), f"{d:.0e}")  # llama.cpp's GELU is a table of f16


def to_folder(spec, folder, ids):
    code, _, said = run(AGOGE, "merge-adapter", "--base-model", folder, "--adapter-path", folder / "adapter", "--out-dir", folder / "merged",
                        "--allow-unsealed")
    if code:
        return judge(False, said.splitlines()[-1][:80])
    code, out, said = run(AGOGE, "score", "--model", folder / "merged", "--ids-file", folder / "ids.jsonl", "--format", "json", "--no-load-in-4bit")
    if code:
        return judge(False, said.splitlines()[-1][:80])
    if spec["model_type"] == "minicpm":  # which transformers has no class for: the same weights in Granite's
        (folder / "merged/config.json").write_text(golden.class_config(spec).to_json_string())
    model = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32, attn_implementation="eager").eval()
    d = distance(logprobs(model, ids), out)
    return judge(d < 1e-3, f"{d:.0e}")


def check(name, spec, seed):
    folder = golden.make(WORK, name.replace(" ", "-").replace(",", ""), spec, ROWS, targets_of(spec), seed=seed, scale=0.15)
    cells = [conform(folder, folder / "vectors.safetensors"),
             conform(folder, folder / "vectors.safetensors", folder / "adapter", folder / "adapter/vectors.safetensors")]
    if name in NOT_CONVERTED:
        cells.append(NOT_CONVERTED[name])
    else:
        golden.convert(LLAMA_CPP, folder, folder / "theirs.gguf")
        cells.append(conform(folder / "theirs.gguf", folder / "vectors.safetensors"))
    ids = golden.rows_of(spec["vocab_size"], ROWS, seed + 1)["ids_0"]
    (folder / "ids.jsonl").write_text(json.dumps(ids.tolist()) + "\n")
    base = golden.build(spec, seed, 0.15).float()
    want = logprobs(PeftModel.from_pretrained(base, folder / "adapter").eval(), ids)
    cells += [to_llama_cpp(name, folder, want, False), to_llama_cpp(name, folder, want, True), to_folder(spec, folder, ids)]
    print("| " + " | ".join([name, *cells]) + " |", flush=True)


print("| model | folder | adapter | from GGUF | to llama.cpp | LoRA | to folder |\n| --- | --- | --- | --- | --- | --- | --- |")
for i, (name, spec) in enumerate(MODELS.items()):
    check(name, spec, 100 + 10 * i)
shutil.rmtree(WORK)
sys.exit(bool(bad))
