#!/usr/bin/env python3
"""A folder with the shapes of a model and no weights: config.json, and a sparse safetensors file that takes no room on the disk. For plans
of models that are not at hand:  make_shape_folder.py minicpm5-1b|granite-4.1-3b TOKENIZER_FOLDER OUT_FOLDER"""
import json, os, shutil, struct, sys

MODELS = {
    "minicpm5-1b": dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=1536, num_hidden_layers=24, num_attention_heads=16,
                        num_key_value_heads=2, head_dim=128, intermediate_size=4608, vocab_size=130560, tie_word_embeddings=False, rope_theta=5e6,
                        rms_norm_eps=1e-6, max_position_embeddings=131072),
    "granite-4.1-3b": dict(architectures=["GraniteForCausalLM"], model_type="granite", hidden_size=2560, num_hidden_layers=40, num_attention_heads=40,
                           num_key_value_heads=8, intermediate_size=8192, vocab_size=100352, tie_word_embeddings=True, rope_theta=1e7, rms_norm_eps=1e-5,
                           max_position_embeddings=131072, embedding_multiplier=12, attention_multiplier=0.015625, residual_multiplier=0.22,
                           logits_scaling=10, attention_bias=False, mlp_bias=False),
}


def tensors(c):
    C, F, V = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    D = c.get("head_dim", C // c["num_attention_heads"])
    q, kv = c["num_attention_heads"] * D, c["num_key_value_heads"] * D
    yield "model.embed_tokens.weight", [V, C]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, shape in (("self_attn.q_proj", [q, C]), ("self_attn.k_proj", [kv, C]), ("self_attn.v_proj", [kv, C]), ("self_attn.o_proj", [C, q]),
                            ("mlp.gate_proj", [F, C]), ("mlp.up_proj", [F, C]), ("mlp.down_proj", [C, F])):
            yield p + name + ".weight", shape
        yield p + "input_layernorm.weight", [C]
        yield p + "post_attention_layernorm.weight", [C]
    yield "model.norm.weight", [C]
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", [V, C]


def main():
    name, tokenizer, out = sys.argv[1:4]
    config = dict(MODELS[name], hidden_act="silu", torch_dtype="bfloat16", bos_token_id=0, eos_token_id=1)
    os.makedirs(out, exist_ok=True)
    json.dump(config, open(os.path.join(out, "config.json"), "w"), indent=2)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer, file), out)
    header, at = {}, 0
    for tensor, shape in tensors(config):
        size = 2
        for n in shape:
            size *= n
        header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)


main()
