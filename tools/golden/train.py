"""Twelve training steps by PyTorch, for tests/golden/train: losses, gradient norms, learning rates and the adapter that they end with.

    python tools/golden/train.py tests/golden/train

Starts from what lies there: the model (llama/), the first adapter (init/) and the batches (batches.json); writes steps.json and final/.
AdamW lr 1e-3, weight decay 0.01, linear schedule with 3 warm-up steps of 12, two micro-batches a step, clipping at 1. The loss of a step
is the sum of cross-entropy over both micro-batches divided by the targets of both.
"""
import json, sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, get_scheduler

root = Path(sys.argv[1])
torch.set_num_threads(1)
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(root / "llama", dtype=torch.float32, attn_implementation="eager"),
                                  root / "init", is_trainable=True)
model.train()
params = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01)
schedule = get_scheduler("linear", optimizer, num_warmup_steps=3, num_training_steps=12)
steps = []
for number, micro in enumerate(json.loads((root / "batches.json").read_text()), 1):
    targets = sum(label >= 0 for rows in micro for row in rows for label in row["labels"][1:])
    total = 0.0
    for rows in micro:
        loss = 0
        for row in rows:
            logits = model(torch.tensor([row["ids"]])).logits[0, :-1]
            loss = loss + torch.nn.functional.cross_entropy(logits, torch.tensor(row["labels"][1:]), ignore_index=-100, reduction="sum")
        (loss / targets).backward()
        total += float(loss) / targets
    norm = float(torch.nn.utils.clip_grad_norm_(params, 1.0))
    steps.append({"step": number, "loss": total, "grad_norm": norm, "lr": schedule.get_last_lr()[0], "targets": targets})
    optimizer.step(), schedule.step(), optimizer.zero_grad()
(root / "steps.json").write_text(json.dumps({"f32": steps}, indent=1) + "\n")
model.save_pretrained(root / "final")
(root / "final" / "README.md").unlink(missing_ok=True)
