#!/usr/bin/env python3
"""What agoge writes of a real model, loaded by the programs that it is written for.

    real_model.py AGOGE BASE.gguf BASE_HF_DIR WORK_DIR [--llama-logprobs PROGRAM] [--llama-simple PROGRAM] [--only PART,PART…]

BASE_HF_DIR holds the same model as BASE.gguf (config.json and safetensors; tokenizer files are taken from agoge's export where it has
none). agoge trains a few steps three times: on the GGUF, on the folder in f32, and on the folder in NF4. Then, each line with its figure:

  gguf-base    the run on the GGUF: torch reads its checkpoints, PEFT its adapter, transformers its merged folder
  adapter      PEFT loads the run on the folder: log-probabilities as `agoge score --adapter`; torch.optim.AdamW takes its optimizer.pt
  trainer      transformers' Trainer goes on from agoge's checkpoint with the same rows, and agoge from the Trainer's: losses, norms, adapters
  tensorboard  the event file's scalars
  nf4          as adapter, on weights that bitsandbytes quantizes, against `agoge score --load-in-4bit`
  folder       export-final-model, in one file and in shards: transformers' AutoModelForCausalLM, AutoTokenizer, chat template
  gguf         export-gguf f16 and q8_0: the gguf package's values are the merged weights
  llama-logprobs   llama.cpp loads f32, f16, q8_0 and --lora-only's adapter; PROGRAM is built from llama_logprobs.c beside this file
  llama-text   llama.cpp goes on from prompts with the greedy text of agoge; PROGRAM is llama.cpp's own llama-simple

WORK_DIR may hold an earlier try; what is there is used again. Needs torch, transformers, peft, accelerate, bitsandbytes, gguf,
tensorboard. About 2 GB of memory and 3 GB of disk for a model of 135 M parameters.
"""
import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", CUDA_VISIBLE_DEVICES="", TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
import bitsandbytes
import gguf
import numpy
import peft
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

transformers.utils.logging.disable_progress_bar()
parser = argparse.ArgumentParser()
parser.add_argument("agoge", type=Path)
parser.add_argument("gguf", type=Path)
parser.add_argument("hf", type=Path)
parser.add_argument("work", type=Path)
parser.add_argument("--llama-logprobs", type=Path)
parser.add_argument("--llama-simple", type=Path)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--only", default="")
args = parser.parse_args()
AGOGE, BASE_GGUF, BASE_HF, WORK = (p.resolve() for p in (args.agoge, args.gguf, args.hf, args.work))
WORK.mkdir(parents=True, exist_ok=True)
os.chdir(WORK)
torch.set_num_threads(args.threads)
torch.manual_seed(0)
bad = 0

TEXTS = ["The lighthouse keeper wrote in his log that the sea was calm.", "In 1969, 3 people flew 384400 km; 007 + 12345678 = ?",
         "  leading, trailing  \n\n\ttabs\r\nand  runs   of spaces ", "Grüße, naïve café — „quotes“ … ½ ﬁ", "日本語のテキスト と 한국어 и русский",
         "emoji 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽", "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>", "def f(x):\n    return x**2  # it's we'll they'd I'M", "e\u0301 \u200b\u00a0\ufeff", ""]
CHATS = [[{"role": "user", "content": "What is the capital of Austria?"}],
         [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Who is 'A' & <B>?\n"},
          {"role": "assistant", "content": " Nobody. "}, {"role": "user", "content": "Grüße 👍"}]]
PROMPTS = ["The capital of France is", "Once upon a time, a lighthouse keeper", "def fibonacci(n):\n"]
NEW_TOKENS = 24


def expect(what, good, detail=""):
    global bad
    bad += not good
    print(f"{'ok ' if good else 'BAD'} {what}{': ' + str(detail) if detail != '' else ''}", flush=True)


