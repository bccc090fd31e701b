"""The steps of the device check, in their order, and how programs are started for them."""

import contextlib
import dataclasses
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Callable

import machine

PROMPTS = [
    "Once upon a time, there was a little girl named Lily who found a small red boat.",
    "The old man went to the market and",
    "Tom and his dog",
]
READY_SECONDS = 40


class NotAvailable(Exception):
    """The machine cannot do this step; the text says why."""


class Failed(Exception):
    """The step ran and something was wrong."""


@dataclasses.dataclass
class Step:
    name: str
    limit: int  # seconds
    purpose: str
    run: Callable  # (bench, deadline) -> (what was seen, table or None, data or None)


class Bench:
    """Starts our programs with the libraries of the bundle and of the machine."""

    def __init__(self, here, found, seed):
        self.here, self.seed = here, seed
        self.bin = here / "bin"
        self.module = self.bin / "brigade_cuda.so"
        folders = [str(here / "lib")] + [str(Path(path).parent) for path in found.values() if path]
        # The tree's demo model: beside the bundle, or where the script is started.
        places = [here.parent / "models/demo", Path.cwd() / "models/demo"]
        self.models = next((place for place in places if place.is_dir()), None)
        self.missing = [name for name, path in found.items() if path is None]
        self.environment = dict(os.environ, BRIGADE_TEST_SEED=str(seed), BRIGADE_CUDA_MODULE=str(self.module))
        self.libraries = os.pathsep.join(dict.fromkeys(folders))
        self.loader = []
        self.plain_text = None  # the answers of the CPU

    def command(self, program, *words):
        return self.loader + [str(self.bin / program)] + [str(word) for word in words]

    def start_of_programs(self):
        """Finds out how programs start here; one sentence on what the module says."""
        # The machine's C library first; where it is older than ours, ours with its own loader.
        system = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
        own = Path(tempfile.mkdtemp())
        for path in (self.here / "lib").iterdir():
            if path.name not in system:
                (own / path.name).symlink_to(path)
        native = os.pathsep.join([str(own)] + self.libraries.split(os.pathsep)[1:])
        tries = [([], native), ([str(self.here / "lib/ld-linux-x86-64.so.2"), "--library-path", self.libraries], "")]
        error = ""
        for self.loader, path in tries:
            self.environment["LD_LIBRARY_PATH"] = path
            done = subprocess.run(self.command("brigade-expert-worker", "--version"), env=self.environment,
                                  capture_output=True, text=True, timeout=60)
            if done.returncode == 0:
                break
            error = done.stderr.strip()
        else:
            raise SystemExit(f"our programs do not start here: {error}")
        if self.missing:
            return f"{done.stdout.strip()}; not found on this machine: {', '.join(self.missing)}"
        opened = subprocess.run(self.command("cuda_bench", "--probe"), env=self.environment, capture_output=True,
                                text=True, timeout=60)
        return f"{done.stdout.strip()}; the module says: {(opened.stdout + opened.stderr).strip()}"

    def run(self, step, limit):
        started = time.monotonic()
        result = {"name": step.name, "outcome": "passed", "what": "", "table": None, "data": None}
        try:
            if limit < 2:
                raise NotAvailable("no time left")
            result["what"], result["table"], result["data"] = step.run(self, started + limit)
        except NotAvailable as why:
            result.update(outcome="not available", what=str(why))
        except Failed as why:
            result.update(outcome="FAILED", what=str(why))
        except subprocess.TimeoutExpired as why:
            result.update(outcome="timed out", what=f"after {why.timeout:.0f} s: {' '.join(map(str, why.cmd[:3]))}")
        result["seconds"] = time.monotonic() - started
        return result

    def output(self, command, deadline, expect_success=True):
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True,
                              timeout=max(1.0, deadline - time.monotonic()))
        if expect_success and done.returncode != 0:
            raise Failed(f"exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-1500:]}")
        return done.stdout

    @contextlib.contextmanager
    def cluster(self, deadline, device, workers=(), more=(), draft=False):
        """A coordinator on `device` with workers on theirs; yields the server's address."""
        processes = []
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            log = open(folder / "log", "w")

            def start(program, *words):
                processes.append(subprocess.Popen(self.command(program, *words), stdin=subprocess.PIPE, stdout=log,
                                                  stderr=log, env=self.environment))

            def port(file):
                until = min(deadline, time.monotonic() + READY_SECONDS)
                while time.monotonic() < until:
                    if any(process.poll() is not None for process in processes):
                        break
                    if (folder / file).exists() and (folder / file).read_text().strip():
                        return (folder / file).read_text().strip()
                    time.sleep(0.05)
                raise Failed(f"not started: {(folder / 'log').read_text()[-1500:]}")

            cuda = ["--cuda-module", self.module] if device.startswith("cuda") else []
            if self.models is None:
                raise NotAvailable("models/demo of the source tree is not here")
            model = self.models / "target"
            try:
                start("brigade-coordinator", "--model", model, "--device", device, *cuda, "--listen", "127.0.0.1:0",
                      "--port-file", folder / "port", "--metrics-listen", "", "--kv-memory", "256M", "--workers",
                      len(workers), "--control-listen", "127.0.0.1:0", "--control-port-file", folder / "control",
                      "--exit-on-stdin-eof", *(["--drafts"] if draft else []), *more)
                control = port("control") if workers or draft else None
                for index, on in enumerate(workers):
                    start("brigade-expert-worker", "--join", f"127.0.0.1:{control}", "--model", model, "--name",
                          f"worker-{index}", "--device", on, *cuda, "--exit-on-stdin-eof", *more)
                if draft:
                    start("brigade-draft-worker", "--join", f"127.0.0.1:{control}", "--model",
                          self.models / "draft", "--exit-on-stdin-eof")
                server = f"127.0.0.1:{port('port')}"
                done = subprocess.run(self.command("brigade", "status", "--server", server, "--wait-ready", READY_SECONDS),
                                      env=self.environment, capture_output=True, text=True, timeout=READY_SECONDS + 5)
                if done.returncode != 0:
                    raise Failed(f"not ready: {done.stderr} {(folder / 'log').read_text()[-1500:]}")
                yield server
            finally:
                for process in processes:
                    process.stdin.close()
                for process in processes:
                    try:
                        process.wait(10)
                    except subprocess.TimeoutExpired:
                        process.kill()
                log.close()

    def answers(self, server, deadline, speculation="off", tokens=64):
        """(everything that must not change, tokens a second of the last prompt)."""
        seen, speed = [], 0.0
        for prompt in PROMPTS:
            out = self.output(self.command("brigade", "generate", "--server", server, "-p", prompt, "--seed", 7,
                                           "--temperature", "0.7", "-m", tokens, "--logprobs", "1", "--json",
                                           "--speculation", speculation), deadline)
            for line in out.splitlines():
                event = json.loads(line)
                if event["event"] == "finished":
                    timing, usage = event["timing"], event["usage"]
                    decode = float(timing["total"]) - float(timing["first_token"])
                    speed = (int(usage["completion_tokens"]) - 1) / decode if decode > 0 else 0.0
                else:
                    seen.append([event.get("text"), event.get("tokens"), event.get("logprobs")])
        return seen, speed

    def cpu_answers(self, deadline):
        if self.plain_text is None:
            with self.cluster(deadline, "cpu") as server:
                self.plain_text = self.answers(server, deadline)[0]
        return self.plain_text


