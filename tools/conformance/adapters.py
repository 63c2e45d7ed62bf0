#!/usr/bin/env python3
"""Every kind of adapter and optimizer, between agoge, PEFT and transformers' Trainer. Usage: adapters.py AGOGE [WORK_DIR] [--only KIND,KIND…]

On a tiny Llama with biases and a real tokenizer's file, untied and tied. For each kind agoge trains six steps in f32; a row of a table says

  begins      the adapter before the first step, against get_peft_model after torch.manual_seed(seed): largest distance of any number
  in PEFT     PEFT's log-probabilities with agoge's adapter, against `agoge score --adapter`; PEFT must load it without a warning
  from PEFT   the same adapter saved by PEFT, scored by agoge
  merged      transformers on `export-final-model`, against `agoge score` of the same folder (both bf16 weights); and how far merging in bf16
              moved agoge's own log-probabilities
  to Trainer  transformers' Trainer goes on from agoge's checkpoint of step 2 with the same rows: steps 5 and 6 against agoge's, the loss, and
              the adapter after step 6 as a part of the way it went
  from Trainer  agoge goes on from the Trainer's checkpoint of step 4

With `neftune` the Trainer's own hook adds the noise, with agoge's random numbers in the place of torch's.

Needs torch, transformers, peft, accelerate, bitsandbytes (whose CPU quantizer is told to take the nearest code, as its GPU kernel does).
"""
import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", CUDA_VISIBLE_DEVICES="", TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
import bitsandbytes.backends.cpu.ops as bnb_cpu
import torch
import transformers
import transformers.integrations.neftune
from peft import LoraConfig, PeftModel, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

transformers.utils.logging.disable_progress_bar()
parser = argparse.ArgumentParser()
parser.add_argument("agoge", type=Path)
parser.add_argument("work", type=Path, nargs="?")
parser.add_argument("--only", default="")
args = parser.parse_args()
AGOGE, WORK = args.agoge.resolve(), args.work or Path(tempfile.mkdtemp(prefix="agoge-adapters-"))
WORK.mkdir(parents=True, exist_ok=True)
TOKENIZER = Path(__file__).resolve().parents[2] / "tests/golden/text/tokenizers/smollm.json"
os.chdir(WORK)
torch.set_num_threads(1)
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
bad = 0


def nearest(A, code, absmax_out, out_u8, blocksize):
    q, m = torch.ops.bitsandbytes.quantize_blockwise(A.double(), code, 256)
    out_u8.copy_(q.reshape(out_u8.shape)), absmax_out.copy_(m)


bnb_cpu._quant_blockwise_fp32_direct = nearest

# name: (base, PEFT's options, what else the run has: ratio of LoRA+, optimizer)
KINDS = {
    "plain": ("base", dict(r=4, target_modules=SEVEN), {}),
    "dora": ("base", dict(r=4, target_modules=SEVEN, use_dora=True, bias="lora_only"), {}),
    "bias": ("base", dict(r=4, target_modules=["q_proj", "v_proj"], bias="all"), {}),
    "patterns": ("base", dict(r=4, target_modules="all-linear", rank_pattern={"(q|k)_proj": 2}, alpha_pattern={"down_proj": 20},
                              exclude_modules=["layers.0.mlp.up_proj"], use_rslora=True), {}),
    "layers": ("base", dict(r=4, target_modules=["q_proj", "up_proj"], layers_to_transform=[1], layers_pattern=["layers"]), {}),
    "regex": ("base", dict(r=4, target_modules=r".*layers\.[01]\.(self_attn|mlp)\.(v|down)_proj"), {}),
    "saved": ("base", dict(r=4, target_modules=["o_proj"], modules_to_save=["lm_head", "norm", "1.self_attn.q_proj"]), {}),
    "tied_head": ("tied", dict(r=4, target_modules=["v_proj"], modules_to_save=["lm_head"]), {}),
    "tied_embed": ("tied", dict(r=4, target_modules=["v_proj"], modules_to_save=["embed_tokens"]), {}),
    "embedding": ("base", dict(r=4, target_modules=["embed_tokens", "v_proj"]), {}),
    "tied_pair": ("tied", dict(r=4, target_modules=["embed_tokens", "v_proj"]), {}),
    "loraplus": ("base", dict(r=4, target_modules=["embed_tokens", "q_proj", "down_proj"], bias="all"), dict(ratio=8.0)),
    "neftune": ("base", dict(r=4, target_modules=SEVEN), dict(neftune=5.0)),
    "adam8": ("base", dict(r=70, target_modules=SEVEN, modules_to_save=["embed_tokens", "norm"]), dict(optim="adamw_8bit")),
}


