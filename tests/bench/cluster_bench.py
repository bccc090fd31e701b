#!/usr/bin/env python3
"""Ratios of real clusters on this host: real programs, two settings in turns, medians over rounds.

  tests/bench/cluster_bench.py workers MODEL   two workers against none: decode 1 and 16, prefill 512
  tests/bench/cluster_bench.py overlap MODEL   two microbatches against one, one thread a process
  tests/bench/cluster_bench.py idle MODEL      CPU of a coordinator and two workers without work

With --delay the worker of `overlap` is on another host: a network namespace behind an emulated link
that takes so many milliseconds each way (needs root).

Both settings run at the same time, and only one of them works at a time. Standard library only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READY_SECONDS = 300


class Hosts:
    """Where processes run: on this host, or in two namespaces with a slow link between them."""

    def __init__(self, args):
        self.address = "127.0.0.1"
        self.emulator = None
        if args.delay <= 0:
            return
        self.names = [f"brigade-{os.getpid()}-{name}" for name in ("c", "w")]
        self.address = "10.77.1.1"
        self.emulator = subprocess.Popen([str(Path(args.bin).resolve() / "link_emulator"), "1"] + self.names,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.emulator.stdout.readline() != "ready\n":
            raise SystemExit("--delay needs root, /dev/net/tun and the ip program")
        self.emulator.stdin.write(f"0 delay {args.delay}\n")
        self.emulator.stdin.flush()
        self.emulator.stdout.readline()

    def prefix(self, host):
        """Words before a command on the coordinator's (0) or the workers' (1) host."""
        return ["ip", "netns", "exec", self.names[host]] if self.emulator else []

    def flags(self):
        return ["--insecure", "--trusted-network"] if self.emulator else []

    def close(self):
        if self.emulator:
            self.emulator.stdin.close()
            self.emulator.wait(30)


class Cluster:
    """A coordinator and its workers; ends them when it is closed, and they end with this process."""

    def __init__(self, args, folder, name, workers, threads, microbatches, hosts=None):
        self.hosts = hosts or Hosts(argparse.Namespace(delay=0))
        self.bin = Path(args.bin).resolve()
        self.folder = folder
        self.name = name
        self.processes = []
        self.log = open(folder / f"{name}.log", "w")
        command = [
            "brigade-coordinator", "--model", args.model, "--threads", threads, "--listen", f"{self.hosts.address}:0",
            "--port-file", folder / f"{name}.port", "--metrics-listen", "127.0.0.1:0", "--metrics-port-file",
            folder / f"{name}.metrics", "--kv-memory", "512M", "--max-sequences", "32", "--token-budget", "512",
            "--prefill-chunk", "512", "--exit-on-stdin-eof"
        ]
        if workers:
            command += [
                "--workers", workers, "--control-listen", f"{self.hosts.address}:0", "--control-port-file",
                folder / f"{name}.control", "--microbatches", microbatches
            ] + self.hosts.flags()
        self.start(command, 0)
        if workers:
            control = self.read("control")
            for rank in range(workers):
                self.start([
                    "brigade-expert-worker", "--join", f"{self.hosts.address}:{control}", "--model", args.model, "--threads",
                    "1", "--name", f"{name}{rank}", "--exit-on-stdin-eof"
                ] + self.hosts.flags(), 1)
        self.server = f"{self.hosts.address}:{self.read('port')}"
        self.brigade("status", "--wait-ready", READY_SECONDS)

    def start(self, command, host):
        command = self.hosts.prefix(host) + [str(self.bin / command[0])] + [str(word) for word in command[1:]]
        self.processes.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.log, stderr=self.log))

    def read(self, what):
        path = self.folder / f"{self.name}.{what}"
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if path.exists() and path.read_text().strip():
                return path.read_text().strip()
            if self.processes[0].poll() is not None:
                break
            time.sleep(0.05)
        raise SystemExit(f"{self.name} did not start:\n" + (self.folder / f"{self.name}.log").read_text()[-2000:])

    def brigade(self, verb, *flags):
        command = self.hosts.prefix(0) + [self.bin / "brigade", verb, "--server", self.server] + [str(flag) for flag in flags]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}{done.stdout}")
        return done.stdout

    def replay(self, requests, streams, prompt, tokens):
        """brigade bench over random prompts; prompt and output lengths in tokens."""
        trace = self.folder / "trace.jsonl"
        line = json.dumps({"timestamp": 0, "input_length": prompt, "output_length": tokens})
        trace.write_text((line + "\n") * requests)
        return json.loads(
            self.brigade("bench", "--trace", trace, "--rate", 1000, "-c", streams, "--no-prefix-cache",
                         "--temperature", 0, "--json"))

    def metric(self, name):
        url = f"http://127.0.0.1:{self.read('metrics')}/metrics"
        program = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1]).read().decode())"
        command = self.hosts.prefix(0) + [sys.executable, "-c", program, url]
        for line in subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise SystemExit(f"no metric {name}")

    def cpu_seconds(self):
        """User and system time of each process so far."""
        ticks = os.sysconf("SC_CLK_TCK")
        times = []
        for process in self.processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            times.append((int(fields[11]) + int(fields[12])) / ticks)
        return times

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def decode(cluster, streams, tokens):
    """Tokens per second while all streams decode: from the median gap between tokens."""
    report = cluster.replay(streams, streams, 8, tokens)
    return streams / report["between_tokens_s"]["p50"]


def prefill(cluster, prompt):
    report = cluster.replay(2, 1, prompt, 1)
    return prompt / report["time_to_first_token_s"]["p50"]


def prefill_many(cluster):
    report = cluster.replay(16, 16, 128, 1)
    return report["prompt_tokens"] / report["seconds"]


def compare(args, pair, measures):
    """Interleaved rounds of each measure on both clusters; prints medians and their ratio."""
    for name, measure in measures:
        values = ([], [])
        for round_number in range(args.rounds + 1):
            for side in ((0, 1) if round_number % 2 else (1, 0)):
                value = measure(pair[side])
                if round_number > 0:  # the first is a warm-up
                    values[side].append(value)
        ours, theirs = statistics.median(values[0]), statistics.median(values[1])
        print(f"| {name} | {pair[0].name} {ours:.1f} | {pair[1].name} {theirs:.1f} | {ours / theirs:.2f} |", flush=True)


def run_workers(args, folder):
    pair = (Cluster(args, folder, "two-workers", 2, 1, args.microbatches), Cluster(args, folder, "no-worker", 0, 2, 1))
    print("| tokens/s | | | ratio |\n|---|---|---|---|")
    compare(args, pair, [("decode, 1 stream", lambda c: decode(c, 1, args.tokens)),
                         ("decode, 16 streams", lambda c: decode(c, 16, args.tokens)),
                         ("prefill of 512", lambda c: prefill(c, 512))])
    return pair


def run_overlap(args, folder):
    hosts = Hosts(args)
    pair = (Cluster(args, folder, "overlap", 1, 1, 2, hosts), Cluster(args, folder, "one-microbatch", 1, 1, 1, hosts))
    print("| tokens/s | | | ratio |\n|---|---|---|---|")
    shares = {}

    def with_share(name, measure):

        def measured(cluster):
            names = ("brigade_exchange_seconds_total", "brigade_covered_exchange_seconds_total")
            before = [cluster.metric(metric) for metric in names]
            value = measure(cluster)
            total, covered = (cluster.metric(metric) - start for metric, start in zip(names, before))
            shares.setdefault((name, cluster.name), []).append(covered / total if total else 0)
            return value

        return name, measured

    compare(args, pair, [with_share("decode, 16 streams", lambda c: decode(c, 16, args.tokens)),
                         with_share("prefill of 16 x 128", prefill_many)])
    for (name, cluster), values in shares.items():
        print(f"covered share of exchange time, {name}, {cluster}: {statistics.median(values[1:] or values):.2f}")
    return pair + (hosts,)


def run_idle(args, folder):
    cluster = Cluster(args, folder, "idle", 2, 1, args.microbatches)
    decode(cluster, 4, 16)
    time.sleep(3)
    before, start = cluster.cpu_seconds(), time.monotonic()
    time.sleep(args.seconds)
    elapsed = time.monotonic() - start
    shares = [(after - first) / elapsed * 100 for first, after in zip(before, cluster.cpu_seconds())]
    print("idle, % of a core: coordinator {:.2f}, workers {:.2f} and {:.2f}, sum {:.2f}".format(
        *shares, sum(shares)))
    return (cluster,)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("workers", "overlap", "idle"))
    parser.add_argument("model", help="folder, e.g. of tools/make_random_model.py")
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--microbatches", type=int, default=2, help="of workers and idle")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32, help="to decode, per stream and round")
    parser.add_argument("--delay", type=float, default=0, help="of overlap's link, milliseconds each way")
    parser.add_argument("--seconds", type=float, default=20, help="to watch an idle cluster")
    args = parser.parse_args()
    args.model = str(Path(args.model).resolve())
    with tempfile.TemporaryDirectory() as folder:
        clusters = {"workers": run_workers, "overlap": run_overlap, "idle": run_idle}[args.mode](args, Path(folder))
        for cluster in clusters:
            cluster.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
