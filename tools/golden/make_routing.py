"""Makes tests/data/routing/routing_cases.json: logits, a rule, the expected experts and gates.

The rules are computed here in float64 and, where a family in `transformers` has the same rule,
compared with its router. Run with --check to compare with the committed file and write nothing.
"""

import argparse
import itertools
import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter

from routing_hand_cases import HAND_CASES

OUTPUT = Path(__file__).resolve().parents[2] / "tests" / "data" / "routing" / "routing_cases.json"
# Two different selection scores closer than this (relative) could change places in f32.
CLEAR_GAP = 1e-4
# (experts, top_k, groups, groups kept): two shapes for each combination of rules, in turn.
PLAIN_SHAPES = [(4, 1), (4, 2), (5, 2), (8, 2), (8, 3), (13, 4), (16, 6), (32, 8), (60, 6), (64, 8)]
GROUP_SHAPES = [(8, 2, 4, 2), (8, 3, 2, 1), (12, 4, 3, 2), (16, 4, 4, 2), (24, 6, 8, 3),
                (32, 8, 8, 4), (64, 8, 8, 4), (64, 6, 4, 2), (64, 1, 16, 1), (6, 2, 3, 1)]


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def descending(values):
    """Indices by falling value, ties to the lower index."""
    return np.argsort(-values, kind="stable")


def selection_scores(rule):
    """(unbiased scores, scores to choose by with masked groups at -inf, group scores or None)."""
    logits = np.asarray(rule["logits"], dtype=np.float64)
    if rule["scoring"] == "sigmoid":
        scores = 1.0 / (1.0 + np.exp(-logits))
    else:
        scores = logits if rule["softmax_after_topk"] else softmax(logits)
    choice = scores + (0.0 if rule["bias"] is None else np.asarray(rule["bias"]))
    if rule["num_groups"] == 1:
        return scores, choice, None
    grouped = np.sort(choice.reshape(rule["num_groups"], -1), axis=1)[:, ::-1]
    group_scores = grouped[:, 0] if rule["group_score"] == "max" else grouped[:, :2].sum(axis=1)
    kept = descending(group_scores)[: rule["groups_kept"]]
    masked = np.full(grouped.shape, -np.inf)
    masked[kept] = choice.reshape(grouped.shape)[kept]
    return scores, masked.reshape(-1), group_scores


def route(rule):
    """(expert ids, gates) in order of falling selection score."""
    scores, choice, _ = selection_scores(rule)
    ids = descending(choice)[: rule["top_k"]]
    assert np.isfinite(choice[ids]).all(), "the kept groups hold fewer than top_k experts"
    gates = softmax(scores[ids]) if rule["softmax_after_topk"] else scores[ids]
    if rule["renormalize"]:
        gates = gates / (gates.sum() + rule["renormalize_epsilon"])
    return ids.tolist(), (gates * rule["scale"]).tolist()


def clear_of_ties(rule):
    """No two scores that decide anything are equal or so close that f32 could swap them."""
    _, choice, group_scores = selection_scores(rule)
    ranked = np.sort(choice[np.isfinite(choice)])[::-1][: rule["top_k"] + 1]
    lists = [ranked]
    if group_scores is not None:
        lists.append(np.sort(group_scores)[::-1][: rule["groups_kept"] + 1])
    return all((x[:-1] - x[1:] > CLEAR_GAP * np.abs(x[:-1])).all() for x in lists)


def make_rule(name, logits, top_k, **settings):
    rule = {
        "name": name, "num_experts": len(logits), "top_k": top_k, "scoring": "softmax",
        "softmax_after_topk": False, "renormalize": False, "renormalize_epsilon": 0.0,
        "scale": 1.0, "num_groups": 1, "groups_kept": 1, "group_score": "max", "bias": None,
        "logits": logits,
    }
    unknown = settings.keys() - rule.keys() - {"source"}
    assert not unknown, unknown
    return rule | settings


def random_rule(name, seed, shape, settings, with_bias):
    """Logits and bias are multiples of 1/64 and 1/1024: exact in f32."""
    experts, top_k = shape[0], shape[1]
    for attempt in itertools.count():
        rng = np.random.default_rng([seed, attempt])
        logits = (np.round(rng.standard_normal(experts) * 1.5 * 64) / 64).tolist()
        bias = np.round(rng.standard_normal(experts) * 0.15 * 1024) / 1024
        rule = make_rule(name, logits, top_k, bias=bias.tolist() if with_bias else None, **settings)
        if clear_of_ties(rule):
            return rule


