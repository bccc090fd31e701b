"""The steps of the device check, in their order, and how programs are started for them."""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

import machine

# (prompt, seed): the first few are asked one after the other in every step with a cluster.
PROMPTS = [
    "Once upon a time, there was a little girl named Lily who found a small red boat.",
    "The old man went to the market and",
    "Tom and his dog",
    "It was raining, so",
]
REQUESTS = [(prompt, seed) for seed in (7, 11) for prompt in PROMPTS]
ALONE = 3
READY_SECONDS = 40
# One test of each family: compute-sanitizer makes kernels many times slower.
SANITIZED = ["RowOpsParity.Combine", "RowOpsParity.RopeAndKvWrite", "RowOpsParity.RmsNorm",
             "RouterParity.Families", "RouterParity.GroupTerms", "SamplingParity.*", "MatmulParity.SpecialNumbers",
             "ExpertFfnParity.MixedGroups", "AttentionOpParity.Window", "FastOp.Probe"]
QUICK_PARITY = ["RouterParity.Families", "SamplingParity.AcceptedDrafts"]
PASSED = re.compile(r"\[  PASSED  \] (\d+) test")


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

    def __init__(self, here, found, seed, quick=False):
        self.here, self.found, self.seed, self.quick = here, found, seed, quick
        self.bin = here / "bin"
        self.module = self.bin / "brigade_cuda.so"
        folders = [str(here / "lib")] + [str(Path(path).parent) for path in found.values() if path]
        folders += machine.driver_folders()
        # The tree's demo model: beside the bundle, or where the script is started.
        places = [here.parent / "models/demo", Path.cwd() / "models/demo"]
        self.models = next((place for place in places if place.is_dir()), None)
        self.missing = [name for name, path in found.items() if path is None]
        self.environment = dict(os.environ, BRIGADE_TEST_SEED=str(seed), BRIGADE_CUDA_MODULE=str(self.module))
        self.libraries = os.pathsep.join(dict.fromkeys(folders))
        self.loader = []
        self.gpus = []
        self.tokens = 8 if quick else 64
        self.requests = REQUESTS[:3] if quick else REQUESTS
        self.cpu = None  # the CPU's answers to the requests

    def command(self, program, *words):
        return self.loader + [str(self.bin / program)] + [str(word) for word in words]

    def start_of_programs(self):
        """Finds out how programs start here and which GPUs the module sees; what it says, in one sentence."""
        # The machine's C library first; where it is older than ours, ours with its own loader.
        system = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
        own = Path(tempfile.mkdtemp())
        for path in (self.here / "lib").iterdir() if (self.here / "lib").is_dir() else []:
            if path.name not in system:
                (own / path.name).symlink_to(path)
        native = os.pathsep.join([str(own)] + self.libraries.split(os.pathsep)[1:])
        tries = [([], native)]
        loader = self.here / "lib/ld-linux-x86-64.so.2"
        if loader.exists():
            tries.append(([str(loader), "--library-path", self.libraries], ""))
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
        opened = subprocess.run(self.command("cuda_bench", "--probe"), env=self.environment, capture_output=True,
                                text=True, timeout=60)
        said = (opened.stdout + opened.stderr).strip()
        self.gpus = machine.gpus(opened.stdout) if opened.returncode == 0 else []
        missing = f"; not found on this machine: {', '.join(self.missing)}" if self.missing else ""
        return f"{done.stdout.strip()}{missing}; the module says: {said}"

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
        except Exception as why:  # the other steps still say something
            result.update(outcome="FAILED", what=f"{type(why).__name__}: {why}")
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
                ready = max(1, min(READY_SECONDS, int(deadline - time.monotonic())))
                done = subprocess.run(self.command("brigade", "status", "--server", server, "--wait-ready", ready),
                                      env=self.environment, capture_output=True, text=True, timeout=ready + 5)
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

    def answer(self, server, deadline, request, speculation):
        """(everything that must not change, tokens a second)."""
        prompt, seed = request
        out = self.output(self.command("brigade", "generate", "--server", server, "-p", prompt, "--seed", seed,
                                       "--temperature", "0.7", "-m", self.tokens, "--logprobs", "1", "--json",
                                       "--speculation", speculation), deadline)
        seen, speed = [], 0.0
        for event in map(json.loads, out.splitlines()):
            if event["event"] == "finished":
                timing, usage = event["timing"], event["usage"]
                decode = float(timing["total"]) - float(timing["first_token"])
                speed = (int(usage["completion_tokens"]) - 1) / decode if decode > 0 else 0.0
            else:
                seen.append([event.get("text"), event.get("tokens"), event.get("logprobs")])
        return seen, speed

    def answers(self, server, deadline, requests, at_once=1, speculation="off"):
        """(what must not change of each request, tokens a second of the last one)."""
        with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
            results = list(threads.map(lambda request: self.answer(server, deadline, request, speculation), requests))
        return [events_joined(seen) for seen, _ in results], results[-1][1]

    def cpu_answers(self, deadline):
        if self.cpu is None:
            with self.cluster(deadline, "cpu") as server:
                self.cpu = self.answers(server, deadline, self.requests)[0]
        return self.cpu


