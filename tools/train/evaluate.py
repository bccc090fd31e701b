"""Measures a trained pair and prints a Markdown report: bits per byte on all held-out stories,
rows per expert, draft agreement, word checks and ten samples.

Usage: evaluate.py CORPUS_DIR TOKENIZER_JSON TARGET_WEIGHTS_PT [--draft-out DRAFT_OUT_DIR]
"""
import argparse
import os
import re

import torch

from bpe import Tokenizer
from corpus import documents, held_out, load_held_out
from export import round_to_bf16
from generate import continue_prompts
from model import load_weights
from speculation import (POOL_GRAM, clean_flags, grams, greedy_agreement, sampled_acceptance,
                         share, tokens_per_pass)

SAMPLE_PROMPTS = (
    "Once upon a time, there was a little girl named Lily.",
    "Once upon a time, in a small house near the forest,",
    "One day, a little boy named Tom went to the park with his dog.",
    "Ben and Mia were best friends.",
    "The old cat sat by the window and",
    "Sara had a red ball. She wanted to",
    "\"Can I help you?\" asked the bird.",
    "It was a rainy day and the frog was sad.",
    "Mom said, \"It is time for bed.\"",
    "Once there was a big, brave bear who",
)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("corpus", "tokenizer", "target"):
        parser.add_argument(name)
    parser.add_argument("--draft-out", help="the directory that train_draft.py wrote")
    return parser.parse_args()


def report_held_out(name, model, docs, byte_count):
    nats, bits, shares = held_out(model, docs, byte_count)
    print(f"{name}: {nats:.4f} nats/token, **{bits:.4f} bits/byte** on {len(docs)} held-out "
          "stories")
    if shares is None:
        return
    experts = model.config.experts
    print("\n| layer | rows per expert, 1.00 = even | busiest | idlest |")
    print("| --- | --- | --- | --- |")
    for i, row in enumerate(shares * experts):
        cells = " ".join(f"{x:.2f}" for x in row)
        print(f"| {i} | {cells} | {row.max():.3f} | {row.min():.3f} |")


def prompt_sets(docs):
    """Disjoint held-out stories, spread over the whole file."""
    return (("openings of 24 tokens", [[0] + d[:24].tolist() for d in docs[0::8]]),
            ("openings of 50 tokens", [[0] + d[:50].tolist() for d in docs[4::8]]))


def report_draft(target, draft, docs, folder):
    pool = torch.load(os.path.join(folder, "pool_sequences.pt"), weights_only=True)
    pool_grams = {g for ids in pool for g in grams(ids, POOL_GRAM)}
    print("\n| prompts (up to 160 new tokens) | agreement, all | outside the pool | "
          "tokens/pass k=2 | k=4 | accepted at T 0.7 |\n| --- | --- | --- | --- | --- | --- |")
    for name, prompts in prompt_sets(docs):
        out = continue_prompts(target, prompts, 160)
        agreed = greedy_agreement(draft, prompts, out)
        clean = clean_flags(agreed, prompts, out, pool_grams)
        kept = sum(map(len, clean)) / sum(map(len, agreed))
        sampled = continue_prompts(target, prompts, 160, 0.7, seed=1)
        accepted = sampled_acceptance(target, draft, prompts, sampled, 0.7)
        print(f"| {len(prompts)} {name} | {share(agreed):.3f} | {share(clean):.3f} ({kept:.0%} of "
              f"tokens) | {tokens_per_pass(agreed, 2):.2f} | {tokens_per_pass(agreed, 4):.2f} | "
              f"{accepted:.3f} |")


def words(text):
    return re.findall(r"[a-z]+", text.lower())


def report_words(target, tokenizer, folder, docs):
    """Made-up words and loops of stories continued from held-out openings."""
    known = set()
    for name in ("tinystories_train.txt", "synthetic_stories.txt", "fairytales_pd.txt"):
        for text in documents(os.path.join(folder, name)):
            known.update(words(text))
    prompts = [[0] + d[:24].tolist() for d in docs[2::8]]
    print("\n| sampling (up to 200 tokens) | made-up words | repeated 6-grams | stories ended |\n"
          "| --- | --- | --- | --- |")
    for name, temperature, top_p in (("greedy", 0.0, 1.0), ("T 0.7", 0.7, 1.0),
                                     ("T 0.7, top_p 0.9", 0.7, 0.9)):
        out = continue_prompts(target, prompts, 200, temperature, top_p, seed=2)
        spoken = [words(tokenizer.decode(o[:-1])) for o in out]  # the last token may be half a word
        made_up = sum(w not in known for s in spoken for w in s) / sum(map(len, spoken))
        six = [list(grams(s, 6)) for s in spoken]
        repeated = 1 - sum(len(set(s)) for s in six) / sum(map(len, six))
        print(f"| {name} | {made_up:.2%} | {repeated:.1%} | {sum(o[-1] == 0 for o in out)} of "
              f"{len(out)} |")


def report_samples(target, tokenizer):
    prompts = [[0] + tokenizer.encode(p) for p in SAMPLE_PROMPTS]
    out = continue_prompts(target, prompts, 200, 0.7, 0.9, seed=3)
    print("\nTen samples at temperature 0.7, top_p 0.9, seed 3, none left out (prompt in bold):\n")
    for i, (prompt, ids) in enumerate(zip(SAMPLE_PROMPTS, out)):
        text = tokenizer.decode([t for t in ids if t != 0]).replace("\n", " / ")
        end = "" if ids[-1] == 0 else " [cut at 200 tokens]"
        print(f"{i + 1}. **{prompt}**{text}{end}")


def main():
    args = parse()
    torch.set_num_threads(1)
    tokenizer = Tokenizer(args.tokenizer)
    docs, byte_count = load_held_out(tokenizer, args.corpus)
    target = round_to_bf16(load_weights(args.target))
    report_held_out("target", target, docs, byte_count)
    if args.draft_out:
        draft = round_to_bf16(load_weights(os.path.join(args.draft_out, "weights.pt")))
        report_held_out("draft", draft, docs, byte_count)
        report_draft(target, draft, docs, args.draft_out)
    report_words(target, tokenizer, args.corpus, docs)
    report_samples(target, tokenizer)


if __name__ == "__main__":
    main()
