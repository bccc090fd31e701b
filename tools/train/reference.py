"""An independent forward pass in numpy float64: reads a Hugging Face folder (Mixtral or Llama) and
computes logits as the published definitions say. Shares no code with the trainer."""
import json
import os
import struct

import numpy as np


def read_safetensors(path):
    """Name -> float32 array, of a file whose tensors are all BF16."""
    with open(path, "rb") as f:
        raw = f.read()
    (header_bytes,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + header_bytes])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"{path}: {name} is {entry['dtype']}, expected BF16")
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        bits = np.frombuffer(raw[begin:end], np.uint16).astype(np.uint32) << 16
        tensors[name] = bits.view(np.float32).reshape(entry["shape"])
    return tensors


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


class Reference:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        tensors = read_safetensors(os.path.join(folder, "model.safetensors"))
        self.w = {name: t.astype(np.float64) for name, t in tensors.items()}
        self.heads = self.config["num_attention_heads"]
        self.kv_heads = self.config["num_key_value_heads"]
        self.dim = self.config.get("head_dim") or self.config["hidden_size"] // self.heads

    def norm(self, x, name):
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / scale * self.w[name]

    def rope(self, x):
        """Rotate-half RoPE of [heads, T, D]."""
        half = self.dim // 2
        inverse = 1.0 / self.config["rope_theta"] ** (np.arange(0, self.dim, 2) / self.dim)
        angle = np.outer(np.arange(x.shape[1]), inverse)
        angle = np.concatenate((angle, angle), 1)
        turned = np.concatenate((-x[..., half:], x[..., :half]), -1)
        return x * np.cos(angle) + turned * np.sin(angle)

    def attention(self, h, layer):
        rows = h.shape[0]

        def project(name, heads):
            y = h @ self.w[f"{layer}self_attn.{name}_proj.weight"].T
            return y.reshape(rows, heads, self.dim).transpose(1, 0, 2)

        group = self.heads // self.kv_heads
        q = self.rope(project("q", self.heads))
        k = np.repeat(self.rope(project("k", self.kv_heads)), group, 0)
        v = np.repeat(project("v", self.kv_heads), group, 0)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(self.dim)
        scores += np.triu(np.full((rows, rows), -np.inf), 1)
        mixed = (softmax(scores) @ v).transpose(1, 0, 2).reshape(rows, -1)
        return mixed @ self.w[f"{layer}self_attn.o_proj.weight"].T

    def feed_forward(self, h, prefix, names):
        gate, up, down = (self.w[f"{prefix}{n}.weight"] for n in names)
        return (silu(h @ gate.T) * (h @ up.T)) @ down.T

    def experts(self, h, layer):
        p = softmax(h @ self.w[f"{layer}block_sparse_moe.gate.weight"].T)
        out = np.zeros_like(h)
        for t, row in enumerate(p):
            top = np.argsort(-row, kind="stable")[:self.config["num_experts_per_tok"]]
            for e in top:
                prefix = f"{layer}block_sparse_moe.experts.{e}."
                y = self.feed_forward(h[t], prefix, ("w1", "w3", "w2"))
                out[t] += row[e] / row[top].sum() * y
        return out

    def logits(self, ids):
        """ids: list of int -> logits [len(ids), vocabulary]."""
        x = self.w["model.embed_tokens.weight"][np.asarray(ids)]
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, layer + "input_layernorm.weight"), layer)
            h = self.norm(x, layer + "post_attention_layernorm.weight")
            if self.config["model_type"] == "mixtral":
                x = x + self.experts(h, layer)
            else:
                names = ("gate_proj", "up_proj", "down_proj")
                x = x + self.feed_forward(h, layer + "mlp.", names)
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        return self.norm(x, "model.norm.weight") @ head.T
