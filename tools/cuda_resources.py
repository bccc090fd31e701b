#!/usr/bin/env python3
"""Prints what each CUDA kernel uses of a GPU: registers, spills, shared memory, per architecture.

usage: tools/cuda_resources.py BUILD_FOLDER [--may-spill FILE]

Reads the *.resources files that tools/nvcc_launcher.py leaves beside the objects. Exit code 1 when a kernel
spills that FILE (kernels/cuda/may_spill.txt) does not list, 2 when there is nothing to read. `threads` is how
many threads of a block the registers allow: a launch with more fails on every GPU.
"""

import argparse
import pathlib
import re
import subprocess
import sys

REGISTERS_OF_A_BLOCK = 65536
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def read_kernels(folder):
    """{(file, mangled name): {architecture: {registers, stack, spill, shared}}}"""
    kernels = {}
    plan = pathlib.Path(folder) / "build.ninja"
    built = plan.read_text(encoding="utf-8") if plan.exists() else None
    for path in sorted(pathlib.Path(folder).rglob("*.resources")):
        if built is not None and path.name.removesuffix(".resources") not in built:
            continue  # of a source that is gone
        source = path.name.split(".cu")[0] + ".cu"
        found = None
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := ENTRY.search(line):
                found = {"registers": 0, "stack": 0, "spill": 0, "shared": 0}
                kernels.setdefault((source, match[1]), {})[match[2]] = found
            elif found is None:
                continue
            elif match := FRAME.search(line):
                found["stack"] = int(match[1])
                found["spill"] = int(match[2]) + int(match[3])
            elif match := USED.search(line):
                found["registers"] = int(match[1])
                if shared := SHARED.search(line):
                    found["shared"] = int(shared[1])
    return kernels


def readable(names):
    """Demangled, without namespaces of ours, return type and parameters."""
    plain = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True)
    short = {}
    for name, text in zip(names, plain.stdout.splitlines()):
        text = text.replace("(anonymous namespace)::", "").removeprefix("void ")
        text = re.sub(r"brigade::kernels::(cuda::)?", "", text)
        depth, end = 0, len(text)
        for i, char in enumerate(text):
            depth += {"<": 1, ">": -1}.get(char, 0)
            if char == "(" and depth == 0:
                end = i
                break
        short[name] = re.sub(r"\((?:int|bool|unsigned int|DType)\)", "", text[:end])
    return short


def read_exceptions(path):
    if not path:
        return []
    lines = (line.split("#")[0].strip() for line in open(path, encoding="utf-8"))
    return [line.split()[0] for line in lines if line]


def threads_of_a_block(registers):
    """A warp's registers are given out in units of 256."""
    of_a_warp = max(1, -(-registers * 32 // 256)) * 256
    return min(1024, REGISTERS_OF_A_BLOCK // of_a_warp * 32)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--may-spill")
    options = parser.parse_args()
    kernels = read_kernels(options.folder)
    if not kernels:
        print(f"{options.folder}: no CUDA kernel was compiled here")
        return 2
    allowed = read_exceptions(options.may_spill)
    names = readable(sorted({name for _, name in kernels}))
    print(f"{'file':<20} {'arch':<8} {'registers':>9} {'threads':>7} {'stack':>6} {'spill':>6} {'shared':>7}  kernel")
    bad = []
    for (source, name), architectures in sorted(kernels.items(), key=lambda item: (item[0][0], names[item[0][1]])):
        for architecture, used in sorted(architectures.items(), key=lambda item: int(item[0].strip("sm_a"))):
            mark = ""
            if used["spill"] and not any(part in names[name] for part in allowed):
                mark = "  SPILLS"
                bad.append(f"{names[name]} ({architecture})")
            print(f"{source:<20} {architecture:<8} {used['registers']:>9} {threads_of_a_block(used['registers']):>7} "
                  f"{used['stack']:>6} {used['spill']:>6} {used['shared']:>7}  {names[name]}{mark}")
    print(f"{len(kernels)} kernels; bytes; spill = stores + loads")
    for kernel in bad:
        print(f"spills registers: {kernel}; make it need fewer, or list it in kernels/cuda/may_spill.txt and say why")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
