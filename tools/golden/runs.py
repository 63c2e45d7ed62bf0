#!/usr/bin/env python3
"""Takes the small files of tests/golden/runs/ from a directory of training runs made by PyTorch, transformers, PEFT and TRL (the one that
tools/conformance/conform_runs.py is run on).

    tools/golden/runs.py DIRECTORY

One whole checkpoint, the tokenizer of its base, and files of other checkpoints that differ from it in one thing each."""
import os
import shutil
import sys

TEMPLATE = ["adapter_config.json", "adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]
OTHERS = {"optimizer.pt": ["opt-shared-storage", "opt-view", "opt-step-zero", "opt-step-fraction", "opt-step-beyond", "opt-duplicate-id",
                           "opt-swapped", "opt-strided", "opt-mixed-dtype", "opt-numpy", "zip-64", "zip-64-count", "zip-64-offset", "zip-deflated",
                           "zip-duplicate", "zip-odd-storage", "zip-two-roots", "zip-comment", "evil-os-system"],
          "rng_state.pth": ["rng-cuda-offset", "rng-no-cuda"],
          "scheduler.pt": ["sched-off-by-one", "sched-step-count", "sched-one-lr"]}


def main():
    source = sys.argv[1]
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden", "runs")
    for folder in ("checkpoint-2", "base", "optimizer", "rng_state", "scheduler"):
        os.makedirs(os.path.join(here, folder), exist_ok=True)
    for name in TEMPLATE:
        shutil.copyfile(os.path.join(source, "adapters", "missing-training-args", "checkpoint-2", name), os.path.join(here, "checkpoint-2", name))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(source, "base", "tiny-llama", name), os.path.join(here, "base", name))
    for name, runs in OTHERS.items():
        stem, end = os.path.splitext(name)
        for run in runs:
            shutil.copyfile(os.path.join(source, "adapters", run, "checkpoint-2", name), os.path.join(here, stem, run + end))


main()