def agoge(*words, code=0):
    r = subprocess.run([AGOGE, *map(str, words)], capture_output=True, text=True)
    if r.returncode != code:
        sys.exit(f"agoge {' '.join(map(str, words))}: exit {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


def threads():
    return ["--threads", args.threads]


# ---- what is compared ------------------------------------------------------------------------------------------------------------
def id_lists():
    """Ids of running text, from agoge's own tokenizer (any ids would do), and a few random ones."""
    lists = [json.loads(agoge("tokenize", "--model", BASE_GGUF, "--format", "json", "--text", t))["ids"] for t in TEXTS[:2]]
    return lists + [torch.randint(0, 49152, (12,), generator=torch.Generator().manual_seed(1)).tolist()]


def score(*model):
    if not Path("ids.jsonl").exists():
        Path("ids.jsonl").write_text("".join(json.dumps(x) + "\n" for x in id_lists()))
    lines = agoge("score", "--ids-file", "ids.jsonl", "--format", "json", *threads(), *model).splitlines()
    return [torch.tensor(json.loads(line)["logprobs"]) for line in lines]


def logprobs(model):
    rows = []
    for line in Path("ids.jsonl").read_text().splitlines():
        ids = torch.tensor([json.loads(line)])
        with torch.no_grad():
            logits = model.eval()(ids).logits[0].float()
        rows.append(torch.log_softmax(logits, -1)[:-1].gather(1, ids[0, 1:, None])[:, 0])
    return rows


def apart(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


def load(folder, **more):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **more)


# ---- what agoge makes ------------------------------------------------------------------------------------------------------------
def rows_file():
    with open("rows.jsonl", "w") as f:
        for i in range(16):
            print(json.dumps({"text": f"Log, lamp {i}. It burned for {i * i} hours, and the light holds."}), file=f)


def train(name, model, command, **keys):
    if Path("adapters", name, "artifact_index.json").exists():
        return
    rows_file()
    config = dict(model_id=model, dataset_path="rows.jsonl", run_name=name, load_in_4bit="false", bf16="false", max_seq_length=64, batch_size=2,
                  gradient_accumulation_steps=1, gradient_checkpointing="false", learning_rate=2e-3, warmup_steps=1, max_steps=4, save_steps=2,
                  weight_decay=0.01, lora_r=4, lora_alpha=8, lora_dropout=0.0, target_modules_mode="explicit",
                  target_modules="[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]") | keys
    Path(f"{name}.yaml").write_text("".join(f"{k}: {v}\n" for k, v in config.items()))
    agoge(command, "--config", f"{name}.yaml", *threads())


def export(run, out, *more):
    if not Path(out).exists():
        agoge("export-final-model", "--allow-unsealed", "--run-dir", f"adapters/{run}", "--out-dir", out, *threads(), *more)


def make_base():
    """The folder with tokenizer files: its own, else those that agoge made of the GGUF."""
    train("on-gguf", BASE_GGUF, "train-lora")
    export("on-gguf", "merged-gguf")
    base = Path("base")
    if base.exists():
        return
    base.mkdir()
    for path in BASE_HF.iterdir():
        (base / path.name).symlink_to(path)
    for path in Path("merged-gguf").iterdir():
        if ("token" in path.name or "template" in path.name) and not (base / path.name).exists():
            shutil.copy(path, base)


# ---- parts -----------------------------------------------------------------------------------------------------------------------
def adapter_on(base, folder):
    """PEFT's model, and what it warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = peft.PeftModel.from_pretrained(base, folder)
    said = [str(w.message) for w in said if "peft" in w.filename or "key" in str(w.message)]
    expect(f"PEFT loads {folder} without a warning", not said, said or "")
    return model


def check_side_files(run, model):
    """A checkpoint's files by torch, and into the optimizer and generators they are of. model: PEFT's, trainable."""
    folder = Path("adapters", run, "checkpoint-4")
    files = {name: torch.load(folder / name, weights_only=True) for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth")}
    state = json.loads((folder / "trainer_state.json").read_text())
    expect(f"torch.load(weights_only=True) reads optimizer.pt, scheduler.pt, rng_state.pth of {folder}", True)
    parameters = [p for n, p in model.named_parameters() if "lora_" in n]
    for p in parameters:
        p.requires_grad_(True)
    optimizer = torch.optim.AdamW([{"params": parameters}, {"params": []}], lr=1.0)
    optimizer.load_state_dict(files["optimizer.pt"])
    kept = optimizer.state_dict()["state"]
    expect("torch.optim.AdamW takes optimizer.pt", len(kept) == len(parameters) and all(
        kept[i]["exp_avg"].shape == kept[i]["exp_avg_sq"].shape == p.shape and float(kept[i]["step"]) == 4 and kept[i]["exp_avg_sq"].min() >= 0
        for i, p in enumerate(parameters)), f"{len(kept)} matrices")
    scheduler = torch.optim.lr_scheduler.LambdaLR(torch.optim.AdamW([{"params": parameters}, {"params": []}], lr=1.0), lambda _: 1.0)
    scheduler.load_state_dict(files["scheduler.pt"])
    expect("LambdaLR takes scheduler.pt", scheduler.last_epoch == 4 == state["global_step"], f"last_epoch {scheduler.last_epoch}")
    torch.set_rng_state(files["rng_state.pth"]["cpu"])
    return files


def part_gguf_base():
    merged, ours = load("merged-gguf"), score("--model", BASE_GGUF, "--adapter", "adapters/on-gguf")
    d = apart(logprobs(merged), ours)
    expect("transformers on the merged folder is near agoge on the GGUF with the adapter (bf16 rounding between)", d < 0.25, f"{d:.4f}")
    d = apart(logprobs(merged), score("--model", "merged-gguf"))
    expect("and as agoge on the merged folder", d < 1e-3, f"{d:.1e}")
    model = adapter_on(load("base"), "adapters/on-gguf")
    d = apart(logprobs(model), ours)
    expect("PEFT on the folder of the same weights (rounded to bf16) is near agoge on the GGUF with the adapter", d < 0.25, f"{d:.4f}")
    check_side_files("on-gguf", model)


def part_adapter():
    train("on-folder", "base", "train-lora")
    base = load("base")
    plain = logprobs(base)
    d = apart(plain, score("--model", "base"))
    expect("transformers' log-probabilities of the base are agoge's", d < 1e-3, f"{d:.1e}")
    model = adapter_on(base, "adapters/on-folder")
    tuned = logprobs(model)
    d, moved = apart(tuned, score("--model", "base", "--adapter", "adapters/on-folder")), apart(tuned, plain)
    expect("PEFT's log-probabilities with the adapter are agoge's", d < 1e-3 < moved, f"{d:.1e}; the adapter moves them by {moved:.2f}")
    check_side_files("on-folder", model)


def resume_trainer(checkpoint, max_steps):
    """transformers' Trainer goes on from a checkpoint with the rows and settings of train(); its log by step."""
    tokenizer = AutoTokenizer.from_pretrained("base")
    rows = [tokenizer(json.loads(line)["text"])["input_ids"] + [tokenizer.eos_token_id] for line in Path("rows.jsonl").read_text().splitlines()]
    c = json.loads((checkpoint / "adapter_config.json").read_text())
    lora = peft.LoraConfig(r=c["r"], lora_alpha=c["lora_alpha"], lora_dropout=0.0, target_modules=c["target_modules"], task_type="CAUSAL_LM")
    trainer = transformers.Trainer(
        model=peft.get_peft_model(load("base"), lora), processing_class=tokenizer,
        args=transformers.TrainingArguments(
            output_dir=str(checkpoint.parent), per_device_train_batch_size=2, gradient_accumulation_steps=1, max_steps=max_steps, learning_rate=2e-3,
            warmup_steps=1, lr_scheduler_type="linear", weight_decay=0.01, logging_steps=1, save_steps=2, report_to=[], disable_tqdm=True, seed=42,
            use_cpu=True, bf16=False, optim="adamw_torch", max_grad_norm=1.0),
        train_dataset=[{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": list(ids)} for ids in rows],
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100))
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    return {h["step"]: h for h in trainer.state.log_history if "loss" in h}


def same_steps(what, first, theirs, ours):
    """Losses, norms and rates of two steps, and the adapters after them. theirs, ours: (log, folder); first: the folder both began with."""
    last = max(theirs[0])
    for key, near in (("loss", 1e-3), ("grad_norm", 1e-2), ("learning_rate", 1e-9)):
        d = max(abs(theirs[0][step][key] - ours[0][step][key]) for step in (last - 1, last))
        expect(f"{what}: {key} of steps {last - 1} and {last} are the other's", len(theirs[0]) == len(ours[0]) == last and d <= near,
               f"{d:.1e} apart; {', '.join(f'{ours[0][step][key]:.6g}' for step in (last - 1, last))}")
    start, a, b = (load_file(folder / "adapter_model.safetensors") for folder in (first, theirs[1], ours[1]))
    moved, off = (float(torch.cat([(x[k] - a[k]).flatten() for k in a]).norm()) for x in (start, b))
    expect("  and so is the adapter", a.keys() == b.keys() and off < 0.02 * moved, f"{100 * off / moved:.3f} % of the way it went")


def log_of(checkpoint):
    return {h["step"]: h for h in json.loads((checkpoint / "trainer_state.json").read_text())["log_history"] if "loss" in h}


def part_trainer():
    """Six steps: agoge's; the Trainer's from agoge's second on; agoge's from the Trainer's fourth on."""
    train("six", "base", "train-lora", max_steps=6, save_total_limit="null")
    six, trainer = Path("adapters/six"), Path("trainer")
    shutil.rmtree(trainer, ignore_errors=True)
    shutil.copytree(six / "checkpoint-2", trainer / "checkpoint-2")
    theirs = resume_trainer(trainer / "checkpoint-2", 6), trainer / "checkpoint-6"
    same_steps("the Trainer goes on from agoge's checkpoint", six / "checkpoint-2", theirs, (log_of(six / "checkpoint-6"), six / "checkpoint-6"))
    shutil.rmtree("adapters/on-trainers", ignore_errors=True)
    train("on-trainers", "base", "train-lora", max_steps=6, resume_checkpoint_path="trainer/checkpoint-4")
    ours = Path("adapters/on-trainers/checkpoint-6")
    same_steps("agoge goes on from the Trainer's checkpoint", trainer / "checkpoint-4", theirs, (log_of(ours), ours))


def part_tensorboard():
    """The run's event file, against its metrics.jsonl."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    train("on-folder", "base", "train-lora")
    events = EventAccumulator("runs/on-folder").Reload()
    scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    losses = next((v for k, v in scalars.items() if k.endswith("loss")), [])
    state = json.loads(Path("adapters/on-folder/checkpoint-4/trainer_state.json").read_text())["log_history"]
    expect("tensorboard reads the event file; the losses are trainer_state.json's", [s for s, _ in losses] == [1, 2, 3, 4] and all(
        abs(v - h["loss"]) < 1e-5 for (_, v), h in zip(losses, state, strict=True)), ", ".join(scalars))


def nf4_model(doubly):
    """The base with its projections through bitsandbytes' NF4 and back. doubly makes of block maxima what double quantization leaves."""
    model = load("base")
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            codes, state = bitsandbytes.functional.quantize_4bit(module.weight.data, blocksize=64, compress_statistics=False, quant_type="nf4")
            state.absmax = doubly(state.absmax)
            module.weight.data = bitsandbytes.functional.dequantize_4bit(codes, state)
    return model


def doubly_nearest(absmax):
    """To the nearest value of the 8-bit map, as bitsandbytes does it on a GPU."""
    offset, table = absmax.mean(), bitsandbytes.functional.create_dynamic_map(signed=True).float()
    blocks = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % 256)).reshape(-1, 256)
    largest = blocks.abs().amax(1, keepdim=True)
    nearest = (blocks[..., None] / largest[..., None] - table).abs().argmin(-1)
    return (table[nearest] * largest + offset).reshape(-1)[:len(absmax)]


