#!/usr/bin/env python3
"""Checks and measures Brigade on a machine with a GPU, in under five minutes.

  ./device_check.py [--seed N] [--out FOLDER] [--only STEP ...] [--list] [--quick] [--bundle FOLDER]

Each step has its own time limit and ends as passed, FAILED, timed out, or not available (with the reason).
Written after each step: FOLDER/device_check.json and FOLDER/device_check.txt. Exit code 0: nothing failed; 1: a
step did; 3: the CUDA module finds no GPU here, so nothing could be checked.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import machine
import steps

TOTAL_SECONDS = 290
QUICK_PATIENCE = 5  # a try of the script itself may meet a busy machine


def table(report):
    lines = [f"Brigade {report['revision']}, {report['date']}"]
    for gpu in report["machine"]["gpus"]:
        lines.append(f"GPU: {gpu['name']}, compute {gpu['compute']}, {gpu['memory_mib']} MiB, "
                     f"driver {report['machine']['driver']}")
    versions = ", ".join(f"{name} {value}" for name, value in report["machine"]["versions"].items())
    lines += [f"libraries: {versions}", f"seed {report['seed']}", ""]
    lines.append(f"{'step':<24} {'outcome':<14} {'seconds':>8}  what")
    for step in report["steps"]:
        lines.append(f"{step['name']:<24} {step['outcome']:<14} {step['seconds']:>8.1f}  {step['what']}")
    for step in report["steps"]:
        if step.get("table"):
            lines += ["", step["name"], step["table"].rstrip()]
    return "\n".join(lines) + "\n"


def write(report, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "device_check.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "device_check.txt").write_text(table(report))


def parse():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**31))
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--only", nargs="+", metavar="STEP")
    parser.add_argument("--list", action="store_true", help="name the steps and end")
    parser.add_argument("--quick", action="store_true", help="a small part of each step, to try the script itself")
    parser.add_argument("--bundle", type=Path, default=here, help="the folder with bin/ and lib/")
    return parser.parse_args()


def main():
    args = parse()
    if args.list:
        for step in steps.STEPS:
            print(f"{step.name:<24} at most {step.limit:>3} s  {step.purpose}")
        return 0

    found = machine.find_libraries()
    for library, path in found.items():
        print(f"{library}: {path or 'not found'}")
    bench = steps.Bench(args.bundle.resolve(), found, args.seed, args.quick)
    print(bench.start_of_programs())
    if not bench.gpus:
        print("No GPU can be used here, so nothing more can be checked.")
        return 3

    revision = args.bundle / "revision"
    report = {
        "revision": revision.read_text().strip() if revision.exists() else "unknown",
        "date": time.strftime("%Y-%m-%d"),
        "seed": args.seed,
        "machine": {"gpus": bench.gpus, "driver": machine.driver(), "libraries": found,
                    "versions": machine.library_versions(found)},
        "steps": [],
    }
    patience = QUICK_PATIENCE if args.quick else 1
    deadline = time.monotonic() + TOTAL_SECONDS * patience
    for step in steps.STEPS:
        if args.only and step.name not in args.only:
            continue
        limit = min(step.limit * patience, deadline - time.monotonic())
        print(f"{step.name} ...", end=" ", flush=True)
        result = bench.run(step, limit)
        print(f"{result['outcome']} ({result['seconds']:.1f} s) {result['what']}", flush=True)
        report["steps"].append(result)
        write(report, args.out)
    print("\n" + table(report))
    return 1 if any(step["outcome"] in ("FAILED", "timed out") for step in report["steps"]) else 0


if __name__ == "__main__":
    sys.exit(main())
