"""Distils the dense draft from the exported target. Resumes from OUT/checkpoint.pt.

1. The target continues openings and middles of training stories (half greedy, a quarter each at
   temperature 0.7 and 1.0); training stories themselves are added.
2. Every position is labelled with the target's whole distribution.
3. The draft learns half from that distribution, half from the target's most likely token.

Usage: train_draft.py CORPUS_DIR TOKENIZER_JSON TARGET_WEIGHTS_PT OUT_DIR [--minutes 8]
"""
import argparse
import os
import random
import time

import torch

from bpe import Tokenizer
from corpus import MAX_TOKENS, load_held_out, load_tokens
from export import round_to_bf16
from fused import OutputLoss
from generate import continue_prompts, sequence_logits
from model import AdamW, Config, Model, load_weights
from speculation import greedy_agreement, share
from training_run import TrainingRun, add_arguments

SOFT_WEIGHT = 0.5  # of the target's distribution; the rest goes to its argmax
BATCH = 240  # prompts continued at once
NEW_TOKENS = 180


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("corpus", "tokenizer", "target", "out"):
        parser.add_argument(name)
    add_arguments(parser, minutes=8, rate=4e-3, rows=(512, 1024))
    parser.add_argument("--generated-tokens", type=int, default=400_000)
    parser.add_argument("--corpus-tokens", type=int, default=200_000)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    return parser.parse_args()


def opening(story, rng):
    """4 to 40 tokens: two thirds from the start, with or without <eot>, one third from anywhere."""
    length = rng.randint(4, 40)
    if rng.random() < 1 / 3 and len(story) > length:
        start = rng.randrange(len(story) - length)
        return story[start:start + length].tolist()
    return ([0] if rng.random() < 0.7 else []) + story[:length].tolist()


def make_sequences(target, stories, args):
    """Id lists: the target's own continuations, then training stories."""
    rng, sequences, tokens, batch = random.Random(args.seed + 5), [], 0, 0
    temperature = torch.tensor([0.0, 0.0, 0.7, 1.0] * (BATCH // 4))
    while tokens < args.generated_tokens:
        prompts = [opening(s, rng) for s in rng.sample(stories, BATCH)]
        out = continue_prompts(target, prompts, NEW_TOKENS, temperature, seed=batch)
        sequences += [p + c for p, c in zip(prompts, out)]
        tokens, batch = sum(map(len, sequences)), batch + 1
    while tokens < args.generated_tokens + args.corpus_tokens:
        story = rng.choice(stories)
        sequences.append(([0] if rng.random() < 0.7 else []) + story[:MAX_TOKENS].tolist() + [0])
        tokens += len(sequences[-1])
    return sequences


class Pool:
    """Labelled sequences in random order; batches of about `rows` tokens."""

    def __init__(self, sequences, target, seed):
        self.entries, self.random, self.queue, self.epoch = [], random.Random(seed), [], -1
        inputs = [s[:-1] for s in sequences]
        for ids, logits in zip(inputs, sequence_logits(target, inputs)):
            probabilities = torch.softmax(logits, 1).half()
            self.entries.append((torch.tensor(ids), logits.argmax(1), probabilities))

    def next(self, rows):
        picked, total = [], 0
        while total < rows:
            if not self.queue:
                self.queue, self.epoch = list(range(len(self.entries))), self.epoch + 1
                self.random.shuffle(self.queue)
            picked.append(self.entries[self.queue.pop()])
            total += len(picked[-1][0])
        return [torch.cat(part) for part in zip(*picked)] + [[len(e[0]) for e in picked]]

    def state(self):
        return {"random": self.random.getstate(), "queue": self.queue, "epoch": self.epoch}

    def restore(self, state):
        self.random.setstate(state["random"])
        self.queue, self.epoch = state["queue"], state["epoch"]


class DraftRun(TrainingRun):
    def __init__(self, args):
        tokenizer = Tokenizer(args.tokenizer)
        target = round_to_bf16(load_weights(args.target))
        held, _ = load_held_out(tokenizer, args.corpus, every=16)
        self.prompts = [[0] + d[:24].tolist() for d in held]
        self.continuations = continue_prompts(target, self.prompts, 120)
        begun = time.time()
        sequences = self.sequences(args, target, tokenizer)
        pool = Pool(sequences, target, args.seed)
        model = Model(Config(hidden=args.hidden, layers=args.layers, width=args.width, experts=0,
                             heads=args.hidden // 32, kv_heads=1), args.seed + 7)
        super().__init__(args, model, AdamW(model, args.weight_decay), pool)
        self.note(event="pool", sequences=len(sequences), tokens=sum(map(len, sequences)),
                  seconds=round(time.time() - begun))

    @staticmethod
    def sequences(args, target, tokenizer):
        """Generated once per OUT; evaluate.py reads them to know what the draft has seen."""
        path = os.path.join(args.out, "pool_sequences.pt")
        if os.path.exists(path):
            return torch.load(path, weights_only=True)
        stories = load_tokens(tokenizer, args.corpus, "tinystories_train.txt")
        sequences = make_sequences(target, stories, args)
        torch.save(sequences, path)
        return sequences

    def loss(self, progress):
        inputs, most_likely, probabilities, lengths = self.batches.next(self.rows(progress))
        h, _, _ = self.model.hidden(inputs, lengths)
        loss = OutputLoss.apply(h, self.model.p["embedding"], most_likely, probabilities,
                                SOFT_WEIGHT)
        loss.backward()
        return loss.item(), len(inputs)

    def report(self):
        agreed = greedy_agreement(self.model, self.prompts, self.continuations)
        return {"greedy_agreement": round(share(agreed), 4)}


def main():
    args = parse()
    torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)
    DraftRun(args).run()


if __name__ == "__main__":
    main()