def doubly_on_cpu(absmax):
    """As bitsandbytes does it on a CPU: a table of 65,536 bins, which misses the nearest value now and then."""
    codes, state = bitsandbytes.functional.quantize_blockwise(absmax - absmax.mean(), blocksize=256)
    return bitsandbytes.functional.dequantize_blockwise(codes, state) + absmax.mean()


def part_nf4():
    train("on-nf4", "base", "train-qlora", load_in_4bit="true", bnb_4bit_compute_dtype="float32")
    bare, ours = score("--model", "base", "--load-in-4bit"), score("--model", "base", "--load-in-4bit", "--adapter", "adapters/on-nf4")
    base = nf4_model(doubly_nearest)
    plain = logprobs(base)
    expect("on bitsandbytes' NF4 weights, scales rounded to the nearest code, transformers' log-probabilities are agoge's", apart(plain, bare) < 1e-3,
           f"{apart(plain, bare):.1e}")
    tuned = logprobs(adapter_on(base, "adapters/on-nf4"))
    expect("PEFT's with the adapter on them, too", apart(tuned, ours) < 1e-3 < apart(tuned, plain),
           f"{apart(tuned, ours):.1e}; the adapter moves them by {apart(tuned, plain):.2f}")
    tuned = logprobs(peft.PeftModel.from_pretrained(nf4_model(doubly_on_cpu), "adapters/on-nf4"))
    expect("with scales as bitsandbytes rounds them on a CPU they are near", apart(tuned, ours) < 0.1, f"{apart(tuned, ours):.4f}")
    config = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                             bnb_4bit_compute_dtype=torch.float32)
    tuned = logprobs(adapter_on(load("base", quantization_config=config), "adapters/on-nf4"))
    expect("PEFT on transformers' load_in_4bit runs; bitsandbytes' CPU kernels may round to bf16", all(x.isfinite().all() for x in tuned),
           f"{apart(tuned, ours):.4f} from agoge")


