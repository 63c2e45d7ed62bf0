"""Training speed of transformers + PEFT on this machine, to be run beside `agoge bench`.

    python tools/conformance/bench_peft.py MODEL_DIR [--dtype float32|bfloat16] [--nf4] [--seq 512] [--batch 1] [--recompute]
                                           [--steps 4] [--threads N]

Prints one JSON line: tokens per second (median step), seconds from process start to the end of the first step, peak memory.
LoRA r 16 on the seven projections, dropout 0, AdamW on the adapter, every token a target.
"""
import argparse, json, resource, statistics, time

START = time.time()
parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--nf4", action="store_true")
parser.add_argument("--seq", type=int, default=512)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--recompute", action="store_true")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--threads", type=int, default=0)
args = parser.parse_args()

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

if args.threads:
    torch.set_num_threads(args.threads)
dtype = getattr(torch, args.dtype)
kwargs = {"dtype": dtype}
if args.nf4:
    from transformers import BitsAndBytesConfig

    kwargs["quantization_config"] = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype)
model = AutoModelForCausalLM.from_pretrained(args.model, **kwargs)
model.config.use_cache = False
if args.recompute:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, task_type="CAUSAL_LM", target_modules=[
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
torch.manual_seed(1)
seconds, first = [], None
for step in range(args.steps):
    ids = torch.randint(0, model.config.vocab_size, (args.batch, args.seq))
    t = time.time()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    seconds.append(time.time() - t)
    if first is None:
        first = time.time() - START
tokens = args.batch * args.seq
print(json.dumps({
    "peer": "transformers+peft" + ("+bitsandbytes nf4" if args.nf4 else ""), "dtype": args.dtype, "seq": args.seq,
    "batch": args.batch, "recompute": args.recompute, "threads": torch.get_num_threads(),
    "train_tok_s": tokens / statistics.median(seconds[1:] or seconds), "first_step_s": first,
    "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "loss": float(loss),
    "torch": torch.__version__}))
