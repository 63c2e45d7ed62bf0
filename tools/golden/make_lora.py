#!/usr/bin/env python3
"""Makes tests/golden/lora/peft.h: one linear layer with PEFT's LoRA (no dropout), forward and backward in double, and the same
layer without it.

    python3 tools/golden/make_lora.py > tests/golden/lora/peft.h
"""
import peft
import torch

T, K, N, R, ALPHA = 19, 37, 29, 4, 10


def emit(name, tensor):
    values = ", ".join("%.9gf" % v if "." in "%.9g" % v or "e" in "%.9g" % v else "%.9g.0f" % v for v in tensor.flatten().tolist())
    print(f"static const float {name}[{tensor.numel()}] = {{{values}}};")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(K, N, bias=False)

    def forward(self, x):
        return self.proj(x)


torch.manual_seed(5)
net = Net()
model = peft.get_peft_model(net, peft.LoraConfig(r=R, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=["proj"]))
layer = model.base_model.model.proj
a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
with torch.no_grad():
    b.normal_()
model.double()
with torch.no_grad():  # values that f32 holds exactly
    for p in model.parameters():
        p.copy_(p.float())
x = torch.randn(T, K).double().requires_grad_()
dy = torch.randn(T, N).double()
y = model(x)
y.backward(dy)
w = layer.base_layer.weight.detach()
print(f"/* Made by tools/golden/make_lora.py with peft {peft.__version__}, torch {torch.__version__}. */")
print(f"enum {{ GOLDEN_T = {T}, GOLDEN_K = {K}, GOLDEN_N = {N}, GOLDEN_R = {R} }};")
print(f"static const float golden_scale = {ALPHA / R}f;")
emit("golden_x", x.detach())
emit("golden_a", a.detach())
emit("golden_b", b.detach())
emit("golden_dy", dy)
emit("golden_base_y", x.detach() @ w.T)
emit("golden_base_dx", dy @ w)
emit("golden_y", y.detach())
emit("golden_dx", x.grad)
emit("golden_da", a.grad)
emit("golden_db", b.grad)
