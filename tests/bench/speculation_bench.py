#!/usr/bin/env python3
"""What speculation saves: a coordinator with a draft worker, or with prompt lookup alone, real programs.

  tests/bench/speculation_bench.py draft PROMPTS     the demo model and its draft over story prompts
  tests/bench/speculation_bench.py lookup PROMPTS    no draft worker; each prompt quotes its own answer
  tests/bench/speculation_bench.py wide PROMPTS      `draft` with many streams at once

PROMPTS: JSON lines with a key "prompt" or "text". Every prompt is answered with speculation off, at a
fixed depth and with auto depth, in turns; the words must be equal. Standard library only.
draft_bench.cc measures drafts of a given acceptance, and drafting ahead against drafting in turns.
"""

import argparse
import concurrent.futures
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READY_SECONDS = 60


class Server:
    """A coordinator, with a draft worker if asked; both end with this process."""

    def __init__(self, args, folder, draft):
        self.bin = Path(args.bin).resolve()
        self.processes = []
        self.log = open(folder / "log", "w")
        command = [
            "brigade-coordinator", "--model", args.model, "--threads", "1", "--listen", "127.0.0.1:0", "--port-file",
            folder / "port", "--metrics-listen", "", "--kv-memory", "64M", "--exit-on-stdin-eof"
        ]
        if draft:
            command += ["--drafts", "--control-listen", "127.0.0.1:0", "--control-port-file", folder / "control"]
        self.start(command)
        self.server = f"127.0.0.1:{self.read(folder / 'port')}"
        if draft:
            self.start([
                "brigade-draft-worker", "--join", f"127.0.0.1:{self.read(folder / 'control')}", "--model", args.draft,
                "--threads", "1", "--exit-on-stdin-eof"
            ])
        self.brigade("status", "--wait-ready", READY_SECONDS)

    def start(self, command):
        self.processes.append(
            subprocess.Popen([str(self.bin / command[0])] + [str(word) for word in command[1:]],
                             stdin=subprocess.PIPE, stdout=self.log, stderr=self.log))

    def read(self, path):
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if path.exists() and path.read_text().strip():
                return path.read_text().strip()
            time.sleep(0.02)
        raise SystemExit(f"{path.name} did not appear")

    def brigade(self, verb, *flags):
        command = [str(self.bin / "brigade"), verb, "--server", self.server] + [str(flag) for flag in flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}{done.stdout}")
        return done.stdout

    def generate(self, prompt, speculation, tokens):
        """(text, usage, seconds from the first token to the last)."""
        text, usage, decode = "", {}, 0.0
        out = self.brigade("generate", "-p", prompt, "-t", "0", "-m", tokens, "--json", "--speculation", speculation,
                           "--no-prefix-cache")
        for line in out.splitlines():
            event = json.loads(line)
            text += event.get("text", "")
            if event["event"] == "finished":
                usage = event["usage"]
                timing = event["timing"]
                decode = float(timing["total"]) - float(timing["first_token"])
        return text, usage, decode

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(30)


def read_prompts(path, count):
    prompts = []
    for line in Path(path).read_text().splitlines():
        record = json.loads(line)
        prompts.append(record.get("prompt") or record["text"])
    if len(prompts) < count:
        prompts = (prompts * (count // len(prompts) + 1))
    return prompts[:count]


class Total:
    """Sums over the answers of one setting."""

    def __init__(self):
        self.sums = {}
        self.drafted_at, self.accepted_at = [], []
        self.seconds_a_token = []

    def add(self, usage, seconds):
        for key in ("completion_tokens", "target_passes", "drafted_tokens", "accepted_drafts", "run_ahead_drafts",
                    "early_drafts", "draft_wait"):
            self.sums[key] = self.sums.get(key, 0) + float(usage.get(key, 0))
        self.sums["seconds"] = self.sums.get("seconds", 0) + seconds
        for key, at in (("drafted_by_position", self.drafted_at), ("accepted_by_position", self.accepted_at)):
            for position, count in enumerate(usage.get(key, [])):
                at.extend([0] * (position + 1 - len(at)))
                at[position] += int(count)
        self.seconds_a_token.append(seconds / max(1.0, float(usage.get("completion_tokens", 0))))

    def share(self, part, whole):
        return self.sums[part] / self.sums[whole] if self.sums[whole] else 0.0


def print_totals(totals):
    base = totals["off"]
    print("| speculation | tokens | passes | tokens a pass | drafts accepted | passes saved | time a token, of off |")
    print("|---|---|---|---|---|---|---|")
    for name, total in totals.items():
        sums = total.sums
        drafts = (f"{total.share('accepted_drafts', 'drafted_tokens'):.2f} of {sums['drafted_tokens']:.0f}"
                  if sums["drafted_tokens"] else "-")
        speed = statistics.median(total.seconds_a_token) / statistics.median(base.seconds_a_token)
        print(f"| {name} | {sums['completion_tokens']:.0f} | {sums['target_passes']:.0f} | "
              f"{total.share('completion_tokens', 'target_passes'):.2f} | {drafts} | "
              f"{1 - sums['target_passes'] / base.sums['target_passes']:.0%} | {speed:.2f} |")
    print()
    print("| speculation | accepted with all before it, by position | made ignorant of the verdict before | "
          "of those here before it | wait for drafts, of decode time |")
    print("|---|---|---|---|---|")
    for name, total in totals.items():
        if not total.sums["drafted_tokens"]:
            continue
        accepted = total.accepted_at + [0] * len(total.drafted_at)
        by_position = ", ".join(f"{accepted[i] / count:.2f}" for i, count in enumerate(total.drafted_at) if count)
        print(f"| {name} | {by_position} | {total.share('run_ahead_drafts', 'drafted_tokens'):.2f} | "
              f"{total.share('early_drafts', 'drafted_tokens'):.2f} | {total.share('draft_wait', 'seconds'):.1%} |",
              flush=True)


def run(args, server, prompts, streams):
    modes = {"off": "off", f"depth {args.depth}": str(args.depth), "auto": "auto"}
    totals = {name: Total() for name in modes}
    changed = 0

    def one(index):
        names = list(modes)
        order = names[index % 3:] + names[:index % 3]
        return {name: server.generate(prompts[index], modes[name], args.tokens) for name in order}

    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        for answers in pool.map(one, range(len(prompts))):
            changed += any(answers[name][0] != answers["off"][0] for name in modes)
            for name in modes:
                totals[name].add(answers[name][1], answers[name][2])
    print(f"{len(prompts)} prompts, {streams} at once, {changed} with other words")
    print_totals(totals)
    return 1 if changed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draft", "lookup", "wide"])
    parser.add_argument("prompts")
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--model", default="models/demo/target")
    parser.add_argument("--draft", default="models/demo/draft")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--streams", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(args, Path(folder), draft=args.what != "lookup")
        try:
            prompts = read_prompts(args.prompts, args.count)
            if args.what == "lookup":
                # Each prompt, its answer, and the prompt again: the answer stands in the prompt.
                prompts = [f"{p}{server.generate(p, 'off', args.tokens)[0]}\n\n{p}" for p in prompts]
            sys.exit(run(args, server, prompts, args.streams if args.what == "wide" else 1))
        finally:
            server.close()


if __name__ == "__main__":
    main()
