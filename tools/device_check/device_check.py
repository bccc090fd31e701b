#!/usr/bin/env python3
"""Checks and measures Brigade on a machine with a GPU, in under five minutes.

  ./device_check.py [--seed N] [--out FOLDER] [--only STEP ...] [--list]

Each step has its own time limit and ends as passed, FAILED, timed out, or not available (with the reason).
Written: FOLDER/device_check.json and FOLDER/device_check.txt. Exit code 0: nothing failed; 1: a step did;
3: there is no NVIDIA driver, so nothing could be checked.
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


def table(report):
    lines = [f"Brigade {report['revision']}, {report['date']}"]
    for gpu in report["machine"]["gpus"]:
        lines.append(f"GPU: {gpu['name']}, compute {gpu['compute_cap']}, {gpu['memory.total']} MiB, "
                     f"driver {gpu['driver_version']}")
    versions = ", ".join(f"{name} {value}" for name, value in report["machine"]["versions"].items())
    lines += [f"libraries: {versions}", f"seed {report['seed']}", ""]
    lines.append(f"{'step':<24} {'outcome':<14} {'seconds':>8}  what")
    for step in report["steps"]:
        lines.append(f"{step['name']:<24} {step['outcome']:<14} {step['seconds']:>8.1f}  {step['what']}")
    for step in report["steps"]:
        if step.get("table"):
            lines += ["", step["name"], step["table"].rstrip()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**31))
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--only", nargs="+", metavar="STEP")
    parser.add_argument("--list", action="store_true", help="name the steps and end")
    args = parser.parse_args()
    if args.list:
        for step in steps.STEPS:
            print(f"{step.name:<24} at most {step.limit:>3} s  {step.purpose}")
        return 0

    found = machine.find_libraries()
    has_driver, driver_version = machine.driver()
    here = Path(__file__).resolve().parent
    report = {
        "revision": (here / "revision").read_text().strip() if (here / "revision").exists() else "unknown",
        "date": time.strftime("%Y-%m-%d"),
        "seed": args.seed,
        "machine": {"gpus": machine.gpus(), "driver": driver_version, "libraries": found,
                    "versions": machine.library_versions(found)},
        "steps": [],
    }
    bench = steps.Bench(here, found, args.seed)
    for library, path in found.items():
        print(f"{library}: {path or 'not found'}")
    opened = bench.start_of_programs()
    print(opened)
    if not has_driver:
        print("There is no NVIDIA driver on this machine (libcuda.so.1 cannot be used), so nothing more can be checked.")
        return 3

    deadline = time.monotonic() + TOTAL_SECONDS
    for step in steps.STEPS:
        if args.only and step.name not in args.only:
            continue
        limit = min(step.limit, deadline - time.monotonic())
        print(f"{step.name} ...", end=" ", flush=True)
        result = bench.run(step, limit)
        print(f"{result['outcome']} ({result['seconds']:.1f} s) {result['what']}", flush=True)
        report["steps"].append(result)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "device_check.json").write_text(json.dumps(report, indent=1) + "\n")
    (args.out / "device_check.txt").write_text(table(report))
    print("\n" + table(report))
    return 1 if any(step["outcome"] in ("FAILED", "timed out") for step in report["steps"]) else 0


if __name__ == "__main__":
    sys.exit(main())
