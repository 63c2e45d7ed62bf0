#!/usr/bin/env python3
"""What agoge writes, read by other programs. Usage: export.py AGOGE [WORK_DIR]      (needs torch, transformers, peft, gguf)

On a tiny Llama with a real tokenizer's file: agoge trains an adapter, PEFT loads it and finds the log-probabilities that agoge
finds; merged folders are loaded by transformers and hold PEFT's merged weights; GGUF files are read by the gguf package and by
transformers' own GGUF reader, whose logits must be those of the merged model.
"""
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", CUDA_VISIBLE_DEVICES="", TQDM_DISABLE="1")
import gguf
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

AGOGE = os.path.abspath(sys.argv[1])
WORK = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="agoge-export-"))
TOKENIZER = Path(__file__).resolve().parents[2] / "tests/golden/text/tokenizers/smollm.json"
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
bad = 0


def agoge(*args):
    r = subprocess.run([AGOGE, *map(str, args)], capture_output=True, text=True, cwd=WORK)
    if r.returncode:
        sys.exit(f"agoge {' '.join(map(str, args))}: exit {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


def expect(what, good, detail=""):
    global bad
    bad += not good
    print(f"{'ok ' if good else 'BAD'} {what} {detail}")


def base():
    vocab = json.loads(TOKENIZER.read_text())
    n = 1 + max([*vocab["model"]["vocab"].values(), *(t["id"] for t in vocab["added_tokens"])])
    torch.manual_seed(3)
    c = LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                    vocab_size=n + 5, max_position_embeddings=256, tie_word_embeddings=True, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
                    pad_token_id=2, rope_theta=10000.0)
    m = AutoModelForCausalLM.from_config(c)
    with torch.no_grad():
        for name, p in m.named_parameters():
            p.copy_(1 + 0.2 * torch.randn_like(p) if "norm" in name else 0.2 * torch.randn_like(p))
    m.save_pretrained(WORK / "base")
    (WORK / "base/tokenizer.json").write_text(TOKENIZER.read_text())
    (WORK / "base/tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="PreTrainedTokenizerFast", model_max_length=256)))
    return m.eval()


def logits(m, ids):
    with torch.no_grad():
        return m.eval()(ids).logits[0].float()


def score(ids, *args):
    (WORK / "ids.jsonl").write_text(json.dumps(ids[0].tolist()) + "\n")
    out = json.loads(agoge("score", "--ids-file", "ids.jsonl", "--format", "json", *args).splitlines()[0])
    return torch.tensor(out["logprobs"])


def logprobs(m, ids):
    return torch.log_softmax(logits(m, ids), -1)[:-1].gather(1, ids[0, 1:, None])[:, 0]


def trained_adapter_in_peft(ids):
    (WORK / "rows.jsonl").write_text("".join(json.dumps({"text": f"Row {i} tells of {i * i} lamps."}) + "\n" for i in range(24)))
    (WORK / "c.yaml").write_text("model_id: base\ndataset_path: rows.jsonl\nrun_name: r\noutput_dir: adapters\nload_in_4bit: false\nbf16: false\n"
                                 "max_seq_length: 64\nbatch_size: 4\nlearning_rate: 0.02\nmax_steps: 5\nlora_r: 4\nlora_alpha: 12\n"
                                 "lora_dropout: 0.1\nuse_rslora: true\ntarget_modules_mode: auto_common\n")
    agoge("train-lora", "--config", "c.yaml")
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        m = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(WORK / "base", dtype=torch.float32), WORK / "adapters/r")
    said = [str(x.message) for x in w if "PeftWarning" in str(x.category) or "key" in str(x.message)]
    expect("PEFT loads a trained adapter without a warning", not said, said)
    d = (logprobs(m, ids) - score(ids, "--model", "base", "--adapter", "adapters/r")).abs().max()
    moved = (logprobs(m, ids) - logprobs(AutoModelForCausalLM.from_pretrained(WORK / "base", dtype=torch.float32), ids)).abs().max()
    expect("its log-probabilities are PEFT's", d < 1e-3 < moved, f"{d:.1e}, the adapter moves them by {moved:.1e}")


def merged(ids, adapter):
    agoge("merge-adapter", "--allow-unsealed", "--base-model", "base", "--adapter-path", adapter, "--out-dir", f"{adapter}-merged", "--max-shard-size", "60KB")
    want = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(WORK / "base", dtype=torch.float32), WORK / adapter).merge_and_unload()
    got = AutoModelForCausalLM.from_pretrained(WORK / f"{adapter}-merged")
    expect("the folder is bf16", got.dtype == torch.bfloat16)
    w, g = want.state_dict(), got.state_dict()
    n_off = sum(int((w[k].to(torch.bfloat16) != g[k]).sum()) for k in w)
    n = sum(x.numel() for x in w.values())
    expect("merged weights are PEFT's, rounded once", w.keys() == g.keys() and n_off < 1e-3 * n, f"{n_off} of {n} at a rounding boundary")
    expect("transformers loads its tokenizer", AutoTokenizer.from_pretrained(WORK / f"{adapter}-merged").encode("a lamp") ==
           AutoTokenizer.from_pretrained(WORK / "base").encode("a lamp"))
    for kind, tolerance in [("f32", 2e-4), ("f16", 2e-2), ("q8_0", 0.5)]:
        agoge("export-gguf", "--model", "base", "--adapter", adapter, "--type", kind, "--out", f"{adapter}.{kind}.gguf")
        r = gguf.GGUFReader(WORK / f"{adapter}.{kind}.gguf")
        expect(f"the gguf package reads {kind}", len(r.tensors) == len([k for k in w if k != "lm_head.weight"]) and
               r.fields["general.architecture"].contents() == "llama" and len(r.fields["tokenizer.ggml.tokens"].contents()) == want.config.vocab_size)
        back = AutoModelForCausalLM.from_pretrained(WORK, gguf_file=f"{adapter}.{kind}.gguf", dtype=torch.float32)
        d = (logits(back, ids) - logits(want, ids)).abs().max()
        expect(f"transformers computes the same from {kind}", d < tolerance, f"{d:.1e}")
        d = (score(ids, "--model", f"{adapter}.{kind}.gguf") - logprobs(back, ids)).abs().max()
        expect(f"agoge computes the same from {kind}", d < 1e-3, f"{d:.1e}")


m = base()
ids = torch.randint(3, m.config.vocab_size - 5, (1, 23), generator=torch.Generator().manual_seed(1))
trained_adapter_in_peft(ids)
torch.manual_seed(5)
p = get_peft_model(m, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=SEVEN))
for name, t in p.named_parameters():
    if "lora_" in name:
        t.data = torch.randn_like(t) * 0.2
p.save_pretrained(WORK / "random")
merged(ids, "random")
sys.exit(bool(bad))
