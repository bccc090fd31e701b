"""Makes tests/data/golden: tiny random checkpoints and what `transformers` computes from them.

Run with --check to recompute and compare with the committed files instead of writing them.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from cases import CASES
from checkpoint import random_weights, write_checkpoint, write_json
from faults import TOLERANCE, measure_faults, print_faults, row_difference
from reference import forward

OUTPUT = Path(__file__).resolve().parents[2] / "tests" / "data" / "golden"
PROMPT_LENGTHS = (5, 13, 40)
GREEDY_TOKENS = 64
# Two logits may each be off by the tolerance; ten times that leaves no doubt which is larger.
RELATIVE_MARGIN = 10 * TOLERANCE
ABSOLUTE_MARGIN = 1e-3
# Between the router logits of rank k and k+1: a near tie would pick another expert from noise.
ROUTER_MARGIN = 1e-3
# A loop of one or two tokens would say little about decoding.
DISTINCT_TOKENS = 12
# The numpy reference and `transformers` (which keeps norms and rope in f32) must agree this well.
AGREEMENT = 5e-6
# All of `transformers` in f32: f32 arithmetic must be able to stay well inside the tolerance.
F32_NOISE = TOLERANCE / 4


def load_model(folder):
    """The checkpoint as `transformers` reads it, weights and matrix products in float64."""
    cls = {"llama": transformers.LlamaForCausalLM, "mixtral": transformers.MixtralForCausalLM}
    family = json.loads((folder / "config.json").read_text())["model_type"]
    model, info = cls[family].from_pretrained(
        folder, dtype=torch.float64, attn_implementation="sdpa", experts_implementation="eager",
        output_loading_info=True)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[problem]:
            raise SystemExit(f"{folder}: {problem}: {info[problem]}")
    return model.eval()


def greedy(model, prompt):
    """64 greedy tokens, the logits row that chose each [64, vocab]."""
    tokens, rows = [], []
    for _ in range(GREEDY_TOKENS):
        rows.append(model(torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1])
        tokens.append(int(rows[-1].argmax()))
    return tokens, torch.stack(rows)


def greedy_margins(rows):
    """Smallest top-1 minus top-2 of all steps: in logits, and relative to the row's max |logit|."""
    best = rows.topk(2, dim=-1).values
    margin = best[:, 0] - best[:, 1]
    return float(margin.min()), float((margin / rows.abs().amax(dim=-1)).min())


def router_margin(case, trace):
    if not case.experts:
        return None
    k = case.top_k
    return min(float((x[:, k - 1] - x[:, k]).min()) for x in trace.sorted_logits)


def try_prompt(case, model, weights, ids):
    """Everything to store for one prompt, or None if it is too close to a tie to be a fair test."""
    tokens, rows = greedy(model, ids)
    margin, relative = greedy_margins(rows)
    if margin < ABSOLUTE_MARGIN or relative < RELATIVE_MARGIN:
        return None
    if len(set(tokens)) < DISTINCT_TOKENS or set(tokens) & set(case.eos_ids):
        return None
    _, trace = forward(case, weights, ids + tokens)
    boundary = router_margin(case, trace)
    if boundary is not None and boundary < ROUTER_MARGIN:
        return None
    return {"ids": ids, "greedy_ids": tokens, "smallest_greedy_margin": margin,
            "smallest_router_margin": boundary, "last_row": rows[-1], "trace": trace}


def find_prompt(case, model, weights, length):
    for attempt in range(400):
        rng = np.random.default_rng([case.seed, length, attempt])
        ids = rng.integers(3, case.vocab, length).tolist()
        found = try_prompt(case, model, weights, ids)
        if found:
            return found
    raise SystemExit(f"{case.name}: no prompt of {length} tokens is clear of ties; change its seed")


def check_numerics(case, model, weights, prompts):
    """Worst row difference of float64 `transformers` to numpy, and of its f32 to its float64."""
    expected = [model(torch.tensor([p["ids"]])).logits[0].numpy() for p in prompts]
    numpy_rows = [forward(case, weights, p["ids"])[0] for p in prompts]
    model.float()
    f32_rows = [model(torch.tensor([p["ids"]])).logits[0].numpy() for p in prompts]
    model.double()  # exact: every stored weight is an f32, bf16 or f16 value
    agreement = max(row_difference(a, b).max() for a, b in zip(numpy_rows, expected))
    noise = max(row_difference(a, b).max() for a, b in zip(f32_rows, expected))
    if agreement > AGREEMENT or noise > F32_NOISE:
        raise SystemExit(f"{case.name}: numpy differs by {agreement:.1e}, f32 by {noise:.1e}")
    return agreement, noise


