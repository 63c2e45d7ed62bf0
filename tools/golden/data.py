#!/usr/bin/env python3
"""Goldens of the data pipeline and the schedules. Writes tests/golden/data/ (run from the repository's root).

    python3 tools/golden/data.py        # needs torch, transformers, tokenizers; packing.json also trl and pyarrow
                                        # last run with torch 2.15, transformers 5.24, tokenizers 0.23, trl 1.16, pyarrow 26

schedule.json   the rate of every step, from transformers' own schedulers
sampler.json    rows of every micro-batch and step, recorded from transformers' Trainer
packing.json    packed rows, from TRL's "bfd"
tokenizer.json  a small byte-level BPE with ChatML tokens
examples.json   ids and masks of rows: text and chats as TRL and transformers make them, completions by the rules of the
                specification, written down again here in a few lines of Python
"""
import hashlib
import json
import pathlib
import random
import sys
import types

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

OUT = pathlib.Path("tests/golden/data")


def write(name, value):
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


# ---- schedules -----------------------------------------------------------------------------------------------------------
def schedules():
    cases = []
    for kind in ("linear", "cosine", "constant", "constant_with_warmup"):
        for warmup, steps in ((0, 1), (0, 7), (2, 8), (3, 3), (5, 4), (10, 100)):
            peak = 3e-4
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
            s = transformers.get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=steps)
            rates = []
            for _ in range(steps + 2):
                rates.append(s.get_last_lr()[0])
                optimizer.step()
                s.step()
            cases.append({"kind": kind, "warmup": warmup, "steps": steps, "peak": peak, "rates": rates})
    ratios = []
    for ratio, steps in ((0.1, 100), (0.03, 7), (0.5, 3), (0.999, 1)):
        args = transformers.TrainingArguments(output_dir="/tmp/x", warmup_steps=ratio, report_to=[])
        ratios.append({"ratio": ratio, "steps": steps, "warmup": args.get_warmup_steps(steps)})
    write("schedule.json", {"cases": cases, "ratios": ratios})


# ---- the Trainer's order --------------------------------------------------------------------------------------------------
class Rows(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {"row": i}


class Recorder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1))
        self.seen = []

    def forward(self, row=None):
        self.seen.append(row.tolist())
        return {"loss": (self.w * row.float()).sum()}


class Steps(transformers.TrainerCallback):
    def __init__(self, model):
        self.model, self.steps, self.epochs = model, [], []

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(self.model.seen)
        self.model.seen = []
        self.epochs.append(state.epoch)


def sampler():
    cases = []
    for n, batch, accumulation, epochs, max_steps, seed in ((14, 2, 2, 2, -1, 42), (10, 3, 1, 2, -1, 7), (11, 2, 4, 3, -1, 42),
                                                            (5, 8, 3, 2, -1, 1), (9, 1, 4, 1, 7, 42), (1, 1, 8, 3, -1, 0)):
        args = transformers.TrainingArguments(
            output_dir="/tmp/agoge-golden", per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation,
            num_train_epochs=epochs, max_steps=max_steps, seed=seed, report_to=[], save_strategy="no", use_cpu=True,
            disable_tqdm=True, remove_unused_columns=False, logging_strategy="no")
        model = Recorder()
        steps = Steps(model)
        transformers.set_seed(seed)
        trainer = transformers.Trainer(model=model, args=args, train_dataset=Rows(n), callbacks=[steps],
                                       data_collator=lambda rows: {"row": torch.tensor([r["row"] for r in rows])})
        trainer.train()
        cases.append({"n": n, "batch": batch, "accumulation": accumulation, "epochs": epochs, "max_steps": max_steps, "seed": seed,
                      "steps": steps.steps, "epoch_after": steps.epochs})
    write("sampler.json", cases)