def check_text(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    different = []
    for text in TEXTS:
        ours = json.loads(agoge("tokenize", "--model", folder, "--format", "json", "--text", text))["ids"] if text else []
        if ours != tokenizer(text)["input_ids"]:
            different.append((text, ours, tokenizer(text)["input_ids"]))
    expect(f"AutoTokenizer of {folder} gives agoge's ids", not different, different or f"{len(TEXTS)} texts")
    gguf_ids = [json.loads(agoge("tokenize", "--model", BASE_GGUF, "--format", "json", "--text", t))["ids"] for t in TEXTS if t]
    expect("and those of the GGUF's own vocabulary", gguf_ids == [tokenizer(t)["input_ids"] for t in TEXTS if t])
    different = []
    for chat in CHATS:
        Path("messages.json").write_text(json.dumps(chat))
        for begin in (False, True):
            ours = json.loads(agoge("render-chat", "--model", folder, "--messages", "messages.json", "--format", "json",
                                    *(["--add-generation-prompt"] if begin else [])))["text"]
            theirs = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=begin)
            if ours != theirs:
                different.append((ours, theirs))
    expect(f"apply_chat_template of {folder} renders as agoge render-chat", not different, different or f"{2 * len(CHATS)} renderings")


def part_folder():
    train("on-folder", "base", "train-lora")
    export("on-folder", "merged")
    export("on-folder", "merged-shards", "--max-shard-size", "50MB")
    got = logprobs(load("merged"))
    d = apart(got, score("--model", "merged"))
    expect("transformers' log-probabilities of the exported folder are agoge's", d < 1e-3, f"{d:.1e}")
    d = apart(got, score("--model", "base", "--adapter", "adapters/on-folder"))
    expect("and near the adapter on its base (merging rounds to bf16)", d < 0.25, f"{d:.4f}")
    wanted, stored = peft.PeftModel.from_pretrained(load("base"), "adapters/on-folder").merge_and_unload().state_dict(), None
    sharded = AutoModelForCausalLM.from_pretrained("merged-shards")
    stored = AutoModelForCausalLM.from_pretrained("merged").state_dict()
    expect("the folder is bf16 where nothing else is asked for", sharded.dtype == torch.bfloat16)
    n, off = sum(w.numel() for w in wanted.values()), sum(int((wanted[k].to(torch.bfloat16) != stored[k]).sum()) for k in wanted)
    expect("its weights are those that PEFT merges, rounded once", wanted.keys() == stored.keys() and off < 1e-3 * n, f"{off} of {n} at a rounding boundary")
    files = [p.name for p in sorted(Path("merged-shards").glob("*.safetensors"))]
    expect("shards of 50 MB hold the same weights", len(files) > 1 and all(torch.equal(stored[k], v) for k, v in sharded.state_dict().items()),
           f"{len(files)} files, the largest {max(Path('merged-shards', f).stat().st_size for f in files) / 1e6:.0f} MB")
    check_text("merged")