def print_case(case, prompts, size, agreement, noise):
    line = f"{case.name:24}{size / 1024:5.0f} KiB  numpy {agreement:.1e}  f32 {noise:.1e}  margins "
    line += " ".join(f"{p['smallest_greedy_margin']:.4f}" for p in prompts)
    line += "  distinct " + " ".join(str(len(set(p["greedy_ids"]))) for p in prompts)
    if case.experts:
        sorted_p = np.concatenate([x for p in prompts for x in p["trace"].sorted_probabilities])
        top = sorted_p[:, : case.top_k]
        line += f"  first gate {np.mean(top[:, 0] / top.sum(axis=1)):.2f}"
        line += f"  next/last {np.median(sorted_p[:, case.top_k] / top[:, -1]):.2f}"
        line += f"  mass kept {np.mean(top.sum(axis=1)):.2f}"
    print(line, flush=True)


def make_case(case, folder):
    """Writes the folder of one case; returns (weights, prompts' ids) for the fault table."""
    weights = random_weights(case)
    write_checkpoint(case, weights, folder)
    model = load_model(folder)
    prompts = [find_prompt(case, model, weights, length) for length in PROMPT_LENGTHS]
    agreement, noise = check_numerics(case, model, weights, prompts)
    tensors, entries = {}, []
    for i, prompt in enumerate(prompts):
        logits = model(torch.tensor([prompt["ids"]])).logits[0]
        tensors[f"prompt_{i}"] = logits.float().contiguous()
        tensors[f"greedy_last_{i}"] = prompt["last_row"][None].float().contiguous()
        keys = ("ids", "greedy_ids", "smallest_greedy_margin", "smallest_router_margin")
        entries.append({"logits": f"prompt_{i}", "greedy_last_logits": f"greedy_last_{i}"}
                       | {key: prompt[key] for key in keys})
    save_file(tensors, folder / "golden.safetensors", metadata={"format": "pt"})
    write_json(folder / "golden.json", {
        "case": case.name,
        "shows": case.shows,
        "family": case.family,
        "tolerance": TOLERANCE,
        "computed_with": {"transformers": transformers.__version__, "torch": torch.__version__,
                          "dtype": "float64"},
        "prompts": entries,
    })
    size = sum(f.stat().st_size for f in folder.iterdir())
    print_case(case, prompts, size, agreement, noise)
    return weights, [p["ids"] for p in prompts]


def compare_folders(made, committed):
    """All files equal but for the last bits of logits and margins; returns the complaints."""
    complaints = []
    for path in sorted(made.iterdir()):
        other = committed / path.name
        if not other.exists():
            complaints.append(f"{other} is missing")
        elif path.name == "golden.safetensors":
            a, b = load_file(path), load_file(other)
            if a.keys() != b.keys() or any(not torch.allclose(a[k], b[k], 1e-5, 1e-5) for k in a):
                complaints.append(f"{other} holds other logits")
        elif path.name == "golden.json":
            a, b = (json.loads(p.read_text())["prompts"] for p in (path, other))
            if any(x[k] != y[k] for x, y in zip(a, b) for k in ("ids", "greedy_ids")):
                complaints.append(f"{other} holds other tokens")
        elif path.read_bytes() != other.read_bytes():
            complaints.append(f"{other} differs")
    return complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--only", metavar="CASE", help="one case by name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows, complaints = [], []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) if args.check else OUTPUT
        for case in CASES:
            if args.only and case.name != args.only:
                continue
            rows += measure_faults(case, *make_case(case, root / case.name))
            if args.check:
                complaints += compare_folders(root / case.name, OUTPUT / case.name)
    if not args.check:
        total = sum(f.stat().st_size for f in OUTPUT.rglob("*") if f.is_file())
        print(f"{total / 1e6:.2f} MB in {OUTPUT}")
    print_faults(rows)
    unseen = [row for row in rows if not row[-1]]
    for complaint in complaints:
        print(complaint)
    sys.exit(1 if unseen or complaints or not rows else 0)


if __name__ == "__main__":
    main()
