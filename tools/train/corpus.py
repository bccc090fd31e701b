"""Text files -> token arrays -> batches of whole documents, and the held-out measure."""
import math
import os
import random

import numpy as np
import torch

from bpe import END_OF_TEXT
from fused import OutputLoss

HELD_OUT = "tinystories_valid.txt"  # never trained on
MAX_TOKENS = 1023  # of one document, so that positions stay below 1,024


def documents(path):
    """Documents of a text file, separated by lines that hold the end-of-text marker alone."""
    with open(path, encoding="utf-8") as f:
        parts = f.read().split("\n" + END_OF_TEXT + "\n")
    return [p.replace(END_OF_TEXT, "").strip("\n") for p in parts if p.strip()]


def load_tokens(tokenizer, folder, name):
    texts = documents(os.path.join(folder, name))
    return [np.array(tokenizer.encode(t), dtype=np.int64) for t in texts]


def closed(doc):
    """<eot> tokens <eot>"""
    return np.concatenate(([0], doc[:MAX_TOKENS], [0]))


def shifted(sequences):
    """Sequences laid end to end: inputs [N], the next tokens [N] and the lengths."""
    inputs = torch.from_numpy(np.concatenate([s[:-1] for s in sequences]))
    targets = torch.from_numpy(np.concatenate([s[1:] for s in sequences]))
    return inputs, targets, [len(s) - 1 for s in sequences]


class Batches:
    """Whole documents in random order, about `rows` tokens a batch.

    A document becomes <eot> tokens -> tokens <eot>; with chance `drop_first` the leading <eot> is
    left off, so that prompts work with and without it. sources: [(documents, share per epoch)].
    """

    def __init__(self, sources, seed, drop_first=0.3):
        self.sources, self.random, self.drop_first = sources, random.Random(seed), drop_first
        self.queue, self.epoch = [], -1

    def _refill(self):
        self.epoch += 1
        self.queue = []
        for s, (docs, share) in enumerate(self.sources):
            picked = self.random.sample(range(len(docs)), int(len(docs) * share))
            self.queue += [(s, i) for i in picked]
        self.random.shuffle(self.queue)

    def next(self, rows):
        """Returns inputs [N], targets [N] and the documents' lengths (sum N >= rows)."""
        picked, total = [], 0
        while total < rows:
            if not self.queue:
                self._refill()
            s, i = self.queue.pop()
            ids = closed(self.sources[s][0][i])
            if self.random.random() < self.drop_first:
                ids = ids[1:]
            picked.append(ids)
            total += len(ids) - 1
        return shifted(picked)

    def state(self):
        return {"random": self.random.getstate(), "queue": self.queue, "epoch": self.epoch}

    def restore(self, state):
        self.random.setstate(state["random"])
        self.queue, self.epoch = state["queue"], state["epoch"]


def held_out(model, docs, byte_count, rows=4096):
    """Mean nats per token, bits per byte, and shares of rows per expert [layers, experts].

    The closing end-of-text token is predicted and counted as a token; it adds no byte.
    """
    total, tokens, shares, weights, i = 0.0, 0, [], [], 0
    with torch.no_grad():
        while i < len(docs):
            picked = []
            while i < len(docs) and sum(map(len, picked)) < rows:
                picked.append(closed(docs[i]))
                i += 1
            inputs, targets, lengths = shifted(picked)
            n, layer_shares = len(inputs), []
            h, _, _ = model.hidden(inputs, lengths, shares=layer_shares)
            total += OutputLoss.apply(h, model.p["embedding"], targets).item() * n
            tokens += n
            weights.append(n)
            if layer_shares:
                shares.append(torch.stack(layer_shares).numpy())
    mean_shares = np.average(shares, axis=0, weights=weights) if shares else None
    return total / tokens, total / math.log(2) / byte_count, mean_shares


def load_held_out(tokenizer, folder, every=1):
    """Every n-th held-out document, and the byte count of all those returned (the file is not
    shuffled by difficulty: the first stories are easier, so a sample must be spread)."""
    texts = documents(os.path.join(folder, HELD_OUT))[::every]
    docs = [np.array(tokenizer.encode(t), dtype=np.int64) for t in texts]
    return docs, sum(len(t.encode()) for t in texts)