def halves(w, heads):
    """Rows of q and k of a GGUF in transformers' order: llama.cpp's rotation pairs neighbours, transformers' pairs halves of a head."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


NAMES = dict(attn_q="self_attn.q_proj", attn_k="self_attn.k_proj", attn_v="self_attn.v_proj", attn_output="self_attn.o_proj", ffn_gate="mlp.gate_proj",
             ffn_up="mlp.up_proj", ffn_down="mlp.down_proj", attn_norm="input_layernorm", ffn_norm="post_attention_layernorm")


def hf_name(name):
    if not name.startswith("blk."):
        return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}.get(name, "lm_head.weight")
    _, layer, what, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[what]}.weight"


def part_gguf():
    export_ggufs("f16", "q8_0")
    tuned = score("--model", "base", "--adapter", "adapters/on-folder")
    model = peft.PeftModel.from_pretrained(load("base"), "adapters/on-folder").merge_and_unload()
    wanted, c = {k: v.numpy().copy() for k, v in model.state_dict().items()}, model.config
    for kind, relative, near in (("f16", 5e-4, 0.1), ("q8_0", 1e-2, 1.0)):
        reader, worst, values = gguf.GGUFReader(f"tuned-{kind}.gguf"), 0.0, {}
        for t in reader.tensors:
            w = wanted[hf_name(t.name)]
            got = gguf.quants.dequantize(t.data, t.tensor_type).reshape(w.shape)
            if ".attn_q." in t.name or ".attn_k." in t.name:
                got = halves(got, c.num_attention_heads if "_q." in t.name else c.num_key_value_heads)
            worst = max(worst, float(numpy.linalg.norm(got - w) / numpy.linalg.norm(w)))
            values[hf_name(t.name)] = torch.from_numpy(numpy.array(got, numpy.float32))
        expect(f"the gguf package reads {kind}; its values are PEFT's merged weights", worst < relative, f"{len(reader.tensors)} tensors, "
               f"{100 * worst:.3f} % off at most (norm of a tensor's difference)")
        model.load_state_dict(values, strict=False)
        ours = score("--model", f"tuned-{kind}.gguf")
        d = apart(logprobs(model), ours)
        expect(f"transformers' log-probabilities of the values in {kind} are agoge's", d < 1e-3, f"{d:.1e}")
        expect(f"agoge on {kind} is near agoge on base and adapter", apart(ours, tuned) < near, f"{apart(ours, tuned):.4f}")


def export_ggufs(*kinds):
    train("on-folder", "base", "train-lora")
    for kind in kinds:
        if not Path(f"tuned-{kind}.gguf").exists():
            agoge("export-gguf", "--run-dir", "adapters/on-folder", "--type", kind, "--out", f"tuned-{kind}.gguf", *threads())


def llama_logprobs(*files):
    r = subprocess.run([args.llama_logprobs.resolve(), files[0], "ids.jsonl", *files[1:]], capture_output=True, text=True)
    if r.returncode:
        print(r.stderr)
        return [torch.tensor(torch.nan)]
    return [torch.tensor(json.loads(line)["logprobs"]) for line in r.stdout.splitlines()]


def near_llama(path, near, why):
    ours, theirs = score("--model", path), llama_logprobs(path)
    mean = float(torch.cat([(x - y).abs() for x, y in zip(ours, theirs, strict=True)]).mean())
    expect(f"llama.cpp's log-probabilities of {Path(path).name} are agoge's{why}", mean < near, f"{mean:.1e} on average, {apart(ours, theirs):.1e} at most")


def gap_where_they_part(path, prompt, ours, theirs):
    """How much likelier agoge finds its own token where two texts part, and how many tokens are the same before."""
    ids = [json.loads(agoge("tokenize", "--model", path, "--format", "json", "--text", prompt + text))["ids"] for text in (ours, theirs)]
    k = len(os.path.commonprefix(ids))
    Path("two.jsonl").write_text("".join(json.dumps(row[:k + 1]) + "\n" for row in ids))
    rows = agoge("score", "--model", path, "--ids-file", "two.jsonl", "--format", "json", *threads()).splitlines()
    a, b = (json.loads(row)["logprobs"][-1] for row in rows)
    return a - b, k


def part_llama_logprobs():
    if not args.llama_logprobs:
        print("--  llama.cpp's log-probabilities: not run (--llama-logprobs)")
        return
    export_ggufs("f32", "f16", "q8_0")
    for kind, near in (("f32", 1e-3), ("f16", 0.02), ("q8_0", 0.2)):
        near_llama(f"tuned-{kind}.gguf", near, "" if kind == "f32" else f" (it rounds activations to {kind}, agoge does not)")
    for out, model in (("base-f32.gguf", ["--model", "base", "--type", "f32"]),
                       ("lora.gguf", ["--model", "base", "--adapter", "adapters/on-folder", "--lora-only", "--type", "f32"])):
        if not Path(out).exists():
            agoge("export-gguf", *model, "--out", out, *threads())
    d = apart(llama_logprobs("base-f32.gguf", "lora.gguf"), score("--model", "base", "--adapter", "adapters/on-folder"))
    expect("llama.cpp with --lora-only's file on the exported base has agoge's log-probabilities of base and adapter", d < 2e-3, f"{d:.1e}")
    near_llama(BASE_GGUF, 0.2, " (it rounds activations to 8 bits, agoge does not)")


def part_llama_text():
    if not args.llama_simple:
        print("--  llama.cpp's greedy text: not run (--llama-simple)")
        return
    export_ggufs("f16", "q8_0")
    for kind in ("f16", "q8_0"):
        for prompt in PROMPTS:
            ours = json.loads(agoge("generate", "--model", f"tuned-{kind}.gguf", "--prompt", prompt, "--max-new-tokens", NEW_TOKENS,
                                    "--format", "json", *threads()))["text"].rstrip("\n")
            r = subprocess.run([args.llama_simple.resolve(), "-m", f"tuned-{kind}.gguf", "-ngl", "0", "-n", str(NEW_TOKENS), prompt],
                               capture_output=True, text=True, errors="replace")
            theirs = r.stdout[r.stdout.find(prompt) + len(prompt):].rstrip("\n")
            expect(f"llama.cpp on {kind} goes on from {prompt!r}", r.returncode == 0 and theirs, repr(theirs))
            if ours == theirs:
                expect("  agoge does so with the same text", True)
                continue
            gap, k = gap_where_they_part(f"tuned-{kind}.gguf", prompt, ours, theirs)
            expect("  agoge parts from it only at a near tie (difference of log-probabilities < 0.5)", kind != "f16" and 0 <= gap < 0.5,
                   f"{ours!r}, {gap:.3f} apart at token {k}")


print(f"{agoge('--version').splitlines()[0]}; python {sys.version.split()[0]}, torch {torch.__version__}, transformers {transformers.__version__}, "
      f"peft {peft.__version__}, bitsandbytes {bitsandbytes.__version__}, gguf {version('gguf')}", flush=True)
make_base()
for name in args.only.split(",") if args.only else ("gguf-base", "adapter", "trainer", "tensorboard", "nf4", "folder", "gguf", "llama-logprobs", "llama-text"):
    globals()["part_" + name.replace("-", "_")]()
print(f"{bad} of the checks failed" if bad else "all checks passed")
sys.exit(bool(bad))
