"""Mixtral-style (MoE) and Llama-style (dense) decoders for training on one CPU core.

All weights live in one flat float32 buffer so that the optimiser is a single pass; Model.p[name]
are views of it and Model.p[name].grad views of the flat gradient. Batches hold whole documents
end to end: no padding, no cuts; everything but attention works row by row.
"""
import dataclasses
import math

import torch

from fused import (FLOAT, LIB, LONG, Attention, Experts, ResidualDropout, RmsNorm, SwiGlu, ptr)


@dataclasses.dataclass
class Config:
    vocabulary: int = 2048
    hidden: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    width: int = 256  # of one expert, or of the dense feed-forward part
    experts: int = 8  # 0: dense
    experts_per_token: int = 2
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    max_positions: int = 1024


def weight_shapes(c):
    """Name -> shape, in storage order. The output projection is the embedding (tied)."""
    shapes = {"embedding": (c.vocabulary, c.hidden)}
    for i in range(c.layers):
        shapes[f"{i}.attention_norm"] = (c.hidden,)
        shapes[f"{i}.qkv"] = ((c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden)
        shapes[f"{i}.o"] = (c.hidden, c.heads * c.head_dim)
        shapes[f"{i}.ffn_norm"] = (c.hidden,)
        lead = (c.experts,) if c.experts else ()
        if c.experts:
            shapes[f"{i}.router"] = (c.experts, c.hidden)
        shapes[f"{i}.w13"] = lead + (2 * c.width, c.hidden)
        shapes[f"{i}.w2"] = lead + (c.hidden, c.width)
    shapes["final_norm"] = (c.hidden,)
    return shapes


def initial_std(name, c):
    if name == "embedding" or name.endswith("router"):
        return 0.02
    std = c.width ** -0.5 if name.endswith("w2") else c.hidden ** -0.5
    # Branch outputs are scaled down so that the residual stream keeps its size at the start.
    return std / math.sqrt(2 * c.layers) if name.endswith((".o", "w2")) else std


class Model:
    def __init__(self, config, seed=0):
        self.config = c = config
        generator = torch.Generator().manual_seed(seed)
        shapes = weight_shapes(c)
        self.count = sum(math.prod(s) for s in shapes.values())
        self.flat, self.grad = torch.empty(self.count), torch.zeros(self.count)
        self.decayed = torch.zeros(self.count)  # 1 where weight decay applies
        self.p, at = {}, 0
        for name, shape in shapes.items():
            n = math.prod(shape)
            weight = self.flat[at:at + n].view(shape)
            if name.endswith("norm"):
                weight.fill_(1.0)
            else:
                weight.copy_(torch.randn(shape, generator=generator) * initial_std(name, c))
                self.decayed[at:at + n] = 1.0
            leaf = weight.detach().requires_grad_(True)
            leaf.grad = self.grad[at:at + n].view(shape)
            self.p[name] = leaf
            at += n
        frequency = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        angle = torch.outer(torch.arange(c.max_positions).float(), frequency)
        self.cos, self.sin = angle.cos().contiguous(), angle.sin().contiguous()

    def active_count(self):
        """Weights that take part in one token."""
        c = self.config
        idle = c.layers * (c.experts - c.experts_per_token) * 3 * c.hidden * c.width
        return self.count - (idle if c.experts else 0)

    def hidden(self, ids, lengths, dropout=0.0, seed=0, shares=None):
        """ids [N]: whole documents end to end, lengths theirs.

        Returns the normed hidden state [N, d], the balance loss and the router z-loss (means over
        layers). `shares`, when given, receives each layer's share of rows per expert.
        """
        c, p = self.config, self.p
        x = torch.nn.functional.embedding(ids, p["embedding"])
        balance = z_loss = 0.0
        for i in range(c.layers):
            h = RmsNorm.apply(x, p[f"{i}.attention_norm"], c.norm_eps)
            a = Attention.apply(torch.mm(h, p[f"{i}.qkv"].t()), lengths, self.cos, self.sin,
                                c.heads, c.kv_heads, c.head_dim)
            x = self._add(x, torch.mm(a, p[f"{i}.o"].t()), dropout, seed * 64 + 2 * i)
            h = RmsNorm.apply(x, p[f"{i}.ffn_norm"], c.norm_eps)
            if c.experts:
                branch, layer_balance, layer_z, share = self._moe(i, h)
                balance, z_loss = balance + layer_balance, z_loss + layer_z
                if shares is not None:
                    shares.append(share)
            else:
                branch = torch.mm(SwiGlu.apply(torch.mm(h, p[f"{i}.w13"].t())), p[f"{i}.w2"].t())
            x = self._add(x, branch, dropout, seed * 64 + 2 * i + 1)
        h = RmsNorm.apply(x, p["final_norm"], c.norm_eps)
        return h, balance / c.layers, z_loss / c.layers

    @staticmethod
    def _add(x, branch, dropout, seed):
        if dropout == 0.0:
            return x + branch
        return ResidualDropout.apply(x, branch, dropout, seed * 2654435761)

    def _moe(self, i, h):
        """Mixtral routing: softmax over all experts, top-k, renormalised over the chosen ones.

        Balance loss as in Switch Transformers, divided by k so that 1 is perfectly even.
        """
        c, p = self.config, self.p
        logits = torch.mm(h, p[f"{i}.router"].t())
        top, chosen = logits.topk(c.experts_per_token, dim=1)
        branch = Experts.apply(h, chosen, torch.softmax(top, 1), p[f"{i}.w13"], p[f"{i}.w2"])
        probability = torch.softmax(logits, 1).mean(0)
        share = torch.bincount(chosen.reshape(-1), minlength=c.experts).float() / chosen.numel()
        balance = c.experts * (probability * share).sum()
        return branch, balance, torch.logsumexp(logits, 1).pow(2).mean(), share

    def logits(self, ids, lengths):
        with torch.no_grad():
            return torch.mm(self.hidden(ids, lengths)[0], self.p["embedding"].t())

    # ---- incremental decoding: a batch of rows at one common position ----

    def new_cache(self, batch, length):
        c = self.config
        shape = (batch, c.kv_heads, length, c.head_dim)
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(c.layers)]

    @torch.no_grad()
    def step(self, ids, cache, position, first):
        """ids [B] at cache index `position`; first [B]: first valid index of each row (the rest is
        left padding; RoPE is relative, so a shifted start does not matter). Returns logits [B, V].
        """
        c, p = self.config, self.p
        batch, group = ids.shape[0], c.heads // c.kv_heads
        cos, sin = self.cos[position], self.sin[position]
        padding = torch.arange(position + 1)[None, :] < first[:, None]

        def rope(t):
            a, b = t.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

        x = p["embedding"][ids]
        for i in range(c.layers):
            h = RmsNorm.apply(x, p[f"{i}.attention_norm"], c.norm_eps)
            qkv = torch.mm(h, p[f"{i}.qkv"].t()).view(batch, -1, c.head_dim)
            q, k, v = qkv.split((c.heads, c.kv_heads, c.kv_heads), 1)
            keys, values = cache[i]
            keys[:, :, position], values[:, :, position] = rope(k), v
            q = (rope(q) * c.head_dim ** -0.5).view(batch, c.kv_heads, group, c.head_dim)
            scores = torch.matmul(q, keys[:, :, :position + 1].transpose(2, 3))
            scores = scores.masked_fill(padding[:, None, None, :], -1e30)
            a = torch.matmul(torch.softmax(scores, -1), values[:, :, :position + 1])
            x = x + torch.mm(a.reshape(batch, -1), p[f"{i}.o"].t())
            h = RmsNorm.apply(x, p[f"{i}.ffn_norm"], c.norm_eps)
            if c.experts:
                x = x + self._moe(i, h)[0]
            else:
                x = x + torch.mm(SwiGlu.apply(torch.mm(h, p[f"{i}.w13"].t())), p[f"{i}.w2"].t())
        h = RmsNorm.apply(x, p["final_norm"], c.norm_eps)
        return torch.mm(h, p["embedding"].t())