def combination_rules():
    """Every combination of the rules' settings, two shapes each."""
    orders = {"softmax": ("softmax", False), "softmax_after": ("softmax", True),
              "sigmoid": ("sigmoid", False)}
    options = itertools.product(orders, (False, True), (False, True), ("none", "max", "top2sum"),
                                (1.0, 2.5), (0, 1))
    plain, grouped = itertools.cycle(PLAIN_SHAPES), itertools.cycle(GROUP_SHAPES)
    for seed, (order, renormalize, with_bias, groups, scale, half) in enumerate(options):
        scoring, after = orders[order]
        shape = next(plain) if groups == "none" else next(grouped)
        settings = {"scoring": scoring, "softmax_after_topk": after, "renormalize": renormalize,
                    "scale": scale}
        if scoring == "sigmoid" and renormalize:
            settings["renormalize_epsilon"] = 1e-20
        if groups != "none":
            settings |= {"num_groups": shape[2], "groups_kept": shape[3], "group_score": groups}
        name = "_".join([order, "renormalized" if renormalize else "as_is",
                         "bias" if with_bias else "no_bias", f"groups_{groups}",
                         f"scale_{scale}", "ab"[half]])
        yield random_rule(name, seed, shape, settings, with_bias)


def hand_rules():
    """Cases with values worked out by hand; the rules above must give them."""
    for entry in HAND_CASES:
        settings = dict(entry)
        ids, gates = settings.pop("expected_ids"), settings.pop("expected_gates")
        rule = make_rule(settings.pop("name"), settings.pop("logits"), settings.pop("top_k"),
                         **settings)
        actual_ids, actual_gates = route(rule)
        if actual_ids != ids or not np.allclose(actual_gates, gates, rtol=1e-3, atol=0):
            raise SystemExit(f"{rule['name']}: {actual_ids} {actual_gates}, by hand {ids} {gates}")
        yield rule


def family_router(rule):
    """(family, router of `transformers`) with the same rule, or None."""
    config = SimpleNamespace(
        num_experts_per_tok=rule["top_k"], num_experts=rule["num_experts"],
        num_local_experts=rule["num_experts"], hidden_size=rule["num_experts"],
        norm_topk_prob=rule["renormalize"], routed_scaling_factor=rule["scale"],
        n_group=rule["num_groups"], topk_group=rule["groups_kept"],
        topk_method="greedy" if rule["num_groups"] == 1 else "group_limited_greedy")
    grouped, biased = rule["num_groups"] > 1, rule["bias"] is not None
    if rule["scoring"] == "sigmoid":
        same = grouped and rule["group_score"] == "top2sum"
        return ("deepseek_v3", DeepseekV3TopkRouter(config)) if same else None
    if biased:
        return None
    if rule["softmax_after_topk"]:
        same = not grouped and rule["scale"] == 1.0
        return ("gpt_oss", GptOssTopKRouter(config)) if same else None
    if not rule["renormalize"] and (grouped or rule["scale"] != 1.0):
        same = rule["group_score"] == "max"
        return ("deepseek_v2", DeepseekV2TopkRouter(config)) if same else None
    if grouped or rule["scale"] != 1.0:
        return None
    if rule["renormalize"] and rule["num_experts"] % 2 == 0:  # the two have one rule: share them
        return "mixtral", MixtralTopKRouter(config)
    return "olmoe", OlmoeTopKRouter(config)


def compare_with_family(rule, compared):
    """The router's weight is the identity, so its input is the logits. Its ids come unordered."""
    found = family_router(rule) if clear_of_ties(rule) else None
    if found is None:
        return
    family, router = found
    router.weight.data = torch.eye(rule["num_experts"])
    if rule["bias"] is not None:
        router.e_score_correction_bias = torch.tensor(rule["bias"], dtype=torch.float32)
    if family == "gpt_oss":
        router.bias.data.zero_()
    _, gates, ids = router(torch.tensor([rule["logits"]], dtype=torch.float32))
    theirs = dict(zip(ids[0].tolist(), gates[0].tolist()))
    ours = dict(zip(*route(rule)))
    same_gates = theirs.keys() == ours.keys() and all(
        abs(theirs[i] - ours[i]) <= 1e-5 * abs(ours[i]) for i in ours)
    if not same_gates:
        raise SystemExit(f"{rule['name']}: {family} gives {theirs}, the rule {ours}")
    compared[family] += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    args = parser.parse_args()
    cases, compared = [], Counter()
    with torch.no_grad():
        for rule in itertools.chain(hand_rules(), combination_rules()):
            compare_with_family(rule, compared)
            ids, gates = route(rule)
            cases.append(rule | {"expected_ids": ids, "expected_gates": gates})
    lines = ",\n".join(json.dumps(case) for case in cases)
    text = '{"cases":[\n' + lines + "\n]}\n"
    print(f"{len(cases)} cases; equal to transformers: {dict(compared)}")
    if args.check:
        committed = json.loads(OUTPUT.read_text())["cases"]
        for ours, theirs in itertools.zip_longest(cases, committed):
            a, b = ({k: v for k, v in (x or {}).items() if k != "expected_gates"}
                    for x in (ours, theirs))
            if a != b or not np.allclose(ours["expected_gates"], theirs["expected_gates"], 1e-12):
                sys.exit(f"{OUTPUT} differs at {(ours or theirs)['name']}")
        return
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(text)
    print(f"{len(text) / 1024:.0f} KiB in {OUTPUT}")


if __name__ == "__main__":
    main()