# ---- packing --------------------------------------------------------------------------------------------------------------
def packing():
    import pyarrow as pa
    # trl.data_utils needs only the names of these.
    for name, members in (("datasets", ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict")),):
        if name not in sys.modules:
            module = types.ModuleType(name)
            for m in members:
                setattr(module, m, type(m, (), {}))
            sys.modules[name] = module
    import importlib.util
    origin = next(pathlib.Path(p) / "trl/data_utils.py" for p in sys.path if (pathlib.Path(p) / "trl/data_utils.py").exists())
    spec = importlib.util.spec_from_file_location("trl_data_utils", origin)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cases = []
    rng = random.Random(5)
    for capacity, lengths in ((16, [16]), (16, [3, 3, 3, 3, 3, 3, 3]), (10, [6, 4, 5, 5, 7, 3, 1, 9, 2, 8]),
                              (64, [rng.randint(1, 64) for _ in range(200)]), (100, [rng.randint(1, 30) for _ in range(300)]),
                              (37, [rng.choice((5, 7, 11, 37)) for _ in range(60)])):
        table = pa.table({"rows": pa.array([[i] * n for i, n in enumerate(lengths)])})
        packed = module._pack_bfd(table, capacity)
        bins = []
        for row, sizes in zip(packed["rows"].to_pylist(), packed["seq_lengths"].to_pylist()):
            at, here = 0, []
            for size in sizes:
                here.append(row[at])
                at += size
            bins.append(here)
        cases.append({"capacity": capacity, "lengths": lengths, "bins": bins})
    write("packing.json", cases)


# ---- rows to ids -----------------------------------------------------------------------------------------------------------
CORPUS = ["The quick brown fox jumps over the lazy dog. ", "system\nYou are a helpful assistant\nuser\nassistant\n",
          "What is the capital of France? Paris is the capital. ", "Fix the code:\n    return x + 1\nanswer: 42\n",
          "Instruction: Input: Output: ", "Grüße, naïve café; 雪とまつり 🙂🙂 "] * 4
TEMPLATE = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe brief."
            "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# The same text, with marks as TRL's training templates set them: the content and the end token.
MARKED = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe brief."
          "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}"
          "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}"
          "{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
POST = {  # post-processors: what the tokenizer adds by itself
    "none": [],
    "bos": ["<s>"],
    "bos_eos": ["<s>", "</s>"],
    "odd": ["<pad>"],
}
TEXTS = ["The quick brown fox", "x", "ends by itself</s>", "Grüße 雪🙂\n\n", " two  spaces ", "<|im_start|>user\nhi<|im_end|>"]
CHATS = [
    [("user", "What is the capital of France?"), ("assistant", "Paris.")],
    [("system", "You are a fox."), ("user", "jump"), ("assistant", "I jump over the dog. 🙂"), ("user", "again"), ("assistant", "\nNo")],
    [("user", "a"), ("assistant", ""), ("user", "b"), ("assistant", "ends in space \n")],
]
COMPLETIONS = [
    {"text": "Fix:\nanswer", "completion_start_char": 5, "canonical_id": "r-1", "n": 1.5, "nested": {"b": [1, None], "a": "é\u2028\"/"}},
    {"text": "Grüße 雪 -> 🙂🙂 ok", "completion_start_char": 10},
    {"text": "user\n assistant</s>", "completion_start_char": 5, "zz": True},
]


def tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=360, special_tokens=special,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return t


def with_post(t, added):
    t = Tokenizer.from_str(t.to_str())
    if added:
        single = " ".join([added[0], "$A"] + added[1:])
        t.post_processor = processors.TemplateProcessing(single=single, special_tokens=[(a, t.token_to_id(a)) for a in added])
    return t


def completion(t, row):
    """Ids and mask of a completion-only row (BOS in front and EOS at the end are the only tokens that may be added)."""
    bos, eos = t.token_to_id("<s>"), t.token_to_id("</s>")
    e = t.encode(row["text"])
    ids, mask = [], []
    for i, (token, (left, right), special) in enumerate(zip(e.ids, e.offsets, e.special_tokens_mask)):
        if special and (left, right) == (0, 0):
            if i == 0 and token == bos:
                ids.append(token), mask.append(0)
            elif i == len(e.ids) - 1 and token == eos and ids[-1] != eos:
                ids.append(token), mask.append(1)
            continue
        assert not left < row["completion_start_char"] < right
        ids.append(token), mask.append(int(left >= row["completion_start_char"]))
    if ids[-1] != eos:
        ids.append(eos), mask.append(1)
    return ids, mask


def prepared(row, ids, mask):
    full = dict(row, input_ids=ids, completion_mask=mask, labels=[i if m else -100 for i, m in zip(ids, mask)])
    return json.dumps(full, sort_keys=True, ensure_ascii=False) + "\n"


def examples():
    base = tokenizer()
    (OUT / "tokenizer.json").write_text(base.to_str() + "\n")
    out = {"post": {}, "template_texts": [], "chats": [[{"role": r, "content": c} for r, c in chat] for chat in CHATS]}
    for name, added in POST.items():
        t = with_post(base, added)
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
        entry = {"post_processor": json.loads(t.to_str())["post_processor"], "texts": [], "chats": [], "completions": []}
        for text in TEXTS:  # as TRL does: the EOS goes behind the text, as text
            if not text.endswith("</s>"):
                text += "</s>"
            ids = fast(text)["input_ids"]
            if name == "bos_eos":  # one EOS, not two, as our rows have it
                assert ids[-2:] == [fast.eos_token_id] * 2
                ids = ids[:-1]
            entry["texts"].append(ids)
        for chat in out["chats"]:
            plain = fast.apply_chat_template(chat, chat_template=TEMPLATE, tokenize=True, return_dict=True)["input_ids"]
            marked = fast.apply_chat_template(chat, chat_template=MARKED, tokenize=True, return_dict=True,
                                              return_assistant_tokens_mask=True)
            assert plain == marked["input_ids"]
            entry["chats"].append({"ids": plain, "mask": marked["assistant_masks"]})
        if name != "odd":
            digest = hashlib.sha256()
            for row in COMPLETIONS:
                ids, mask = completion(t, row)
                entry["completions"].append({"ids": ids, "mask": mask})
                digest.update(prepared(row, ids, mask).encode())
            entry["prepared_sha256"] = digest.hexdigest()
        out["post"][name] = entry
    out["template_texts"] = [fast.apply_chat_template(c, chat_template=TEMPLATE, tokenize=False) for c in out["chats"]]
    out["texts"] = TEXTS
    out["completion_rows"] = COMPLETIONS
    write("examples.json", out)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    for part in sys.argv[1:] or ("schedules", "sampler", "packing", "examples"):
        globals()[part]()