def parity(bench, deadline):
    out = bench.output(bench.command("cuda_device_parity", "--gtest_color=no"), deadline)
    return out.strip().splitlines()[-1], None, None


def sanitize(tool_name, filter_words):
    def run(bench, deadline):
        tool = machine.compute_sanitizer()
        if tool is None:
            raise NotAvailable("compute-sanitizer is not on this machine")
        if bench.loader:
            raise NotAvailable("our programs need their own loader here")
        bench.output([tool, "--tool", tool_name, "--error-exitcode", "9"] +
                     bench.command("cuda_device_parity", f"--gtest_filter={filter_words}"), deadline)
        return f"{tool_name}: no error", None, None
    return run


def end_to_end(workers, more=(), draft=False, gpus=1):
    def run(bench, deadline):
        if len(machine.gpus()) < gpus:
            raise NotAvailable(f"needs {gpus} GPUs, this machine has {len(machine.gpus())}")
        expected = bench.cpu_answers(deadline)
        with bench.cluster(deadline, "cuda:0", workers, more, draft) as server:
            got, speed = bench.answers(server, deadline, "4" if draft else "off")
        if got != expected:
            first = next((i for i, pair in enumerate(zip(got, expected)) if pair[0] != pair[1]), min(len(got), len(expected)))
            raise Failed(f"tokens or log-probabilities differ from the CPU's from event {first} on")
        return f"bits of the CPU; {speed:.1f} tokens/s", None, {"tokens_per_second": speed}
    return run


def timings(bench, deadline):
    out = bench.output(bench.command("cuda_bench", "--json"), deadline)
    data = json.loads(out)
    rows = [f"{'what':<44} {'us':>10} {'GB/s':>9} {'of copy':>8} {'TFLOP/s':>9} {'of GEMM':>8}"]
    for row in data["rows"]:
        rows.append(f"{row['name']:<44} {row['us']:>10.1f} {row['gb_per_s']:>9.1f} {row['of_copy']:>8.2f} "
                    f"{row['tflop_per_s']:>9.2f} {row['of_gemm']:>8.3f}")
    return data["summary"], "\n".join(rows), data


STEPS = [
    Step("parity", 90, "every kernel against the CPU, fresh inputs, poisoned outputs", parity),
    Step("local experts", 40, "the demo model, coordinator and experts on one GPU", end_to_end([])),
    Step("host-staged workers", 40, "two workers on the same GPU, rows through the host",
         end_to_end(["cuda:0", "cuda:0"], ["--data-plane", "host"])),
    Step("draft worker", 40, "speculation with the target on the GPU", end_to_end([], draft=True)),
    Step("NCCL", 60, "workers on GPUs of their own, rows through NCCL",
         end_to_end(["cuda:1"], ["--data-plane", "nccl"], gpus=2)),
    Step("timings", 60, "bytes/s and FLOP/s a kernel beside a copy and a GEMM; a layer stack", timings),
    Step("memcheck", 45, "compute-sanitizer on small cases", sanitize("memcheck", "*Small*")),
    Step("racecheck", 45, "compute-sanitizer on small cases", sanitize("racecheck", "*Small*")),
]
