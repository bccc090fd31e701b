#!/usr/bin/env python3
"""Writes a Mixtral (or, with --experts 0, Llama) checkpoint of random bf16 weights, for benchmarks.

Needs numpy only. Weights are written in a stream, a few megabytes at a time, and depend on the seed
and the sizes alone. A byte-level tokenizer.json with as many entries as the vocabulary lies beside
them, so that the folder can be served. The defaults make 1.3 G parameters, 215 M active per token:

  tools/make_random_model.py /tmp/random-moe
  tools/make_random_model.py /tmp/tiny --hidden 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 16 \\
      --experts 4 --ffn 96 --vocab 512
"""

import argparse
import itertools
import json
import struct
import sys
import time
from pathlib import Path

import numpy as np

CHUNK_ELEMENTS = 1 << 21
EMBEDDING_STD = 0.02
ROUTER_GAIN = 1.5  # standard deviation of router logits for normed rows: uneven, but no dead expert


def tensor_plan(args):
    """(name, shape, standard deviation or None for a norm's ones) of every tensor, in file order."""
    q, kv = args.heads * args.head_dim, args.kv_heads * args.head_dim
    yield "model.embed_tokens.weight", (args.vocab, args.hidden), EMBEDDING_STD
    for layer in range(args.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (args.hidden,), None
        for part, rows in (("q", q), ("k", kv), ("v", kv)):
            yield f"{prefix}self_attn.{part}_proj.weight", (rows, args.hidden), args.hidden**-0.5
        yield prefix + "self_attn.o_proj.weight", (args.hidden, q), q**-0.5
        yield prefix + "post_attention_layernorm.weight", (args.hidden,), None
        yield from ffn_plan(args, prefix)
    yield "model.norm.weight", (args.hidden,), None
    yield "lm_head.weight", (args.vocab, args.hidden), args.hidden**-0.5


def ffn_plan(args, prefix):
    wide, narrow = (args.ffn, args.hidden), (args.hidden, args.ffn)
    if args.experts == 0:
        for part, shape in (("gate", wide), ("up", wide), ("down", narrow)):
            yield f"{prefix}mlp.{part}_proj.weight", shape, shape[1] ** -0.5
        return
    moe = prefix + "block_sparse_moe."
    yield moe + "gate.weight", (args.experts, args.hidden), ROUTER_GAIN * args.hidden**-0.5
    for expert in range(args.experts):
        for part, shape in (("w1", wide), ("w3", wide), ("w2", narrow)):
            yield f"{moe}experts.{expert}.{part}.weight", shape, shape[1] ** -0.5


def to_bf16(values):
    """f32 to bf16 bits, rounding to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_tensor(file, seed, index, shape, std):
    rng = np.random.default_rng([seed, index])
    left = int(np.prod(shape))
    while left > 0:
        count = min(left, CHUNK_ELEMENTS)
        if std is None:
            values = np.ones(count, dtype=np.float32)
        else:
            values = rng.standard_normal(count, dtype=np.float32) * np.float32(std)
        file.write(to_bf16(values).tobytes())
        left -= count


def write_shard(path, seed, tensors):
    """tensors: (index among all, name, shape, std)."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for _, name, shape, _ in tensors:
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for index, _, shape, std in tensors:
            write_tensor(file, seed, index, shape, std)


def split_shards(plan, shard_bytes):
    shards, size = [[]], 0
    for index, (name, shape, std) in enumerate(plan):
        tensor_bytes = 2 * int(np.prod(shape))
        if shards[-1] and size + tensor_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append((index, name, shape, std))
        size += tensor_bytes
    return shards


def write_weights(args, folder):
    shards = split_shards(tensor_plan(args), int(args.shard_gb * 1e9))
    weight_map, total = {}, 0
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        if len(shards) == 1:
            name = "model.safetensors"
        write_shard(folder / name, args.seed, tensors)
        weight_map |= {tensor[1]: name for tensor in tensors}
        total += sum(2 * int(np.prod(tensor[2])) for tensor in tensors)
        print(f"{name}: {len(tensors)} tensors, {total / 1e9:.2f} GB so far", flush=True)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    return total // 2


def config(args):
    moe = args.experts > 0
    values = {
        "architectures": ["MixtralForCausalLM" if moe else "LlamaForCausalLM"],
        "model_type": "mixtral" if moe else "llama",
        "hidden_size": args.hidden, "intermediate_size": args.ffn, "head_dim": args.head_dim,
        "num_hidden_layers": args.layers, "num_attention_heads": args.heads,
        "num_key_value_heads": args.kv_heads, "vocab_size": args.vocab, "hidden_act": "silu",
        "max_position_embeddings": args.context, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    }
    if moe:
        values |= {"num_local_experts": args.experts, "num_experts_per_tok": args.top_k,
                   "sliding_window": None}
    return values


def byte_characters():
    """The 256 printable characters that byte-level BPE uses for bytes, in byte order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    extra = itertools.count(0x100)
    return [chr(b if b in plain else next(extra)) for b in range(256)]


def tokenizer(vocab_size):
    """Bytes, then words over a-z and space by length, each merged from its start and last letter."""
    tokens = ["<|endoftext|>", *byte_characters()]
    if vocab_size < len(tokens):
        raise SystemExit(f"--vocab must be at least {len(tokens)} for a byte-level tokenizer")
    merges, letters = [], [byte_characters()[ord(c)] for c in " abcdefghijklmnopqrstuvwxyz"]
    starts = letters
    while len(tokens) < vocab_size:
        words = []
        for start, letter in itertools.product(starts, letters):
            if len(tokens) == vocab_size:
                break
            merges.append(f"{start} {letter}")
            words.append(start + letter)
            tokens.append(start + letter)
        starts = words
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 0, "content": tokens[0], "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges},
    }


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="made if it is missing; existing files are replaced")
    for name, value, text in (
        ("hidden", 1024, "width of the residual stream"), ("layers", 12, "number of layers"),
        ("heads", 16, "query heads"), ("kv-heads", 4, "key and value heads"),
        ("head-dim", 64, "width of a head"), ("experts", 16, "experts per layer; 0: dense"),
        ("top-k", 2, "experts per token"), ("ffn", 2048, "width of an expert or of the dense FFN"),
        ("vocab", 32000, "vocabulary"), ("context", 4096, "max_position_embeddings"),
        ("seed", 1, "of the weights")):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} (default {value})")
    parser.add_argument("--shard-gb", type=float, default=1.0, help="largest file (default 1.0)")
    return parser.parse_args()


def main():
    args = parse_arguments()
    if args.heads % args.kv_heads or args.head_dim % 2:
        sys.exit("--heads must be a multiple of --kv-heads and --head-dim even")
    if args.experts > 0 and not 1 <= args.top_k <= args.experts:
        sys.exit("--top-k must be from 1 to --experts")
    start = time.time()
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "config.json").write_text(json.dumps(config(args), indent=2) + "\n")
    (args.folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 0, "eos_token_id": 0}) + "\n")
    (args.folder / "tokenizer.json").write_text(json.dumps(tokenizer(args.vocab)) + "\n")
    parameters = write_weights(args, args.folder)
    print(f"{args.folder}: {parameters / 1e6:.1f} M parameters in {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
