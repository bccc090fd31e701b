"""Writes a tiny random checkpoint in the layout that published Llama and Mixtral models have."""

import json
import re
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

# Standard deviation of the embedding, as in published configs (initializer_range). So small that
# rms_norm_eps matters in the first layer.
EMBEDDING_STD = 0.02
LOGIT_STD = 2.0


def matrix(rng, rows, columns, gain):
    """[rows, columns]; for an input of unit variance the output has standard deviation `gain`."""
    return rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)


def norm_weight(rng, size, mean=1.0):
    return mean * rng.uniform(0.5, 1.5, size)


def attention_weights(case, rng, prefix):
    q_width, kv_width = case.heads * case.head_dim, case.kv_heads * case.head_dim
    weights = {
        "q_proj.weight": matrix(rng, q_width, case.hidden, 1.6),
        "k_proj.weight": matrix(rng, kv_width, case.hidden, 1.6),
        "v_proj.weight": matrix(rng, kv_width, case.hidden, 1.0),
        "o_proj.weight": matrix(rng, case.hidden, q_width, 1.5),
    }
    if case.attention_bias:
        for part in ("q", "k", "v", "o"):
            rows = weights[f"{part}_proj.weight"].shape[0]
            weights[f"{part}_proj.bias"] = rng.standard_normal(rows) * 0.5
    return {f"{prefix}self_attn.{name}": value for name, value in weights.items()}


def mlp_weights(case, rng, gain):
    """gate, up, down of one dense MLP or one expert."""
    gate = matrix(rng, case.ffn, case.hidden, 1.5)
    up = matrix(rng, case.ffn, case.hidden, 1.5)
    down = matrix(rng, case.hidden, case.ffn, gain)
    if case.subnormal_up:
        up, down = up * 2.0**-14, down * 2.0**14
    return gate, up, down


def layer_weights(case, rng, layer):
    prefix = f"model.layers.{layer}."
    weights = {
        prefix + "input_layernorm.weight": norm_weight(rng, case.hidden),
        prefix + "post_attention_layernorm.weight": norm_weight(rng, case.hidden),
    }
    weights |= attention_weights(case, rng, prefix)
    if not case.experts:
        for part, value in zip(("gate", "up", "down"), mlp_weights(case, rng, 1.0)):
            weights[f"{prefix}mlp.{part}_proj.weight"] = value
        return weights
    moe = prefix + "block_sparse_moe."
    weights[moe + "gate.weight"] = matrix(rng, case.experts, case.hidden, case.router_spread)
    for expert in range(case.experts):
        for part, value in zip(("w1", "w3", "w2"), mlp_weights(case, rng, 1.5)):
            weights[f"{moe}experts.{expert}.{part}.weight"] = value
    return weights


def random_weights(case):
    """name -> torch tensor in the stored dtype, in the order of the layers."""
    rng = np.random.default_rng(case.seed)
    embedding = rng.standard_normal((case.vocab, case.hidden)) * EMBEDDING_STD
    weights = {"model.embed_tokens.weight": embedding}
    for layer in range(case.layers):
        weights |= layer_weights(case, rng, layer)
    if case.tied:
        mean = LOGIT_STD / (EMBEDDING_STD * np.sqrt(case.hidden))
        weights["model.norm.weight"] = norm_weight(rng, case.hidden, mean)
    else:
        weights["model.norm.weight"] = norm_weight(rng, case.hidden)
        weights["lm_head.weight"] = matrix(rng, case.vocab, case.hidden, LOGIT_STD)
    dtype = getattr(torch, case.dtype)
    return {name: torch.from_numpy(value).to(dtype) for name, value in weights.items()}


def config_json(case):
    config = {
        "architectures": ["MixtralForCausalLM" if case.experts else "LlamaForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": case.generation_config["eos_token_id"],
        "hidden_act": "silu",
        "hidden_size": case.hidden,
        "initializer_range": EMBEDDING_STD,
        "intermediate_size": case.ffn,
        "max_position_embeddings": 256,
        "model_type": case.family,
        "num_attention_heads": case.heads,
        "num_hidden_layers": case.layers,
        "num_key_value_heads": case.kv_heads,
        "rms_norm_eps": case.rms_norm_eps,
        "tie_word_embeddings": case.tied,
        "torch_dtype": case.dtype,
        "use_cache": True,
        "vocab_size": case.vocab,
    }
    if case.head_dim * case.heads != case.hidden:
        config["head_dim"] = case.head_dim
    if case.experts:
        config |= {"num_experts_per_tok": case.top_k, "num_local_experts": case.experts,
                   "output_router_logits": False, "router_aux_loss_coef": 0.02}
    else:
        config |= {"attention_bias": case.attention_bias, "mlp_bias": False, "pretraining_tp": 1}
    scaling = case.llama3_scaling
    if case.rope_spelling == "rope_parameters":
        scaling = scaling or {"rope_type": "default"}
        config["rope_parameters"] = scaling | {"rope_theta": case.rope_theta}
    else:
        config["rope_theta"] = case.rope_theta
        if not case.experts:
            config["rope_scaling"] = scaling
    return dict(sorted((config | case.extra_config).items()))


def write_json(path, value):
    """Indented, with lists of numbers on one line."""
    text = json.dumps(value, indent=2)
    text = re.sub(r"\[([-+.\de,\s]+)\]", lambda m: "[" + " ".join(m[1].split()) + "]", text)
    Path(path).write_text(text + "\n")


def write_weights(case, weights, folder):
    metadata = {"format": "pt"}
    if case.shards == 1:
        save_file(weights, folder / "model.safetensors", metadata=metadata)
        return
    # Tensors are dealt in runs of five, so that one expert's three matrices and one layer's parts
    # lie in different files.
    shards, weight_map = [{} for _ in range(case.shards)], {}
    for i, (name, tensor) in enumerate(weights.items()):
        shard = (i // 5) % case.shards
        shards[shard][name] = tensor
        weight_map[name] = f"model-{shard + 1:05d}-of-{case.shards:05d}.safetensors"
    for i, shard in enumerate(shards):
        save_file(shard, folder / f"model-{i + 1:05d}-of-{case.shards:05d}.safetensors",
                  metadata=metadata)
    total = sum(t.numel() * t.element_size() for t in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def write_checkpoint(case, weights, folder):
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config_json(case))
    write_json(folder / "generation_config.json", case.generation_config)
    write_weights(case, weights, folder)
