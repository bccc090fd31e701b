"""Writes trained weights as a Hugging Face folder: config.json, generation_config.json,
tokenizer.json, tokenizer_config.json and model.safetensors (bf16).

Usage: export.py WEIGHTS_PT TOKENIZER_JSON OUT_DIR
"""
import argparse
import json
import os
import shutil
import struct

import numpy as np
import torch

from model import load_weights


def to_bf16(tensor):
    """Round to nearest even; returns the upper 16 bits."""
    bits = tensor.detach().contiguous().numpy().view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def round_to_bf16(model):
    """The weights as a reader of the exported file sees them."""
    bits = to_bf16(model.flat).astype(np.uint32) << 16
    model.flat.copy_(torch.from_numpy(bits.view(np.float32)))
    return model


def hugging_face_tensors(model):
    c, p = model.config, {k: v.detach() for k, v in model.p.items()}
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    out = {"model.embed_tokens.weight": p["embedding"], "model.norm.weight": p["final_norm"]}
    for i in range(c.layers):
        layer = f"model.layers.{i}."
        out[layer + "input_layernorm.weight"] = p[f"{i}.attention_norm"]
        out[layer + "post_attention_layernorm.weight"] = p[f"{i}.ffn_norm"]
        parts = p[f"{i}.qkv"].split((q, kv, kv))
        for name, part in zip("qkv", parts):
            out[f"{layer}self_attn.{name}_proj.weight"] = part
        out[layer + "self_attn.o_proj.weight"] = p[f"{i}.o"]
        if c.experts:
            out[layer + "block_sparse_moe.gate.weight"] = p[f"{i}.router"]
            for e in range(c.experts):
                expert = f"{layer}block_sparse_moe.experts.{e}."
                out[expert + "w1.weight"], out[expert + "w3.weight"] = p[f"{i}.w13"][e].chunk(2)
                out[expert + "w2.weight"] = p[f"{i}.w2"][e]
        else:
            gate, up = p[f"{i}.w13"].chunk(2)
            out[layer + "mlp.gate_proj.weight"], out[layer + "mlp.up_proj.weight"] = gate, up
            out[layer + "mlp.down_proj.weight"] = p[f"{i}.w2"]
    return out


def write_safetensors(path, tensors):
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        blob = to_bf16(tensors[name]).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return 8 + len(text) + offset


def config_json(c):
    out = {"attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0, "head_dim": c.head_dim,
           "hidden_act": "silu", "hidden_size": c.hidden, "initializer_range": 0.02,
           "intermediate_size": c.width, "max_position_embeddings": c.max_positions,
           "num_attention_heads": c.heads, "num_hidden_layers": c.layers,
           "num_key_value_heads": c.kv_heads, "rms_norm_eps": c.norm_eps,
           "rope_theta": c.rope_theta, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
           "transformers_version": "4.36.0", "use_cache": True, "vocab_size": c.vocabulary}
    if c.experts:
        out.update(architectures=["MixtralForCausalLM"], model_type="mixtral",
                   num_local_experts=c.experts, num_experts_per_tok=c.experts_per_token,
                   output_router_logits=False, router_aux_loss_coef=0.02, sliding_window=None)
    else:
        out.update(architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=False,
                   mlp_bias=False, pretraining_tp=1, rope_scaling=None)
    return out


GENERATION = {"bos_token_id": 0, "eos_token_id": 0, "do_sample": True, "temperature": 0.7,
              "top_p": 0.9, "max_new_tokens": 256, "transformers_version": "4.36.0"}
TOKENIZER = {"add_bos_token": False, "add_prefix_space": False, "bos_token": "<|endoftext|>",
             "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
             "clean_up_tokenization_spaces": False, "model_max_length": 1024,
             "tokenizer_class": "GPT2Tokenizer"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("weights", "tokenizer", "out"):
        parser.add_argument(name)
    args = parser.parse_args()
    model = load_weights(args.weights)
    os.makedirs(args.out, exist_ok=True)
    size = write_safetensors(os.path.join(args.out, "model.safetensors"),
                             hugging_face_tensors(model))
    for name, content in (("config.json", config_json(model.config)),
                          ("generation_config.json", GENERATION),
                          ("tokenizer_config.json", TOKENIZER)):
        with open(os.path.join(args.out, name), "w", encoding="utf-8") as f:
            json.dump(content, f, indent=2, sort_keys=True)
            f.write("\n")
    shutil.copyfile(args.tokenizer, os.path.join(args.out, "tokenizer.json"))
    print(f"{args.out}: {model.count} weights, {size} bytes of safetensors")


if __name__ == "__main__":
    main()