def agoge(*words):
    r = subprocess.run([AGOGE, *map(str, words)], capture_output=True, text=True)
    if r.returncode:
        sys.exit(f"agoge {' '.join(map(str, words))}: exit {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


def make_base(name, tied):
    vocab = json.loads(TOKENIZER.read_text())
    n = 1 + max([*vocab["model"]["vocab"].values(), *(t["id"] for t in vocab["added_tokens"])])
    torch.manual_seed(3)
    m = AutoModelForCausalLM.from_config(LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=n + 5,
        max_position_embeddings=256, attention_bias=True, mlp_bias=True, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2, pad_token_id=2))
    with torch.no_grad():
        for parameter, p in m.named_parameters():
            p.copy_(1 + 0.2 * torch.randn_like(p) if "norm" in parameter else 0.2 * torch.randn_like(p))
    m.save_pretrained(name)
    Path(name, "tokenizer.json").write_text(TOKENIZER.read_text())
    Path(name, "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>", pad_token="<|im_end|>", model_max_length=256)))


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def score(*model):
    lines = agoge("score", "--ids-file", "ids.jsonl", "--format", "json", "--threads", 1, *model).splitlines()
    return torch.cat([torch.tensor(json.loads(line)["logprobs"]) for line in lines])


def logprobs(model):
    rows = []
    for line in Path("ids.jsonl").read_text().splitlines():
        ids = torch.tensor([json.loads(line)])
        with torch.no_grad():
            rows.append(torch.log_softmax(model.eval()(ids).logits[0].float(), -1)[:-1].gather(1, ids[0, 1:, None])[:, 0])
    return torch.cat(rows)


def apart(a, b):
    return float((a - b).abs().max())


# ---- agoge's NEFTune noise (src/ops/embed/embed_lora.c), for the Trainer's own hook ---------------------------------------------------
M64, M32, ODD = (1 << 64) - 1, 0xffffffff, 0x9e3779b97f4a7c15


def mix64(z):
    z = ((z ^ z >> 30) * 0xbf58476d1ce4e5b9) & M64
    z = ((z ^ z >> 27) * 0x94d049bb133111eb) & M64
    return z ^ z >> 31


def unit_noise(n, key, site):
    """n numbers in [-1, 1), as agoge draws them for a micro-batch."""
    words = mix64((mix64((mix64((key + ODD) & M64) + site + ODD) & M64)) & M64)  # n < 2^32
    x = (torch.arange(n, dtype=torch.int64) * 0x9e3779b1 + (words & M32)) & M32
    x = ((x ^ x >> 16) * 0x21f0aaad) & M32
    x = (((x ^ x >> 15) + (words >> 32)) * 0xd35a2d97) & M32
    return ((x ^ x >> 15) >> 8).double() * 2.0 ** -23 - 1


def agoges_noise(first_call, eos):
    """transformers' neftune_post_forward_hook with agoge's numbers for torch's: the same bounds, rows without their padding."""
    calls = iter(range(first_call, 1000))

    def hook(module, input, output):
        if not module.training:
            return output
        bound = module.neftune_noise_alpha / (output.size(1) * output.size(2)) ** 0.5
        lengths = [int((row == eos).nonzero()[0]) + 1 for row in input[0]]  # a row ends with its only end of text
        noise = unit_noise(sum(lengths) * output.size(2), 42 ^ 0x6e656674756e6521, next(calls)).view(-1, output.size(2)) * bound
        output = output.clone()
        for row, part in enumerate(noise.split(lengths)):
            output[row, :len(part)] += part.float()
        return output
    return hook


