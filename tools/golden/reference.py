"""A plain float64 forward pass of Llama and Mixtral in numpy, with faults that can be planted.

It is written from the model families' definitions, not from `transformers`, so that it checks the
expected logits independently; the faults show that a golden case can see a wrong implementation.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Faults:
    """Each field plants one mistake; the defaults plant none."""

    renormalize: bool = True  # divide the chosen gates by their sum
    swap_boundary_expert: bool = False  # take the expert of rank k+1 in place of rank k
    swap_gates: bool = False  # give the first two experts each other's gate
    interleaved_rope: bool = False  # rotate neighbouring lanes in place of split halves
    rope_theta: float | None = None
    ignore_rope_scaling: bool = False
    kv_head_modulo: bool = False  # query head h reads KV head h % kv_heads
    scale_by_hidden: bool = False  # 1 / sqrt(hidden / heads) in place of 1 / sqrt(head_dim)
    drop_attention_bias: bool = False
    rms_norm_eps: float | None = None
    flush_subnormals: bool = False  # f16 weights below the smallest normal number become 0


@dataclass
class Trace:
    """What the router did: per layer and token the sorted probabilities and logits."""

    sorted_probabilities: list  # one [tokens, experts] array a layer, descending
    sorted_logits: list  # the same order


def rms_norm(x, weight, eps):
    """[tokens, hidden] -> the same shape."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1.0 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rope_frequencies(case, faults):
    """[head_dim / 2] angular frequencies; llama3 scaling as defined with the Llama 3.1 models."""
    theta = faults.rope_theta or case.rope_theta
    frequency = theta ** (-np.arange(0, case.head_dim, 2) / case.head_dim)
    scaling = case.llama3_scaling
    if scaling is None or faults.ignore_rope_scaling:
        return frequency
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequency / (2.0 * np.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)  # 1: short waves, 0: long waves
    return keep * frequency + (1.0 - keep) * frequency / scaling["factor"]


def rotate(x, frequency, faults):
    """x [tokens, heads, head_dim] at positions 0..tokens-1."""
    angle = np.arange(x.shape[0])[:, None] * frequency  # [tokens, head_dim / 2]
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    if faults.interleaved_rope:
        a, b = x[..., 0::2], x[..., 1::2]
        pairs = np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
        return pairs.reshape(x.shape)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def project(x, weights, name, use_bias):
    y = x @ weights[name + ".weight"].T
    return y + weights[name + ".bias"] if use_bias else y


def attention(case, weights, prefix, x, faults):
    """Causal grouped-query attention; x [tokens, hidden] is already normed."""
    tokens, dim = x.shape[0], case.head_dim
    bias = case.attention_bias and not faults.drop_attention_bias
    frequency = rope_frequencies(case, faults)
    q = project(x, weights, prefix + "q_proj", bias).reshape(tokens, case.heads, dim)
    k = project(x, weights, prefix + "k_proj", bias).reshape(tokens, case.kv_heads, dim)
    v = project(x, weights, prefix + "v_proj", bias).reshape(tokens, case.kv_heads, dim)
    q, k = rotate(q, frequency, faults), rotate(k, frequency, faults)
    head = np.arange(case.heads)
    kv_head = head % case.kv_heads if faults.kv_head_modulo else head * case.kv_heads // case.heads
    scale_dim = case.hidden / case.heads if faults.scale_by_hidden else dim
    scores = np.einsum("qhd,khd->hqk", q, k[:, kv_head]) / np.sqrt(scale_dim)
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    mixed = np.einsum("hqk,khd->qhd", softmax(scores), v[:, kv_head])
    return project(mixed.reshape(tokens, case.heads * dim), weights, prefix + "o_proj", bias)


def mlp(x, gate, up, down):
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def experts(case, weights, prefix, x, faults, trace):
    """Mixtral: softmax over all experts, the best top_k, gates divided by their sum."""
    logits = x @ weights[prefix + "gate.weight"].T  # [tokens, experts]
    probability = softmax(logits)
    order = np.argsort(-probability, axis=-1, kind="stable")
    trace.sorted_probabilities.append(np.take_along_axis(probability, order, axis=-1))
    trace.sorted_logits.append(np.take_along_axis(logits, order, axis=-1))
    chosen = order[:, : case.top_k].copy()
    if faults.swap_boundary_expert:
        chosen[:, -1] = order[:, case.top_k]
    gates = np.take_along_axis(probability, chosen, axis=-1)
    if faults.renormalize:
        gates = gates / gates.sum(axis=-1, keepdims=True)
    if faults.swap_gates:
        gates[:, [0, 1]] = gates[:, [1, 0]]
    out = np.zeros_like(x)
    for expert in range(case.experts):
        token, rank = np.nonzero(chosen == expert)
        w = [weights[f"{prefix}experts.{expert}.{part}.weight"] for part in ("w1", "w3", "w2")]
        out[token] += gates[token, rank][:, None] * mlp(x[token], *w)
    return out


def as_float64(weights, faults):
    """Exact for f32, bf16 and f16 alike. weights: name -> torch tensor."""
    result = {}
    for name, tensor in weights.items():
        value = tensor.double().numpy()
        if faults.flush_subnormals:
            value = np.where(np.abs(value) < 2.0**-14, 0.0, value)
        result[name] = value
    return result


def forward(case, stored_weights, ids, faults=Faults()):
    """Logits [tokens, vocab] of the whole prompt, and the router's trace."""
    weights = as_float64(stored_weights, faults)
    eps = faults.rms_norm_eps or case.rms_norm_eps
    trace = Trace([], [])
    x = weights["model.embed_tokens.weight"][np.asarray(ids)]
    for layer in range(case.layers):
        prefix = f"model.layers.{layer}."
        normed = rms_norm(x, weights[prefix + "input_layernorm.weight"], eps)
        x = x + attention(case, weights, prefix + "self_attn.", normed, faults)
        normed = rms_norm(x, weights[prefix + "post_attention_layernorm.weight"], eps)
        if case.experts:
            x = x + experts(case, weights, prefix + "block_sparse_moe.", normed, faults, trace)
        else:
            parts = [weights[f"{prefix}mlp.{p}_proj.weight"] for p in ("gate", "up", "down")]
            x = x + mlp(normed, *parts)
    x = rms_norm(x, weights["model.norm.weight"], eps)
    head = "model.embed_tokens.weight" if case.tied else "lm_head.weight"
    return x @ weights[head].T, trace
