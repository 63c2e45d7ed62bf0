#!/usr/bin/env python3
"""A GGUF model as a Hugging Face folder, dequantized to bf16, to measure against other programs. Usage: gguf_to_hf.py IN.gguf OUT_DIR

The weights are right (transformers' own GGUF reader); the tokenizer is written as transformers rebuilds it, which is not always
the original one.
"""
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

source, out = Path(sys.argv[1]), Path(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
model.save_pretrained(out)
AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(out)