def events_joined(events):
    """One answer as (text, tokens, log-probabilities), however many tokens an event held."""
    joined = ["", [], []]
    for text, tokens, logprobs in events:
        joined = [joined[0] + (text or ""), joined[1] + (tokens or []), joined[2] + (logprobs or [])]
    return joined


def digest(answers):
    return hashlib.sha256(json.dumps(answers).encode()).hexdigest()[:16]


def expect_equal(got, expected, where):
    for index, (ours, cpu) in enumerate(zip(got, expected)):
        if ours != cpu:
            raise Failed(f"{where}: request {index} has not the CPU's tokens and log-probabilities: "
                         f"{ours[0][:80]!r} for {cpu[0][:80]!r}")


def tests_passed(out, at_least=1):
    """How many tests a program ran; a filter that matches too few is a failure."""
    found = PASSED.search(out)
    if not found or int(found[1]) < at_least:
        raise Failed(f"{found[1] if found else 'no'} tests ran, not {at_least} or more")
    return int(found[1])


def parity_command(bench, filters, *more):
    chosen = [f"--gtest_filter={':'.join(filters)}"] if filters else []
    return bench.command("cuda_device_parity", "--gtest_color=no", *chosen, *more)


def parity(bench, deadline):
    filters = QUICK_PARITY if bench.quick else []
    out = bench.output(parity_command(bench, filters), deadline)
    return f"{tests_passed(out, len(filters) or 1)} tests", None, None


def sanitize(tool_name):
    def run(bench, deadline):
        if bench.quick:  # that its tests are there
            listed = bench.output(parity_command(bench, SANITIZED, "--gtest_list_tests"), deadline)
            names = [line for line in listed.splitlines() if line.startswith("  ")]
            if len(names) < len(SANITIZED):
                raise Failed(f"only {len(names)} tests match {SANITIZED}")
            raise NotAvailable(f"left out: it would run {len(names)} tests")
        tool = machine.compute_sanitizer()
        if tool is None:
            raise NotAvailable("compute-sanitizer is not on this machine")
        # Errors that calls return are handled by the programs, and some of them are asked for.
        own = ["--report-api-errors", "no"] if tool_name == "memcheck" else []
        command = [tool, "--tool", tool_name, "--error-exitcode", "9", *own] + parity_command(bench, SANITIZED)
        done = subprocess.run(command, env=bench.environment, capture_output=True, text=True,
                              timeout=max(1.0, deadline - time.monotonic()))
        out = done.stdout + done.stderr
        if done.returncode != 0 and ("Device not supported" in out or bench.loader and done.returncode != 9):
            raise NotAvailable(f"compute-sanitizer does not work here: {out.strip()[-300:]}")
        if done.returncode != 0:
            raise Failed(f"exit code {done.returncode}: {out.strip()[-1500:]}")
        return f"{tool_name}: no error in {tests_passed(out, len(SANITIZED))} tests", None, None
    return run


def end_to_end(workers, more=(), draft=False, gpus=1):
    def run(bench, deadline):
        if len(bench.gpus) < gpus:
            raise NotAvailable(f"needs {gpus} GPUs, this machine has {len(bench.gpus)}")
        expected = bench.cpu_answers(deadline)[:ALONE]
        with bench.cluster(deadline, "cuda:0", workers, more, draft) as server:
            got, speed = bench.answers(server, deadline, bench.requests[:ALONE], 1, "4" if draft else "off")
        expect_equal(got, expected, "one at a time")
        return f"bits of the CPU; {speed:.1f} tokens/s", None, {"tokens_per_second": speed}
    return run


