#!/usr/bin/env python3
"""Prints the line coverage of each CUDA source under emulation.

The emulated sources count their lines while the tests with the label gpu-emulated run; this reads the
counts that are there. The goal is for the .cu files. It says which lines a test executed on the CPU,
nothing about a GPU.

usage: cuda_coverage.py BUILD_FOLDER [--goal PERCENT] [--missing] [--enforce]
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

SOURCES = "kernels/cuda/"
TARGETS = ("brigade_cuda_kernels_emulated", "brigade_cuda_emulated_host")


def counts_of(data_file, lines):
    """Adds one object's counts to lines[source][number]."""
    out = subprocess.run(["gcov", "--json-format", "--stdout", str(data_file)], capture_output=True,
                         text=True, cwd=data_file.parent, check=True).stdout
    for document in out.splitlines():
        for source in json.loads(document)["files"]:
            at = source["file"].find(SOURCES)
            if at < 0:
                continue
            counts = lines[source["file"][at + len(SOURCES):]]
            for line in source["lines"]:
                number = line["line_number"]
                counts[number] = counts.get(number, 0) + line["count"]


def ranges(numbers):
    """[3, 4, 5, 9] as "3-5 9"."""
    parts = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--goal", type=float, default=95)
    parser.add_argument("--missing", action="store_true", help="also the lines that did not run")
    parser.add_argument("--enforce", action="store_true", help="exit 1 when a .cu is below the goal")
    args = parser.parse_args()

    folders = [args.build / "tests/cuda_emulation/CMakeFiles" / f"{target}.dir" for target in TARGETS]
    notes = {path.with_suffix("") for folder in folders for path in folder.rglob("*.gcno")}
    if not notes:
        print(f"{args.build} has no emulated CUDA sources: nothing to count")
        return 0
    lines = collections.defaultdict(dict)
    never_run = []
    for name in sorted(notes):
        data_file = pathlib.Path(f"{name}.gcda")
        if data_file.exists():
            counts_of(data_file.resolve(), lines)
        else:
            never_run.append(name.name)
    if not lines:
        sys.exit(f"no counts in {args.build}: run ctest -L gpu-emulated there first")

    print(f"{'source':32} {'lines':>6} {'run':>6} {'%':>6}   (goal {args.goal:g} %)")
    below = 0
    for source in sorted(lines, key=lambda name: (not name.endswith(".cu"), name)):
        counts = lines[source]
        run = sum(1 for count in counts.values() if count > 0)
        share = 100 * run / len(counts)
        low = share < args.goal and source.endswith(".cu")
        below += low
        print(f"{source:32} {len(counts):6} {run:6} {share:6.1f}{'   below' if low else ''}")
        if args.missing and run < len(counts):
            print("    not run:", ranges(number for number, count in counts.items() if count == 0))
    for name in never_run:
        below += name.endswith(".cu")
        print(f"{name:32} {'no test has run it':>20}")
    return 1 if args.enforce and below else 0


if __name__ == "__main__":
    sys.exit(main())
