"""Checks the fused forward and backward against plain PyTorch autograd in float64, and incremental
decoding against the full pass. Prints the largest relative differences; fails above 1e-4."""
import math

import torch

from fused import OutputLoss
from model import Config, Model


def rms(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def plain_loss(c, p, ids, targets, lengths):
    """The same loss written with ordinary operations; experts run densely and are masked."""
    x, balance, z_loss = p["embedding"][ids], 0.0, 0.0
    for i in range(c.layers):
        h = rms(x, p[f"{i}.attention_norm"], c.norm_eps)
        parts = [plain_attention(c, q) for q in (h @ p[f"{i}.qkv"].t()).split(lengths)]
        x = x + torch.cat(parts) @ p[f"{i}.o"].t()
        h = rms(x, p[f"{i}.ffn_norm"], c.norm_eps)
        if not c.experts:
            gate, up = (h @ p[f"{i}.w13"].t()).chunk(2, -1)
            x = x + (torch.nn.functional.silu(gate) * up) @ p[f"{i}.w2"].t()
            continue
        logits = h @ p[f"{i}.router"].t()
        probability = torch.softmax(logits, 1)
        top, chosen = probability.topk(c.experts_per_token, 1)
        weight = torch.zeros_like(probability).scatter(1, chosen, top / top.sum(1, keepdim=True))
        gate, up = torch.einsum("nd,efd->nef", h, p[f"{i}.w13"]).chunk(2, -1)
        y = torch.einsum("nef,edf->ned", torch.nn.functional.silu(gate) * up, p[f"{i}.w2"])
        x = x + (y * weight[:, :, None]).sum(1)
        share = (weight > 0).double().mean(0) / c.experts_per_token
        balance = balance + c.experts * (probability.mean(0) * share).sum()
        z_loss = z_loss + torch.logsumexp(logits, 1).pow(2).mean()
    logits = rms(x, p["final_norm"], c.norm_eps) @ p["embedding"].t()
    loss = torch.nn.functional.cross_entropy(logits, targets)
    return loss + 0.02 * balance / c.layers + 1e-3 * z_loss / c.layers


def plain_attention(c, qkv):
    n, half = qkv.shape[0], c.head_dim // 2
    q, k, v = qkv.view(n, -1, c.head_dim).transpose(0, 1).split((c.heads, c.kv_heads, c.kv_heads))
    frequency = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).double() / c.head_dim)
    angle = torch.outer(torch.arange(n).double(), frequency)
    cos, sin = torch.cat((angle.cos(),) * 2, 1), torch.cat((angle.sin(),) * 2, 1)

    def rope(t):
        return t * cos + torch.cat((-t[..., half:], t[..., :half]), -1) * sin

    k, v = (t.repeat_interleave(c.heads // c.kv_heads, 0) for t in (rope(k), v))
    scores = rope(q) @ k.transpose(1, 2) / math.sqrt(c.head_dim)
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
    return (torch.softmax(scores, -1) @ v).transpose(0, 1).reshape(n, -1)


def check(config):
    model = Model(config, seed=3)
    generator = torch.Generator().manual_seed(4)
    lengths = [37, 5, 90, 1]
    ids = torch.randint(config.vocabulary, (sum(lengths),), generator=generator)
    targets = torch.randint(config.vocabulary, (sum(lengths),), generator=generator)
    double = {k: v.detach().double().requires_grad_(True) for k, v in model.p.items()}
    plain_loss(config, double, ids, targets, lengths).backward()
    h, balance, z = model.hidden(ids, lengths)
    loss = OutputLoss.apply(h, model.p["embedding"], targets)
    (loss + 0.02 * balance + 1e-3 * z).backward()
    worst = max(float((model.p[k].grad - double[k].grad).norm() / double[k].grad.norm())
                for k in double)
    full = model.logits(ids[42:132], [90])
    cache = model.new_cache(1, 90)
    first = torch.zeros(1, dtype=torch.int64)
    steps = [model.step(ids[42 + t:43 + t], cache, t, first)[0] for t in range(90)]
    decode = float((torch.stack(steps) - full).abs().max() / full.abs().max())
    print(f"experts {config.experts}: gradients {worst:.1e}, decoding {decode:.1e}")
    assert worst < 1e-4 and decode < 1e-4


if __name__ == "__main__":
    check(Config(vocabulary=300, hidden=64, layers=3, heads=4, width=96))
    check(Config(vocabulary=300, hidden=96, layers=2, heads=3, kv_heads=1, width=64, experts=0))
