"""Trains the Mixtral-style target. Resumes from OUT/checkpoint.pt when it is there.

Usage: train_target.py CORPUS_DIR TOKENIZER_JSON OUT_DIR --minutes 100
       train_target.py CORPUS_DIR TOKENIZER_JSON OUT_DIR --end-at "$(date -d 05:00 +%s)"
"""
import argparse
import os

import torch

from bpe import Tokenizer
from corpus import Batches, held_out, load_held_out, load_tokens
from fused import OutputLoss
from model import AdamW, Config, Model
from training_run import TrainingRun, add_arguments

# Weight of the Switch balance loss (mean over layers), and its weight in the last 15 % of the time:
# the shares settle only as the learning rate falls.
BALANCE_WEIGHT, LATE_BALANCE_WEIGHT, LATE = 0.02, 0.1, 0.85
Z_WEIGHT = 1e-3  # of the router z-loss


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus")
    parser.add_argument("tokenizer")
    parser.add_argument("out", help="directory for checkpoint.pt, weights.pt and log.jsonl")
    add_arguments(parser, minutes=100, rate=2.5e-3, rows=(512, 2048))
    parser.add_argument("--hidden", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="of one expert")
    parser.add_argument("--dropout", type=float, default=0.1, help="on residual branches")
    parser.add_argument("--dropout-from", type=float, default=0.3, help="progress at its start")
    parser.add_argument("--synthetic", type=float, default=0.1,
                        help="share of the synthetic stories in each epoch")
    return parser.parse_args()


class TargetRun(TrainingRun):
    def __init__(self, args):
        tokenizer = Tokenizer(args.tokenizer)
        stories = load_tokens(tokenizer, args.corpus, "tinystories_train.txt")
        synthetic = load_tokens(tokenizer, args.corpus, "synthetic_stories.txt")
        self.quick = load_held_out(tokenizer, args.corpus, every=8)
        model = Model(Config(hidden=args.hidden, layers=args.layers, width=args.width,
                             heads=args.hidden // 32), args.seed)
        batches = Batches([(stories, 1.0), (synthetic, args.synthetic)], args.seed)
        super().__init__(args, model, AdamW(model, args.weight_decay), batches)

    def loss(self, progress):
        args = self.args
        dropout = args.dropout if progress >= args.dropout_from else 0.0
        inputs, targets, lengths = self.batches.next(self.rows(progress))
        h, balance, z = self.model.hidden(inputs, lengths, dropout, self.steps)
        loss = OutputLoss.apply(h, self.model.p["embedding"], targets)
        balance_weight = LATE_BALANCE_WEIGHT if progress >= LATE else BALANCE_WEIGHT
        (loss + balance_weight * balance + Z_WEIGHT * z).backward()
        return loss.item(), len(inputs)

    def report(self):
        nats, bits, shares = held_out(self.model, *self.quick)
        shares = shares * self.model.config.experts
        return {"held_out": round(nats, 4), "bits_per_byte": round(bits, 4),
                "busiest": [round(float(s), 3) for s in shares.max(1)],
                "idlest": [round(float(s), 3) for s in shares.min(1)]}


def main():
    args = parse()
    torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)
    TargetRun(args).run()


if __name__ == "__main__":
    main()
