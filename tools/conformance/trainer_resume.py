#!/usr/bin/env python3
"""Does HF Trainer go on from side files that agoge wrote, to the same bits?

    python3 tools/conformance/trainer_resume.py RUNS build/release/tests/conform_rewrite_checkpoint

RUNS holds base/tiny-llama, data/resume-sequential.jsonl and resume/sequential/checkpoint-{4,8}, made by transformers, TRL and PEFT.
checkpoint-4's trainer_state.json, optimizer.pt, scheduler.pt and rng_state.pth are read and written anew by agoge. Then
1. torch.load(weights_only=True) reads each and finds the same values (rng_state.pth: the generators take the states);
2. the Trainer resumes from them, and its adapter at step 8 has the same bits as after resuming from its own files.
Needs torch, transformers, peft, accelerate (last run with 2.15.0, 5.24.0, 0.21.2).
"""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy
import torch


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def expect(condition, what):
    print(("ok      " if condition else "FAILED  ") + what)
    if not condition:
        sys.exit(1)


def check_values(theirs, ours):
    load = lambda d, f: torch.load(d / f, weights_only=True)
    expect(same(load(theirs, "optimizer.pt"), load(ours, "optimizer.pt")), "optimizer.pt: torch reads the same value")
    a, b = load(theirs, "scheduler.pt"), load(ours, "scheduler.pt")
    a["lr_lambdas"] = [None, None]  # of a plain function; the Trainer's are partial functions without state
    expect(same(a, b), "scheduler.pt: torch reads the same value, lr_lambdas aside")
    a, b = torch.load(theirs / "rng_state.pth", weights_only=False), load(ours, "rng_state.pth")
    random.setstate(b["python"]), numpy.random.set_state(b["numpy"]), torch.set_rng_state(b["cpu"])
    n = numpy.random.get_state()
    expect(same(a["python"], random.getstate()) and same(a["cpu"], torch.get_rng_state()), "rng_state.pth: same states of Python and torch")
    expect((n[1] == a["numpy"][1]).all() and n[2:] == a["numpy"][2:], "rng_state.pth: same state of NumPy")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.load(ours / name, weights_only=True, mmap=True)
    expect(True, "all three can be memory-mapped")
    a, b = (json.loads((d / "trainer_state.json").read_text()) for d in (theirs, ours))
    for entry in a["log_history"]:
        for key in ("entropy", "mean_token_accuracy", "num_tokens"):
            entry.pop(key, None)  # TRL's own
    expect(a == b, "trainer_state.json: same values")
    text = json.dumps(b, indent=2, sort_keys=True) + "\n"
    expect(text == (ours / "trainer_state.json").read_text(), "trainer_state.json: as Python writes it, to the byte")


def resume(runs, checkpoint):
    """The Trainer's adapter at step 8, resumed from a checkpoint at step 4."""
    import peft
    import transformers
    transformers.logging.set_verbosity_error()
    config = dict(line.split(": ", 1) for line in (runs / "resume/sequential.yaml").read_text().splitlines() if ": " in line)
    data = [json.loads(line)["text"] for line in (runs / "data/resume-sequential.jsonl").read_text("utf-8").splitlines()]
    torch.manual_seed(int(config["seed"]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(runs / "base/tiny-llama")
    model = transformers.AutoModelForCausalLM.from_pretrained("base/tiny-llama", dtype=torch.float32)
    lora = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    args = transformers.TrainingArguments(
        output_dir=str(checkpoint.parent), per_device_train_batch_size=2, gradient_accumulation_steps=1, max_steps=8, learning_rate=1e-2,
        lr_scheduler_type="linear", warmup_steps=2, weight_decay=0.01, logging_steps=1, save_steps=4, save_strategy="steps", report_to=[],
        disable_tqdm=True, seed=int(config["seed"]), use_cpu=True, bf16=False, gradient_checkpointing=False, optim="adamw_torch",
        max_grad_norm=1.0)
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": list(ids)} for ids in
            (tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] for text in data)]
    trainer = transformers.Trainer(model=peft.get_peft_model(model, lora), args=args, train_dataset=rows, processing_class=tokenizer,
                                   data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100))
    trainer.train(resume_from_checkpoint=str(checkpoint))
    steps = [h["step"] for h in trainer.state.log_history if "loss" in h]
    return steps, (checkpoint.parent / "checkpoint-8/adapter_model.safetensors").read_bytes()


def main():
    runs, program = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    torch.set_num_threads(1)
    os.chdir(runs)  # the adapter names its base by a relative path
    original = runs / "resume/sequential/checkpoint-4"
    files = ("trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth")
    with tempfile.TemporaryDirectory() as work:
        theirs, ours, none = (pathlib.Path(work) / kind / "checkpoint-4" for kind in ("theirs", "ours", "none"))
        for checkpoint in (theirs, ours, none):
            shutil.copytree(original, checkpoint)
            for path in [checkpoint, *checkpoint.iterdir()]:
                path.chmod(0o755)
        for name in files:
            (ours / name).unlink()
        for name in ("optimizer.pt", "scheduler.pt"):
            (none / name).unlink()
        subprocess.run([program, theirs, ours, "4"], check=True)
        check_values(theirs, ours)
        (their_steps, their_adapter), (our_steps, our_adapter) = resume(runs, theirs), resume(runs, ours)
        expect(their_steps == our_steps == list(range(1, 9)), "the Trainer resumes at step 5 and goes to step 8")
        expect(their_adapter == our_adapter, "its adapter then has the same bits as after resuming from its own files")
        expect(resume(runs, none)[1] != our_adapter, "(without optimizer.pt and scheduler.pt it has others: they were used)")


if __name__ == "__main__":
    main()
