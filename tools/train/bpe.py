"""Byte-level BPE: a trainer, an encoder and decoder, and the Hugging Face tokenizer.json writer.

Usage: bpe.py CORPUS_DIR OUT_TOKENIZER_JSON [--entries 2048]
"""
import argparse
import collections
import heapq
import json
import os

import regex

END_OF_TEXT = "<|endoftext|>"
# The GPT-2 pre-tokenizer.
PIECES = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
# How often each file counts when merges are chosen.
TRAINING_FILES = (("tinystories_train.txt", 4), ("synthetic_stories.txt", 1),
                  ("fairytales_pd.txt", 1))


def byte_alphabet():
    """GPT-2's printable character for each byte, in GPT-2's order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in printable}
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + len(table) - len(printable))
    return table


TO_CHAR = byte_alphabet()
TO_BYTE = {c: b for b, c in TO_CHAR.items()}


def merge(symbols, pair):
    """`symbols` with every occurrence of `pair` joined, left to right."""
    out, i = [], 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            out.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


def train_bpe(piece_counts, entries):
    """Most frequent pair first; ties by the pair's text. Ids: marker, 256 bytes, merges."""
    words = [[TO_CHAR[b] for b in piece.encode()] for piece in piece_counts]
    counts = list(piece_counts.values())
    pair_count, where = collections.Counter(), collections.defaultdict(set)
    for i, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pair_count[pair] += counts[i]
            where[pair].add(i)
    heap = [(-n, pair) for pair, n in pair_count.items()]
    heapq.heapify(heap)
    merges = []
    while len(merges) < entries - 257:
        n, best = heapq.heappop(heap)
        if pair_count.get(best, 0) != -n:  # a stale entry: put the pair back at its true count
            if pair_count.get(best, 0) > 0:
                heapq.heappush(heap, (-pair_count[best], best))
            continue
        merges.append(best)
        touched = set()
        for i in list(where[best]):
            for pair in zip(words[i], words[i][1:]):
                pair_count[pair] -= counts[i]
                where[pair].discard(i)
                touched.add(pair)
            words[i] = merge(words[i], best)
            for pair in zip(words[i], words[i][1:]):
                pair_count[pair] += counts[i]
                where[pair].add(i)
                touched.add(pair)
        for pair in touched:
            if pair_count[pair] > 0:
                heapq.heappush(heap, (-pair_count[pair], pair))
        pair_count.pop(best, None)
    tokens = [END_OF_TEXT, *TO_CHAR.values(), *(a + b for a, b in merges)]
    return {token: i for i, token in enumerate(tokens)}, merges


def tokenizer_json(vocabulary, merges):
    """The Hugging Face `tokenizers` file of a byte-level BPE."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    marker = {"id": vocabulary[END_OF_TEXT], "content": END_OF_TEXT, "single_word": False,
              "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False, "vocab": vocabulary, "merges": [f"{a} {b}" for a, b in merges]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [marker],
            "normalizer": None, "pre_tokenizer": level,
            "post_processor": {**level, "trim_offsets": False}, "decoder": level, "model": model}


class Tokenizer:
    """Encodes and decodes plain text; the marker inside text is not recognised as special."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            model = json.load(f)["model"]
        self.vocabulary = model["vocab"]
        pairs = (m.split(" ") if isinstance(m, str) else m for m in model["merges"])
        self.rank = {tuple(pair): i for i, pair in enumerate(pairs)}
        self.tokens = {i: t for t, i in self.vocabulary.items()}
        self.cache = {}

    def _piece(self, piece):
        ids = self.cache.get(piece)
        if ids is None:
            symbols = [TO_CHAR[b] for b in piece.encode()]
            while len(symbols) > 1:
                pair = min(zip(symbols, symbols[1:]), key=lambda p: self.rank.get(p, 1 << 30))
                if pair not in self.rank:
                    break
                symbols = merge(symbols, pair)
            ids = self.cache[piece] = [self.vocabulary[s] for s in symbols]
        return ids

    def encode(self, text):
        return [i for piece in PIECES.findall(text) for i in self._piece(piece)]

    def decode(self, ids):
        data = bytearray()
        for i in ids:
            token = self.tokens[int(i)]
            if token == END_OF_TEXT:
                data += END_OF_TEXT.encode()
            else:
                data += bytes(TO_BYTE[c] for c in token)
        return data.decode("utf-8", "replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", help="directory of the text files")
    parser.add_argument("out", help="tokenizer.json to write")
    parser.add_argument("--entries", type=int, default=2048)
    args = parser.parse_args()
    counts = collections.Counter()
    for name, weight in TRAINING_FILES:
        with open(os.path.join(args.corpus, name), encoding="utf-8") as f:
            for text in f.read().split("\n" + END_OF_TEXT + "\n"):
                text = text.replace(END_OF_TEXT, "").strip("\n")
                for piece, n in collections.Counter(PIECES.findall(text)).items():
                    counts[piece] += n * weight
    vocabulary, merges = train_bpe(counts, args.entries)
    with open(args.out, "w", encoding="utf-8") as f:
        json.dump(tokenizer_json(vocabulary, merges), f, ensure_ascii=False, indent=1)
    print(f"{args.out}: {len(vocabulary)} entries from {len(counts)} distinct pieces")


if __name__ == "__main__":
    main()
