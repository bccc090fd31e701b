#!/usr/bin/env python3
"""Runs nvcc and keeps what ptxas says of each kernel in OBJECT.resources; all else is passed on.

CMake puts it in front of every CUDA compile: tools/nvcc_launcher.py [ccache ...] nvcc ... -o OBJECT.
"""

import subprocess
import sys


def main():
    command = sys.argv[1:]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    ptxas, rest = [], []
    for line in result.stderr.splitlines():
        ours = line.startswith("ptxas info") or line.lstrip().endswith(("bytes cumulative stack size",
                                                                       "bytes spill loads"))
        (ptxas if ours else rest).append(line)
    if rest:
        print("\n".join(rest), file=sys.stderr)
    if ptxas and "-o" in command:
        with open(command[command.index("-o") + 1] + ".resources", "w", encoding="utf-8") as out:
            out.write("\n".join(ptxas) + "\n")
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
