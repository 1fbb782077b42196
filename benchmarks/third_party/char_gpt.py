"""PyTorch: a small GPT that learns, character by character, the text of Python's help topics."""

import math
import time
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

import malt  # +
import malt.torch  # +

steps, batch, block, width, heads, layers = 200, 16, 64, 64, 4, 2
text = "\n".join(topics[name] for name in sorted(topics))
letters = sorted(set(text))
numbers = {letter: n for n, letter in enumerate(letters)}
data = torch.tensor([numbers[letter] for letter in text])
train, held_out = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        shape = (*x.shape[:2], heads, width // heads)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(len(letters), width), nn.Embedding(block, width)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(letters), bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        self.head.weight = self.token.weight  # tied

    def forward(self, x, y):
        x = self.token(x) + self.place(torch.arange(x.shape[1]))
        return F.cross_entropy(self.head(self.norm(self.blocks(x))).flatten(0, 1), y.flatten())


def draw(source, count):
    at = torch.randint(len(source) - block, (count, 1)) + torch.arange(block)
    return source[at], source[at + 1]


torch.manual_seed(1)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1)
malt.init()  # +
torch.manual_seed(1 + malt.rank())  # +
batch //= malt.size()  # +
optimizer = malt.torch.GradientExchange(model, optimizer)  # +

start, own = time.perf_counter(), time.process_time()
for step in range(steps):
    rate = 3e-3 * min((step + 1) / 30, 0.55 + 0.45 * math.cos(math.pi * step / steps))
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    model(*draw(train, batch)).backward()
    optimizer.exchange()  # +
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
own, seconds = time.process_time() - own, time.perf_counter() - start

torch.manual_seed(0)
with torch.no_grad():
    loss = model(*draw(held_out, 1000)).item()
print(f"score {loss:.4f} seconds {seconds:.3f} processor {own:.3f}")