def yaml_of(options, more):
    names = dict(r="lora_r")
    keys = {names.get(k, k): v for k, v in options.items()} | {"loraplus_lr_ratio": more.get("ratio"), "neftune_noise_alpha": more.get("neftune"), "optim": more.get("optim", "adamw_torch")}
    if isinstance(options["target_modules"], list):
        keys["target_modules_mode"] = "auto_common" if "embed_tokens" not in options["target_modules"] else "explicit"
    return "".join(f"{k}: {json.dumps(v)}\n" for k, v in keys.items() if v is not None)


def train(name, base, options, more, **extra):
    lines = dict(model_id=base, dataset_path="rows.jsonl", output_dir="adapters", run_name=name, load_in_4bit="false", bf16="false", max_seq_length=64,
                 batch_size=2, gradient_accumulation_steps=1, max_steps=6, save_steps=2, save_total_limit="null", learning_rate=2e-3, warmup_steps=1,
                 weight_decay=0.01, lora_alpha=8, lora_dropout=0.0, logging_dir=f"log-{name}") | extra
    Path(f"{name}.yaml").write_text("".join(f"{k}: {v}\n" for k, v in lines.items()) + yaml_of(options, more))
    agoge("train-qlora", "--config", f"{name}.yaml", "--threads", 1)
    return Path("adapters") / name


def log_of(checkpoint):
    return {h["step"]: h for h in json.loads((checkpoint / "trainer_state.json").read_text())["log_history"] if "loss" in h}