# Requests that share steps, in batches of changing size: the bits of each alone on the CPU.
def batch_sizes(bench, deadline):
    expected = bench.cpu_answers(deadline)
    sizes = [2 if bench.quick else 3, len(bench.requests)]
    with bench.cluster(deadline, "cuda:0") as server:
        for at_once in sizes:
            got, _ = bench.answers(server, deadline, bench.requests, at_once)
            expect_equal(got, expected, f"{at_once} at once")
    return f"hash {digest(expected)} on the CPU alone and on the GPU with {sizes[0]} and {sizes[1]} at once", None, None


# Equal bits are not promised: that it answers, and how many leading tokens are the CPU's.
def fast_arithmetic(bench, deadline):
    expected = bench.cpu_answers(deadline)[:ALONE]
    with bench.cluster(deadline, "cuda:0", more=["--gpu-math", "fast"]) as server:
        got, speed = bench.answers(server, deadline, bench.requests[:ALONE])
    equal = sum(ours[0] == cpu[0] for ours, cpu in zip(got, expected))
    if any(not text for text, _, _ in got):
        raise Failed("an answer is empty")
    return f"{equal} of {len(got)} texts are the CPU's; {speed:.1f} tokens/s", None, {"tokens_per_second": speed}


# Two ranks need two GPUs: on one, that the library, the driver and this machine go together.
def nccl_alone(bench, deadline):
    libraries = [bench.found["libcudart.so.13"], bench.found["libnccl.so.2"]]
    if bench.quick or None in libraries:
        raise NotAvailable("left out" if bench.quick else "no libcudart or libnccl on this machine")
    script = Path(__file__).resolve().parent / "nccl_alone.py"
    done = subprocess.run([sys.executable, str(script), *libraries], capture_output=True, text=True,
                          timeout=max(1.0, deadline - time.monotonic()))
    if done.returncode != 0:
        raise Failed((done.stdout + done.stderr).strip()[-500:])
    return done.stdout.strip(), None, None


def timings(bench, deadline):
    out = bench.output(bench.command("cuda_bench", "--json", *(["--small"] if bench.quick else [])), deadline)
    data = json.loads(out)
    rows = [f"{'what':<44} {'us':>10} {'GB/s':>9} {'of copy':>8} {'TFLOP/s':>9} {'of GEMM':>8}"]
    for row in data["rows"]:
        rows.append(f"{row['name']:<44} {row['us']:>10.1f} {row['gb_per_s']:>9.1f} {row['of_copy']:>8.2f} "
                    f"{row['tflop_per_s']:>9.2f} {row['of_gemm']:>8.3f}")
    return data["summary"], "\n".join(rows), data


STEPS = [
    Step("parity", 90, "every kernel against the CPU, fresh inputs, poisoned outputs", parity),
    Step("local experts", 40, "the demo model, coordinator and experts on one GPU", end_to_end([])),
    Step("batch sizes", 40, "requests that share steps: the bits of each alone", batch_sizes),
    Step("host-staged workers", 40, "two workers on the same GPU, rows through the host",
         end_to_end(["cuda:0", "cuda:0"], ["--data-plane", "host"])),
    Step("draft worker", 40, "speculation with the target on the GPU", end_to_end([], draft=True)),
    Step("NCCL alone", 30, "a communicator of one rank that sends to itself", nccl_alone),
    Step("NCCL", 60, "workers on GPUs of their own, rows through NCCL",
         end_to_end(["cuda:1"], ["--data-plane", "nccl"], gpus=2)),
    Step("fast arithmetic", 30, "the demo model with tensor cores and cuBLAS", fast_arithmetic),
    Step("timings", 60, "bytes/s and FLOP/s a kernel beside a copy and a GEMM; a layer stack", timings),
    Step("memcheck", 45, "compute-sanitizer on small cases", sanitize("memcheck")),
    Step("racecheck", 45, "compute-sanitizer on small cases", sanitize("racecheck")),
]
