"""Checks exported folders against the float64 reference and writes golden.json beside them.

The tokenizer's ids are compared with the `tokenizers` library when it is installed. For the target
and the draft: (1) the trainer's logits, weights rounded to bf16, against the
reference reading the files; (2) `transformers` reading the files against the reference, when it is
installed; (3) three prompts with 48 greedy tokens and the last top-8 logits, all from the
reference, kept only if the smallest greedy margin exceeds 1e-3.

Usage: check_export.py MODEL_DIR TARGET_WEIGHTS_PT DRAFT_WEIGHTS_PT [--write-golden]
MODEL_DIR holds target/ and draft/.
"""
import argparse
import json
import os

import numpy as np
import torch

from bpe import Tokenizer
from export import round_to_bf16
from model import load_weights
from reference import Reference

PROMPTS = (
    "Once upon a time, there was a little girl named Lily. She loved to play in the garden.",
    "Tom had a small blue boat.",
    "One day, the dog saw a big tree in the park. \"What is that?\" he asked.",
    "Ben and Mia were best friends.",
    "The old cat sat by the window and looked at the rain.",
)
GREEDY_TOKENS, CASES, MARGIN, TOLERANCE = 48, 3, 1e-3, 1e-4
TEXT = ("Once upon a time there was a big bear. He said, \"I am so hungry!\" and went to the river "
        "to look for fish.\nThe fish swam away. The bear was sad, but then a little bird came.")
ODD_TEXTS = ("", " ", "   two  spaces ", "\t\n\n  x\n", "caf\u00e9 \u4f60\u597d \U0001f60a!",
             "I'll we've 12345", "a\u0000b", "...!!!???", "ABC def\r\nghi")


def greedy(reference, ids, count):
    """Returns the tokens, the smallest gap between best and second, and the last logits."""
    out, margin = list(ids), np.inf
    for _ in range(count):
        last = reference.logits(out)[-1]
        second, best = np.sort(last)[-2:]
        margin = min(margin, best - second)
        out.append(int(last.argmax()))
    return out[len(ids):], float(margin), reference.logits(out)[-1]


def compare(name, got, expected):
    difference = np.abs(got - expected).max() / np.abs(expected).max()
    same = int((got.argmax(1) == expected.argmax(1)).sum())
    print(f"{name}: max difference {difference:.1e} of the largest logit, argmax equal {same} of "
          f"{len(expected)}")
    if difference > TOLERANCE:
        raise SystemExit(f"{name}: the difference is above {TOLERANCE}")


def transformers_logits(folder, ids):
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        return None
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


def compare_tokenizer(path, tokenizer):
    """Our encoder against the `tokenizers` library reading the same file."""
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        print("tokenizers is not installed, ids not compared")
        return
    library = Library.from_file(path)
    for text in (*PROMPTS, *ODD_TEXTS, TEXT):
        ids = tokenizer.encode(text)
        if library.encode(text).ids != ids or tokenizer.decode(ids) != text:
            raise SystemExit(f"{path}: other ids or no round trip for {text!r}")
    print(f"tokenizer: {len(PROMPTS) + len(ODD_TEXTS) + 1} texts give the library's ids")


def check(folder, name, weights, tokenizer):
    reference = Reference(os.path.join(folder, name))
    ids = [0] + tokenizer.encode(TEXT)
    expected = reference.logits(ids)
    trained = round_to_bf16(load_weights(weights))
    compare(f"{name}, trainer", trained.logits(torch.tensor(ids), [len(ids)]).numpy(), expected)
    other = transformers_logits(os.path.join(folder, name), ids)
    if other is None:
        print(f"{name}: transformers is not installed, not compared")
    else:
        compare(f"{name}, transformers", other, expected)
    return reference


def golden_cases(name, reference, tokenizer):
    cases = []
    for prompt in PROMPTS:
        ids = [0] + tokenizer.encode(prompt)
        tokens, margin, last = greedy(reference, ids, GREEDY_TOKENS)
        if margin <= MARGIN or len(cases) == CASES:
            continue
        top = np.argsort(-last)[:8]
        cases.append({"model": name, "prompt": prompt, "prompt_ids": ids, "greedy_ids": tokens,
                      "smallest_margin": round(margin, 6), "last_top8_ids": top.tolist(),
                      "last_top8_logits": [round(float(x), 5) for x in last[top]]})
    if len(cases) < CASES:
        raise SystemExit(f"{name}: fewer than {CASES} prompts have a clear greedy margin")
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for argument in ("folder", "target_weights", "draft_weights"):
        parser.add_argument(argument)
    parser.add_argument("--write-golden", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cases = []
    for name, weights in (("target", args.target_weights), ("draft", args.draft_weights)):
        tokenizer = Tokenizer(os.path.join(args.folder, name, "tokenizer.json"))
        reference = check(args.folder, name, weights, tokenizer)
        compare_tokenizer(os.path.join(args.folder, name, "tokenizer.json"), tokenizer)
        cases += golden_cases(name, reference, tokenizer)
    if args.write_golden:
        note = ("greedy_ids and logits from a float64 forward of the bf16 weights; prompt_ids "
                "start with the end-of-text token; last_top8: the eight largest logits at the "
                "last position of prompt_ids + greedy_ids")
        with open(os.path.join(args.folder, "golden.json"), "w", encoding="utf-8") as f:
            json.dump({"note": note, "cases": cases}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
