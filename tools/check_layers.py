#!/usr/bin/env python3
"""Fails when an include points up: rooms depend one way only (see ARCHITECTURE.md).

Usage: tools/check_layers.py [ROOT]. Exit code 1 with one line per wrong include.
"""
import pathlib
import re
import sys

# A room may include itself and what is listed. Longest matching prefix wins.
MAY_INCLUDE = {
    "kernels/core": [],
    "kernels/ops": ["kernels"],
    "kernels/cpu": ["kernels"],
    "kernels/cuda": ["kernels"],
    "kernels/reference": ["kernels"],
    "expert_parallel/routing": ["kernels"],
    "expert_parallel/transport": ["kernels"],
    "expert_parallel/experts": ["kernels", "expert_parallel/routing", "expert_parallel/transport"],
    "expert_parallel/exchange": ["kernels", "expert_parallel"],
    "runtime/files": ["kernels/core"],
    "runtime/device": ["kernels/core", "expert_parallel/transport"],
    "runtime/tokenizer": ["kernels/core", "runtime/files"],
    "runtime/request": ["kernels/core"],
    "runtime/stream": ["kernels", "runtime/request", "runtime/sampling", "runtime/tokenizer"],
    # Log-probabilities are reported in the stream's types; the queue itself knows no sampling.
    "runtime/sampling": ["kernels", "runtime/request", "runtime/stream/token_stream.h"],
    "runtime/model": ["kernels", "expert_parallel", "runtime/files"],
    "runtime/scheduler": ["kernels/core", "runtime/request", "runtime/stream", "runtime/model/step_model.h"],
    "runtime/speculative": ["kernels", "runtime/model", "runtime/sampling", "runtime/stream",
                            "runtime/request", "runtime/tokenizer", "proto", "brigade"],
    # A draft worker runs a model of its own: of the scheduler's room it needs only the accounts of KV blocks.
    "runtime/draft_worker": ["kernels", "runtime/model", "runtime/sampling", "runtime/request", "runtime/speculative",
                             "runtime/scheduler/kv_blocks.h", "runtime/tokenizer", "runtime/joining",
                             "runtime/device", "cluster_file", "proto", "brigade"],
    # The control port is a door like the API's: one set of rules for addresses, TLS and tokens.
    "runtime/cluster": ["kernels/core", "expert_parallel", "proto", "brigade", "runtime/files",
                        "runtime/api/server_credentials.h", "runtime/api/door_options.h"],
    "runtime/engine": ["kernels", "expert_parallel", "runtime/scheduler", "runtime/model", "runtime/sampling",
                       "runtime/stream", "runtime/request", "runtime/tokenizer", "runtime/speculative"],
    "runtime/api": ["kernels/core", "runtime/engine/generator.h", "runtime/stream", "runtime/request",
                    "runtime/sampling", "runtime/tokenizer", "runtime/model/model_spec.h",
                    "runtime/cluster/cluster_status.h", "runtime/speculative/draft_status.h", "proto",
                    "brigade"],
    "runtime/joining": ["kernels/core", "runtime/device", "cluster_file", "proto", "brigade"],
    "runtime/worker": ["kernels", "expert_parallel", "runtime/joining", "runtime/model", "runtime/sampling",
                       "runtime/files", "runtime/device", "cluster_file", "proto", "brigade"],
    "runtime/app": ["kernels", "expert_parallel", "runtime", "cluster_file", "proto", "brigade"],
    "cluster_file": ["kernels/core", "proto", "brigade"],
    "launcher": ["kernels/core", "cluster_file", "proto", "brigade"],
    "tests": ["kernels", "expert_parallel", "runtime", "launcher", "cluster_file", "proto", "brigade"],
}
ROOMS = ("kernels/", "expert_parallel/", "runtime/", "launcher/", "cluster_file/", "tests/", "proto/", "brigade/")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
# Headers of the outside world that only named files may see.
RESTRICTED = {
    r"^(ucp|uct|ucs)/": re.compile(r"expert_parallel/transport/ucx_\w+\.cc$|tests/"),
    r"^(nccl|cuda|cublas)": re.compile(r"kernels/cuda/|_cuda\.cc$|nccl_transport|tests/"),
}


def room_of(path):
    best = max((room for room in MAY_INCLUDE if path.startswith(room + "/")), key=len, default=None)
    return best


def problems(root):
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".h", ".cc", ".cu", ".cuh") or not path.is_file():
            continue
        name = path.relative_to(root).as_posix()
        if not name.startswith(ROOMS):
            continue
        room = room_of(name)
        if room is None:
            yield f"{name}: no rule for this folder in tools/check_layers.py"
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = match.group(1)
            if target.startswith(("../", "./")):
                yield f"{name}:{number}: write includes from the repository root, not {target}"
            for pattern, allowed in RESTRICTED.items():
                if re.search(pattern, target) and not allowed.search(name):
                    yield f"{name}:{number}: {target} may not be included here"
            if not target.startswith(ROOMS) or target.startswith(room + "/"):
                continue
            if not any(target == ok or target.startswith(ok + "/") for ok in MAY_INCLUDE[room]):
                yield f"{name}:{number}: {room} may not include {target}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    found = list(problems(root.resolve()))
    print("\n".join(found) if found else "layers: every include points down")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
