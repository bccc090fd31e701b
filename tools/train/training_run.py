"""The loop that both trainers share: a schedule by wall time, checkpoints, resume, a JSON log.

Learning rate, batch size and dropout are functions of progress (0 to 1), and progress is wall time,
so that a run is fully annealed at its planned end however fast the machine happened to be.
"""
import json
import math
import os
import time

import torch

from model import save_weights


def add_arguments(parser, minutes, rate, rows):
    """The options that both trainers have."""
    parser.add_argument("--minutes", type=float, default=minutes, help="training time")
    parser.add_argument("--end-at", type=float, help="end at this Unix time instead")
    parser.add_argument("--rate", type=float, default=rate, help="peak learning rate")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--rows", type=int, nargs=2, default=rows,
                        help="tokens per step at the start and at the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-seconds", type=float, default=240)


def learning_rate(peak, progress, warm=0.02, floor=0.02):
    """Linear warm-up, then a cosine down to `floor` of the peak."""
    if progress < warm:
        return peak * progress / warm
    fall = (progress - warm) / (1 - warm)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * fall)))


class TrainingRun:
    """Subclasses give loss(progress) and report(progress), and may add to state and restore_extra.

    Files in `out`: checkpoint.pt (everything, replaced in one rename), weights.pt, log.jsonl.
    """

    def __init__(self, args, model, optimizer, batches):
        self.args, self.model, self.optimizer, self.batches = args, model, optimizer, batches
        self.tokens = self.steps = 0
        self.seconds = self.done = self.norm = 0.0
        if os.path.exists(self.path("checkpoint.pt")):
            self._restore()
        self.note(event="start", progress=self.done, weights=model.count,
                  active=model.active_count(), arguments=vars(args))

    def path(self, name):
        return os.path.join(self.args.out, name)

    def note(self, **fields):
        """One JSON line to the log and to the terminal."""
        line = json.dumps({"time": time.strftime("%H:%M:%S"), **fields})
        print(line, flush=True)
        with open(self.path("log.jsonl"), "a", encoding="utf-8") as f:
            f.write(line + "\n")

    def _restore(self):
        saved = torch.load(self.path("checkpoint.pt"), weights_only=False)  # our own file
        self.model.flat.copy_(saved["flat"])
        self.optimizer.restore(saved["optimizer"])
        self.batches.restore(saved["batches"])
        self.tokens, self.steps, self.seconds = saved["tokens"], saved["steps"], saved["seconds"]
        self.done = saved["progress"]

    def save(self, progress):
        """Replaces the checkpoint in one rename, so that a kill never leaves half a file."""
        state = {"flat": self.model.flat, "optimizer": self.optimizer.state(),
                 "batches": self.batches.state(), "tokens": self.tokens, "steps": self.steps,
                 "seconds": self.seconds, "progress": progress}
        torch.save(state, self.path("checkpoint.tmp"))
        os.replace(self.path("checkpoint.tmp"), self.path("checkpoint.pt"))
        save_weights(self.path("weights.pt"), self.model)

    def rows(self, progress):
        first, last = self.args.rows
        return first + (last - first) * progress

    def _step(self, progress):
        """One update. loss() has already run its backward pass."""
        begun = time.time()
        loss, tokens = self.loss(progress)
        self.norm = self.optimizer.step(learning_rate(self.args.rate, progress))
        self.tokens += tokens
        self.steps += 1
        self.seconds += time.time() - begun
        return loss

    def _report(self, progress, losses):
        self.note(progress=round(progress, 4), seconds=round(self.seconds), steps=self.steps,
                  tokens=self.tokens, epoch=self.batches.epoch, norm=round(self.norm, 3),
                  rate=round(learning_rate(self.args.rate, progress), 6),
                  train=round(sum(losses) / len(losses), 4), **self.report())

    def run(self):
        args, start, losses = self.args, time.time(), []
        left = args.end_at - start if args.end_at else args.minutes * 60 * (1 - self.done)
        speed, last_save, progress = (1 - self.done) / max(left, 1.0), start, self.done
        while progress < 1:
            losses.append(self._step(progress))
            progress = self.done + (time.time() - start) * speed
            if time.time() - last_save > args.checkpoint_seconds:
                self._report(progress, losses)
                self.save(progress)
                losses, last_save = [], time.time()
        self.save(1.0)
        if losses:
            self._report(1.0, losses)