def resume_trainer(checkpoint, base, options, more):
    tokenizer = AutoTokenizer.from_pretrained(base)
    rows = [tokenizer(json.loads(line)["text"])["input_ids"] + [tokenizer.eos_token_id] for line in Path("rows.jsonl").read_text().splitlines()]
    model = get_peft_model(load(base), LoraConfig(task_type="CAUSAL_LM", lora_alpha=8, lora_dropout=0.0, **options))
    optimizers = (None, None)
    if "ratio" in more:
        optimizers = (create_loraplus_optimizer(model, torch.optim.AdamW, lr=2e-3, loraplus_lr_ratio=more["ratio"], loraplus_weight_decay=0.01,
                                                betas=(0.9, 0.999), eps=1e-8), None)
    transformers.integrations.neftune.neftune_post_forward_hook = agoges_noise(2, tokenizer.eos_token_id)
    trainer = transformers.Trainer(
        model=model, processing_class=tokenizer, optimizers=optimizers,
        args=transformers.TrainingArguments(
            output_dir=str(checkpoint.parent), per_device_train_batch_size=2, gradient_accumulation_steps=1, max_steps=6, learning_rate=2e-3, warmup_steps=1,
            lr_scheduler_type="linear", weight_decay=0.01, logging_steps=1, save_steps=2, report_to=[], disable_tqdm=True, seed=42, use_cpu=True,
            bf16=False, optim=more.get("optim", "adamw_torch"), max_grad_norm=1.0, neftune_noise_alpha=more.get("neftune")),
        train_dataset=[{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": list(ids)} for ids in rows],
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100))
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    return {h["step"]: h for h in trainer.state.log_history if "loss" in h}


def trained(folder):
    """An adapter's tensors, without those that PEFT saves beside them: the base's tables, copies under a second name."""
    tensors = load_file(folder / "adapter_model.safetensors")
    spare = (".original_module.", ".modules_to_save.", "embed_tokens.base_layer.")
    return {k: v for k, v in tensors.items() if not any(s in k for s in spare)}


def steps_apart(first, theirs, ours):
    """Largest distance of losses of steps 5 and 6; the adapters' distance as a part of the way from `first`."""
    loss = max(abs(theirs[0][s]["loss"] - ours[0][s]["loss"]) for s in (5, 6))
    start, a, b = (trained(folder) for folder in (first, theirs[1], ours[1]))
    assert a.keys() == b.keys() == start.keys(), a.keys() ^ b.keys()
    moved, off = (float(torch.cat([(x[k] - a[k]).flatten() for k in a]).norm()) for x in (start, b))
    return loss, off / moved


def begins(name, base, options, more):
    """A run with a rate of 0 ends with the adapter it began with."""
    zero = train(name + "-begins", base, options, more, learning_rate=0.0, max_steps=1, save_steps=0)
    torch.manual_seed(42)
    model = get_peft_model(load(base), LoraConfig(task_type="CAUSAL_LM", lora_alpha=8, **options))
    model.save_pretrained("begins", save_embedding_layers=False)
    a, b = trained(zero), trained(Path("begins"))
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    return max(apart(a[k], b[k]) for k in a)


def try_kind(name):
    global bad
    base, options, more = KINDS[name]
    start = begins(name, base, options, more)
    folder = train(name, base, options, more)
    ours, plain = score("--model", base, "--adapter", folder), score("--model", base)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(load(base), folder)
    # (of a tied model whose table is trained PEFT warns always: its merge would tie what is not tied any more)
    told = [str(w.message) for w in caught if "peft" in str(w.filename) and "ensure_weight_tying" not in str(w.message)]
    in_peft, moved = apart(logprobs(model), ours), apart(ours, plain)
    shutil.rmtree("by-peft", ignore_errors=True)
    model.save_pretrained("by-peft")
    from_peft = apart(score("--model", base, "--adapter", "by-peft"), ours)
    shutil.rmtree(f"merged-{name}", ignore_errors=True)
    agoge("export-final-model", "--allow-unsealed", "--adapter-path", folder, "--base-model", base, "--out-dir", f"merged-{name}")
    of_merged = score("--model", f"merged-{name}")
    merged, rounded = apart(logprobs(load(f"merged-{name}")), of_merged), apart(of_merged, ours)

    trainer = Path("trainer") / name
    shutil.rmtree(trainer, ignore_errors=True)
    shutil.copytree(folder / "checkpoint-2", trainer / "checkpoint-2")
    theirs = resume_trainer(trainer / "checkpoint-2", base, options, more), trainer / "checkpoint-6"
    to_trainer = steps_apart(folder / "checkpoint-2", theirs, (log_of(folder / "checkpoint-6"), folder / "checkpoint-6"))
    back = train(name + "-back", base, options, more, resume_checkpoint_path=f"trainer/{name}/checkpoint-4") / "checkpoint-6"
    from_trainer = steps_apart(trainer / "checkpoint-4", theirs, (log_of(back), back))

    # 8-bit moments: a number at a midpoint may get the neighbouring code, and then its parameter differs
    near = 0.05 if more.get("optim") else 0.02
    good = (start < 1e-5 and not told and in_peft < 1e-4 < moved and from_peft < 1e-6 and merged < 1e-4 and to_trainer[0] < 1e-3 and to_trainer[1] < near
            and from_trainer[0] < 1e-3 and from_trainer[1] < near)
    bad += not good
    print(f"| {name} | {start:.0e} | {in_peft:.0e} of {moved:.2f} | {from_peft:.0e} | {merged:.0e}, {rounded:.2f} | {to_trainer[0]:.0e}, {100 * to_trainer[1]:.2f} % "
          f"| {from_trainer[0]:.0e}, {100 * from_trainer[1]:.2f} % |{'' if good else ' BAD ' + '; '.join(told)}", flush=True)


for name, tied in (("base", False), ("tied", True)):
    if not Path(name, "config.json").exists():
        make_base(name, tied)
words = "the river ran under an old stone bridge and nobody in the village knew who had built it or why it leaned".split()
g = torch.Generator().manual_seed(5)
Path("rows.jsonl").write_text("".join(
    json.dumps({"text": " ".join(words[i] for i in torch.randint(0, len(words), (int(torch.randint(6, 20, (1,), generator=g)),), generator=g))}) + "\n"
    for _ in range(13)))
Path("ids.jsonl").write_text("".join(json.dumps(torch.randint(0, 800, (n,), generator=g).tolist()) + "\n" for n in (17, 9, 30)))
print("| adapter | begins | in PEFT | from PEFT | merged | to Trainer | from Trainer |\n| --- | --- | --- | --- | --- | --- | --- |")
for kind in KINDS:
    if not args.only or kind in args.only.split(","):
        try_kind(kind)
sys.exit(bad > 0)
