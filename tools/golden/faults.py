"""Plants the usual implementation mistakes in the numpy reference and measures what each moves."""

import numpy as np

from reference import Faults, forward

TOLERANCE = 1e-4  # of a row's largest |logit|
REQUIRED = 100 * TOLERANCE


def planted_faults(case):
    """name -> (Faults, where it must show: at "most" positions or at the "worst" one)."""
    other_theta = 10000.0 if case.rope_theta > 1e5 else 1e6
    other_eps = 1e-6 if case.rms_norm_eps > 5e-6 else 1e-5
    faults = {
        "interleaved rope": (Faults(interleaved_rope=True), "worst"),
        "other rope theta": (Faults(rope_theta=other_theta), "worst"),
        "another rms eps": (Faults(rms_norm_eps=other_eps), "worst"),
    }
    if case.llama3_scaling:
        faults["no rope scaling"] = (Faults(ignore_rope_scaling=True), "worst")
    if 1 < case.kv_heads < case.heads:
        faults["kv head modulo"] = (Faults(kv_head_modulo=True), "worst")
    if case.heads * case.head_dim != case.hidden:
        faults["scale by hidden"] = (Faults(scale_by_hidden=True), "worst")
    if case.attention_bias:
        faults["no attention bias"] = (Faults(drop_attention_bias=True), "most")
    if case.subnormal_up:
        faults["subnormals to zero"] = (Faults(flush_subnormals=True), "most")
    if case.experts:
        faults["no renormalising"] = (Faults(renormalize=False), "most")
        faults["wrong last expert"] = (Faults(swap_boundary_expert=True), "most")
        faults["gates swapped"] = (Faults(swap_gates=True), "most")
    return faults


def row_difference(actual, expected):
    """[tokens]: max |a - b| of each row over the row's largest |b|."""
    return np.abs(actual - expected).max(axis=-1) / np.abs(expected).max(axis=-1)


def measure_faults(case, weights, prompts):
    """Rows (case, fault, median, worst, passed) over all positions of all prompts."""
    good = [forward(case, weights, ids)[0] for ids in prompts]
    rows = []
    for name, (fault, where) in planted_faults(case).items():
        moved = np.concatenate([
            row_difference(forward(case, weights, ids, fault)[0], expected)
            for ids, expected in zip(prompts, good)
        ])
        median, worst = float(np.median(moved)), float(moved.max())
        seen = median if where == "most" else worst
        rows.append((case.name, name, median, worst, seen > REQUIRED))
    return rows


def print_faults(rows):
    print(f"{'case':24}{'planted fault':22}{'median moved':>14}{'worst moved':>14}")
    for case, name, median, worst, passed in rows:
        verdict = "" if passed else "  NOT SEEN"
        print(f"{case:24}{name:22}{median:14.2e}{worst:14.2e}{verdict}")