class AdamW:
    """AdamW (Loshchilov and Hutter) with gradient-norm clipping, over the model's flat buffer."""

    def __init__(self, model, weight_decay, beta1=0.9, beta2=0.98, eps=1e-8):
        self.model, self.betas, self.eps, self.steps = model, (beta1, beta2), eps, 0
        self.first, self.second = torch.zeros(model.count), torch.zeros(model.count)
        self.decay = model.decayed * weight_decay

    def step(self, learning_rate, clip=1.0):
        """Updates the weights, zeroes the gradient and returns its norm before clipping."""
        self.steps += 1
        m, n, (b1, b2) = self.model, LONG(self.model.count), self.betas
        norm = math.sqrt(LIB.sum_of_squares(ptr(m.grad), n))
        LIB.adamw(ptr(m.flat), ptr(m.grad), ptr(self.first), ptr(self.second), ptr(self.decay), n,
                  *map(FLOAT, (learning_rate, b1, b2, self.eps, 1 / (1 - b1 ** self.steps),
                               1 / (1 - b2 ** self.steps), min(1.0, clip / (norm + 1e-9)))))
        return norm

    def state(self):
        return {"first": self.first, "second": self.second, "steps": self.steps}

    def restore(self, state):
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        self.steps = state["steps"]


def save_weights(path, model):
    torch.save({"config": dataclasses.asdict(model.config), "flat": model.flat}, path)


def load_weights(path):
    saved = torch.load(path, weights_only=True)
    model = Model(Config(**saved["config"]))
    model.flat.copy_(saved["flat"])
    return model
