#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of the GPU kit; run.sh starts it. Needs the standard library of Python 3.8 only.

Every step has a time limit, and all steps together have --limit. A failed step does not stop the next one. Each step leaves
steps/NAME.json with its state, NAME.log, and a measurement also NAME.json with its rows."""
import argparse
import concurrent.futures
import glob
import json
import os
import platform
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import time

import table

KIT = os.path.dirname(os.path.abspath(__file__))

options = argparse.ArgumentParser(prog="run.sh", description="Tests and measures the CUDA backend on this machine's GPU.")
options.add_argument("--out", default="gpu-kit-out", help="folder of the results (default gpu-kit-out); DIR.tar.gz is the "
                     "same as one file. Steps that passed in an earlier run with this folder are not repeated")
options.add_argument("--limit", type=int, default=530, help="seconds for all steps together (default 530)")
options.add_argument("--trial", action="store_true", help="try the kit without a GPU: tiny measurements on the CPU; the "
                     "GPU tests are skipped. The figures mean nothing")
o = options.parse_args()
out = os.path.abspath(o.out)
GPU = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"  # the one GPU of this run, numbered as nvidia-smi does
started = time.monotonic()


def say(text):
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def seconds_left():
    return started + o.limit - time.monotonic()


# ---- libraries ----


def library_folders():
    """Folders that may hold NVIDIA's libraries, in the order of preference."""
    yield from filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    for pattern in ("/usr/local/cuda/lib64", "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib"):
        yield from sorted(glob.glob(pattern), reverse=True)
    pythons = list(sys.path) + site.getsitepackages() + [site.getusersitepackages()]
    other = shutil.which("python3")
    if other and os.path.realpath(other) != os.path.realpath(sys.executable):
        listed = subprocess.run([other, "-c", "import sys; print('\\n'.join(sys.path))"], stdout=subprocess.PIPE, text=True)
        pythons += listed.stdout.split("\n")
    for folder in filter(None, pythons):
        yield from sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib")), reverse=True)
    for ldconfig in ("ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if shutil.which(ldconfig):
            listed = subprocess.run([ldconfig, "-p"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            yield from (os.path.dirname(line.split(" => ")[1]) for line in listed.stdout.splitlines() if " => " in line)
            break
    yield from ("/usr/local/nvidia/lib64", "/usr/local/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/wsl/lib")


def find_libraries(names):
    """The folder of each library by name; None where it is not found."""
    found = dict.fromkeys(names)
    for folder in library_folders():
        for name in names:
            if not found[name] and os.path.exists(os.path.join(folder, name)):
                found[name] = folder
    return found


def program_environment():
    """The environment of the kit's programs, or an exit with one sentence if a library is missing."""
    with open(os.path.join(KIT, "cuda-libraries")) as file:
        needed = file.read().split()
    found = find_libraries(needed + ["libcuda.so.1"])
    missing = [name for name in needed if not found[name]]
    if missing and not o.trial:
        print("run.sh: %s: not found. Install CUDA 13's cuBLASLt and NCCL (the CUDA toolkit, or Python's nvidia-cublas, "
              "nvidia-cuda-runtime and nvidia-nccl-cu13), or name their folders in LD_LIBRARY_PATH" % ", ".join(missing),
              file=sys.stderr)
        sys.exit(2)
    for name in needed:
        say("%s: %s" % (name, found[name] or "not found"))
    folders = [os.path.join(KIT, "lib")] + list(dict.fromkeys(filter(None, found.values())))
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(folders), FOREPACK_SOURCE=KIT, CK_TIMEOUT_MULTIPLIER="60",
                       XDG_CACHE_HOME=os.path.join(out, "cache"), CUDA_VISIBLE_DEVICES=GPU, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    environment.pop("FOREPACK_DATA", None)
    return environment


# ---- running ----

running = set()  # process groups


def end_group(group, how):
    try:
        os.killpg(group, how)
    except OSError:
        pass


def stop(*_):
    """Signal handler: ends the running steps and starts no others, so that the table is still written."""
    o.limit = 0
    for group in list(running):
        end_group(group, signal.SIGTERM)


def run(command, seconds, stdout, stderr, environment):
    """Runs the command in a process group of its own, which is killed after `seconds`. Returns the exit code, 124 if it was
    stopped, and the seconds that it took."""
    begin = time.monotonic()
    with open(stdout, "wb") as output, open(stderr, "ab" if stderr == stdout else "wb") as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment,
                                       start_new_session=True)
        except OSError as error:
            errors.write(("%s\n" % error).encode())
            return 127, 0.0
        running.add(process.pid)
        code = None
        for wait, ending in ((seconds, signal.SIGTERM), (5, signal.SIGKILL), (5, signal.SIGKILL)):
            try:
                code = process.wait(wait)
                break
            except subprocess.TimeoutExpired:
                end_group(process.pid, ending)
        end_group(process.pid, signal.SIGKILL)  # what the command left running
        running.discard(process.pid)
    took = time.monotonic() - begin
    return (124 if took >= seconds else code), took


def last_line(path):
    with open(path, errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    return lines[-1][:240] if lines else ""


def state_path(name):
    return os.path.join(out, "steps", name + ".json")


def state_of(name):
    try:
        with open(state_path(name)) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def note(name, state, said, seconds=0.0):
    with open(state_path(name), "w") as file:
        json.dump({"step": name, "state": state, "said": said, "seconds": round(seconds, 1)}, file)
    say("%s: %s%s" % (name, state, ": " + said if said else ""))


class Step:
    """A command. `rows`: a measurement, which prints JSON for NAME.json; else a test."""

    def __init__(self, name, seconds, command, rows=True, environment=None):
        self.name, self.seconds, self.command, self.rows = name, seconds, command, rows
        self.environment = environment or {}

    def run(self, base):
        before = state_of(self.name)
        if before and before["state"] in ("passed", "skipped"):
            say("%s: %s in an earlier run" % (self.name, before["state"]))
            return
        bound = min(self.seconds, seconds_left())
        if bound <= 1:
            if not before:
                note(self.name, "not run", "no time was left: run again with the same --out")
            return
        say("%s: %s" % (self.name, " ".join(self.command)))
        log, rows = os.path.join(out, self.name + ".log"), os.path.join(out, self.name + ".json")
        code, took = run(self.command, bound, rows + ".part" if self.rows else log, log, dict(base, **self.environment))
        if self.rows and code == 0:
            os.replace(rows + ".part", rows)
        elif self.rows and os.path.exists(rows + ".part"):
            os.remove(rows + ".part")
        if code == 0:
            note(self.name, "passed", "" if self.rows else last_line(log), took)
        elif code == 77 and (self.rows or o.trial):  # where a pass ran, a test has no reason to skip
            note(self.name, "skipped", last_line(log), took)
        elif code < 0 and o.limit == 0:
            note(self.name, "stopped", "with the whole run", took)
        elif code == 124:
            note(self.name, "stopped", "after its time limit of %.0f s" % bound, took)
        else:
            note(self.name, "failed", last_line(log) or "exit code %d" % code, took)


# ---- steps ----


def program(name):
    return os.path.join(KIT, "bin", name)


def shape(name):
    return os.path.join(out if name == "trial" else os.path.join(KIT, "shapes"), name + ".json")


BACKEND = "cpu" if o.trial else "cuda"
FP8 = "int8" if o.trial else "fp8"
MODEL, SMALL = ("trial", "trial") if o.trial else ("llama-3.1-8b", "llama-3.2-1b")
SCALE = 64 if o.trial else 1  # a trial divides the numbers of tokens by it
LENGTHS = os.path.join(KIT, "tests", "data", "lengths", "mmlu.txt")
ROUNDS = ["--rounds", "1", "--min-ms", "0", "--probe-ms", "20"] if o.trial else \
    ["--rounds", "3", "--min-ms", "300", "--probe-ms", "200"]


def tokens(*counts):
    return ",".join(str(max(1, count // SCALE)) for count in counts)


def bench(name, seconds, what, *arguments):
    return Step(name, seconds, [program("forepack-bench"), what, "--backend", BACKEND, *arguments, "--json"])


def engine(name, seconds, dtype, *arguments):
    return bench(name, seconds, "engine", "--dtype", dtype, "--shape", shape(MODEL), *ROUNDS, *arguments)


def first_step():
    return bench("first", 90, "engine", "--shape", shape("llama-110m"), "--prompt-tokens", "16", "--batch", "1",
                 "--decode-tokens", "4", "--rounds", "1", "--min-ms", "0", "--probe-ms", "0")


def gpu_mib(field):
    """A field of the GPU in MiB, None without nvidia-smi."""
    try:
        told = subprocess.run(["nvidia-smi", "-i", GPU, "--query-gpu=" + field, "--format=csv,noheader,nounits"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=20).stdout
        return int(told.split("\n")[0])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def write_shape(path, name, **changes):
    """Writes the shape with other values of some keys, unless an earlier run did."""
    if not os.path.exists(path):
        with open(shape(name)) as file:
            config = json.load(file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            json.dump(dict(config, **changes), file)
    return path


def block_shape():
    """The shape with a scale for each block of FP8 weights."""
    return write_shape(os.path.join(out, "blocks", "config.json"), MODEL, quantization_config={
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})


def cut_shape():
    """The 70B shape with as many layers as fit beside the 8B model, at most 40 because of the load time. A layer needs 1,632
    MiB and 64 MiB of KV for the prompt; 29,000 MiB are the 8B model with its KV, the 70B's embedding and head, and workspaces."""
    layers = int((0.95 * (gpu_mib("memory.free") or 65000) - 29000) // 1700)
    name = "llama-110m" if o.trial else "llama-3.1-70b"
    return write_shape(os.path.join(out, "main", "config.json"), name,
                       num_hidden_layers=2 if o.trial else max(1, min(40, layers)))


def measurements():
    whole = ["--max-num-batched-tokens", tokens(16384)]
    yield engine("prefill", 75, "bf16", "--prompt-tokens", tokens(1024, 8192, 16384), "--batch", "1,16",
                 "--decode-tokens", "0", *whole)
    yield bench("gemms", 45, "kernels", "--dtype", "bf16", "--shape", shape(MODEL), "--rows", tokens(1, 64, 8192, 16384), *ROUNDS)
    attention = ["kernels", "--attention", "--dtype", "bf16", "--shape", shape(MODEL), *ROUNDS]
    lengths = ["--prompt-tokens", tokens(2048, 8192, 16384, 32768), "--max-num-batched-tokens", tokens(32768)]
    yield bench("attention-128", 45, *attention, "--head-size", "128", *lengths, "--batch", "1,8,64", "--context",
                tokens(1024))
    yield bench("attention-64", 45, *attention, "--head-size", "64", *lengths, "--context", "0")
    yield bench("attention-cached", 30, *attention, "--head-size", "128", "--prompt-tokens", "50", "--cached-tokens",
                tokens(32768), "--context", "0")
    yield engine("decode", 60, "bf16", "--prompt-tokens", "0", "--batch", "1,8,64", "--context", tokens(1024),
                 "--decode-tokens", tokens(64))
    yield bench("prepack", 60, "prepack", "--dtype", "bf16", "--shape", shape(SMALL), "--lengths", LENGTHS, "--limit",
                "8" if o.trial else "256", "--batch-size", "4" if o.trial else "64", "--policies", "padded,batch",
                "--max-num-batched-tokens", "16384", "--rounds", ROUNDS[1])
    yield engine("score", 75, "bf16", "--prompt-tokens", tokens(32768), "--more-tokens", "50", "--batch", "1",
                 "--decode-tokens", "0", "--max-num-batched-tokens", tokens(8192), "--score")
    both = ["--prompt-tokens", tokens(1024, 16384), *whole]
    yield engine("fp8", 75, FP8, "--batch", "1,16,64", "--context", tokens(1024), "--decode-tokens", tokens(64), *both)
    yield engine("fp8-fast", 40, FP8, "--fp8-fast-accum", "--batch", "1,16", "--decode-tokens", "0", *both)
    prompt = ["--prompt-tokens", tokens(16384), "--batch", "1", "--decode-tokens", "0", *whole]
    yield bench("fp8-blocks", 40, "engine", "--shape", block_shape(), *ROUNDS, *prompt)
    yield bench("ttft", 120, "prefill-quality", "--task", "ttft", "--dtype", "bf16", "--shape", cut_shape(),
                "--spec-shape", shape(MODEL), "--prompt-tokens", tokens(16384), "--keep-rates", "0.1,0.3", "--look-aheads",
                "8", "--max-num-batched-tokens", tokens(8192), "--rounds", ROUNDS[1])
    yield Step("serve", 90, [sys.executable, os.path.join(KIT, "serve.py"), "--backend", BACKEND, "--shape", shape(MODEL),
                             "--tokens", tokens(32768), "--context", tokens(1024), "--max-num-batched-tokens", "8192",
                             *(["--batch", "1,2", "--decode-tokens", "4"] if o.trial else [])])


def comparisons():
    """The same work in PyTorch and transformers, where they are installed."""
    python = shutil.which("python3") or sys.executable
    own = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}  # not the kit's libraries
    device = "cpu" if o.trial else "cuda"
    yield Step("torch", 75, [python, os.path.join(KIT, "torch_bars.py"), "--shape", shape(MODEL), "--device", device,
                             "--rows", tokens(1, 64, 8192, 16384), "--tokens", tokens(2048, 8192, 16384, 32768)],
               environment=own)
    yield Step("transformers", 75, [python, os.path.join(KIT, "transformers_padded.py"), "--shape", shape(SMALL), "--lengths",
                                    LENGTHS, "--limit", "8" if o.trial else "256", "--batch-size",
                                    "4" if o.trial else "64", "--rounds", ROUNDS[1], "--device", device], environment=own)


def tests():
    for path in sorted(glob.glob(os.path.join(KIT, "tests", "check_*_gpu"))):
        yield Step(os.path.basename(path), 150, [path, "cuda"], rows=False)


def sanitizer_steps():
    places = ["compute-sanitizer"] + sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"))
    tool = next(filter(None, map(shutil.which, places)), None)
    for test in ("check_row_sampling", "check_cuda_attention", "check_cuda_exactness"):
        if tool and not o.trial:
            yield Step("sanitizer-" + test, 75, [tool, "--error-exitcode", "1", "--tool", "memcheck",
                                                 os.path.join(KIT, "tests", test + "_gpu"), "cuda"], rows=False,
                       environment={"CK_FORK": "no"})


def diagnose(environment):
    """What helps to find out why the first pass failed, in diagnosis.log."""
    commands = [["nvidia-smi"], ["ldd", program("libforepack_cuda.so")], ["sh", "-c", "ls -l /dev/nvidia* /proc/driver/nvidia"],
                ["sh", "-c", "env | grep -E 'CUDA|NVIDIA|NCCL|LD_LIBRARY_PATH'"]]
    with open(os.path.join(out, "diagnosis.log"), "w") as file:
        for command in commands:
            try:
                told = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True, errors="replace", timeout=20, env=environment).stdout
            except (OSError, subprocess.TimeoutExpired) as error:
                told = str(error) + "\n"
            file.write("$ %s\n%s\n" % (" ".join(command), told))


# ---- results ----


def machine():
    """The GPU with its driver, as nvidia-smi names them."""
    try:
        told = subprocess.run(["nvidia-smi", "-i", GPU, "--query-gpu=name,memory.total,driver_version",
                               "--format=csv,noheader"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              timeout=20).stdout
        return told.split("\n")[0].strip() or "no GPU"
    except (OSError, subprocess.TimeoutExpired):
        return "no GPU"


def write_results():
    """Writes the table and the tar file. Returns whether a step failed."""
    with open(os.path.join(KIT, "version")) as file:
        kit = ", ".join(file.read().split("\n")).strip(", ")
    with open(os.path.join(out, "machine.json"), "w") as file:
        json.dump({"gpu": machine(), "kit": kit, "scale": SCALE, "trial": o.trial, "date": time.strftime("%Y-%m-%d"),
                   "host": "%s, %d cores" % (platform.machine(), os.cpu_count() or 0)}, file)
    text = table.make(out)
    with open(os.path.join(out, "table.md"), "w") as file:
        file.write(text)
    print(text)
    with tarfile.open(out + ".tar.gz", "w:gz") as tar:
        tar.add(out, os.path.basename(out))
    say("%.0f s; results: %s.tar.gz" % (time.monotonic() - started, out))


def run_first(environment):
    """One small pass. Returns False if no GPU can be used."""
    step = first_step()
    step.run(environment)
    if state_of("first")["state"] == "passed":
        return True
    diagnose(environment)
    with open(os.path.join(out, "first.log"), errors="replace") as file:
        log = file.read()
    print(log, file=sys.stderr, flush=True)
    return "no CUDA device" not in log


def in_order(steps):
    """Steps that no earlier run has tried come before those that it tried without success."""
    return sorted(steps, key=lambda step: state_of(step.name) is not None and state_of(step.name)["state"] != "not run")


def run_all():
    environment = program_environment()
    if not run_first(environment):
        say("no GPU can be used: nothing was measured; see diagnosis.log")
        return 3
    for step in in_order(list(measurements()) + list(comparisons())):
        step.run(environment)
    for group in (tests(), sanitizer_steps()):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda step: step.run(environment), in_order(group)))
    states = [state_of(os.path.basename(path)[:-5])["state"] for path in glob.glob(os.path.join(out, "steps", "*.json"))]
    return 0 if set(states) <= {"passed", "skipped"} else 1


def main():
    os.makedirs(os.path.join(out, "steps"), exist_ok=True)
    if o.trial:
        write_shape(shape("trial"), "llama-110m", num_hidden_layers=1)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    code = 1
    try:
        code = run_all()
    finally:
        if os.listdir(os.path.join(out, "steps")):
            write_results()
    sys.exit(code)


main()
