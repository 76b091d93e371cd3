#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of the GPU kit in order; run.sh starts it. Needs the standard library of Python 3.8 only.

Every step has a time limit, and all steps together have --limit. The order is: one small pass whose values are checked, the
tests, memcheck, the speed of prefill, attention and decode, races, serving, and the rest. Measurements are skipped where
attention or the golden tokens are wrong."""
import argparse
import concurrent.futures
import glob
import json
import os
import platform
import signal
import subprocess
import sys
import tarfile
import time

import table
from libraries import KIT, nccl_version, nvidia_smi, program_environment
from runner import Runner, say
from steps import Steps, program

options = argparse.ArgumentParser(prog="run.sh", description="Tests and measures the CUDA backend on this machine's GPU.")
options.add_argument("--out", default="gpu-kit-out", help="folder of the results (default gpu-kit-out); DIR.tar.gz is the "
                     "same as one file. Steps that passed in an earlier run with this folder, or with the folder from which "
                     "this one was unpacked, are not repeated")
options.add_argument("--limit", type=int, default=530, help="seconds for all steps together (default 530)")
options.add_argument("--only", default="", help="names of steps, comma-separated: run only these, even if they passed")
options.add_argument("--trial", action="store_true", help="try the kit without a GPU: tiny measurements on the CPU; the "
                     "GPU tests are skipped. The figures mean nothing")
o = options.parse_args()
out = os.path.abspath(o.out)
started = time.monotonic()
with open(os.path.join(KIT, "version")) as version_file:
    VERSION = ", ".join(version_file.read().split("\n")).strip(", ")
runner = Runner(out, o.limit, VERSION, o.trial)
steps = Steps(out, o.trial)
TESTS_AT_ONCE = 4


def diagnose(environment):
    """Writes what helps to find out why the first pass failed to diagnosis.log."""
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


def write_results():
    """Writes the table, as Markdown and as a page, and the tar file."""
    with open(os.path.join(out, "machine.json"), "w") as file:
        json.dump({"gpu": nvidia_smi("name,memory.total,driver_version") or "no GPU", "kit": VERSION, "nccl": nccl_version(),
                   "scale": steps.scale, "trial": o.trial, "date": time.strftime("%Y-%m-%d"),
                   "host": "%s, %d cores" % (platform.machine(), os.cpu_count() or 0)}, file)
    text = table.make(out)
    with open(os.path.join(out, "table.md"), "w") as file:
        file.write(text)
    with open(os.path.join(out, "report.html"), "w") as file:
        file.write(table.page(text))
    print(text)
    with tarfile.open(out + ".tar.gz", "w:gz") as tar:
        tar.add(out, os.path.basename(out))
    say("%.0f s; results: %s.tar.gz" % (time.monotonic() - started, out))


def run_in_order(some, environment, at_once=1):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda step: runner.run(step, environment), sorted(some, key=runner.rank)))


def run_first(environment):
    """Runs one small pass. Returns False if no GPU can be used."""
    step = steps.first()
    runner.run(step, environment)
    if runner.passed("first"):
        return True
    diagnose(environment)
    if not os.path.exists(os.path.join(out, "first.log")):  # no time was left
        return True
    with open(os.path.join(out, "first.log"), errors="replace") as file:
        log = file.read()
    print(log, file=sys.stderr, flush=True)
    return "no CUDA device" not in log


def run_tests(environment):
    tests = list(steps.tests())
    run_in_order(tests, environment, TESTS_AT_ONCE)
    for step in tests:
        if runner.passed(step.name):  # removes the diagnosis of an earlier failure
            for more in steps.again(step):
                runner.forget(more.name)
    again = [more for step in [steps.first()] + tests if runner.failed(step.name) for more in steps.again(step)]
    run_in_order(again, environment, TESTS_AT_ONCE)


def run_only(names, environment):
    known = [steps.first(), *steps.tests(), *steps.memcheck(), *steps.speed(), *steps.races(), *steps.two_ranks(),
             *steps.serving(), *steps.rest()]
    unknown = set(names) - {step.name for step in known}
    if unknown:
        sys.exit("run.sh: --only %s: no such step; steps are %s" % (",".join(unknown), ", ".join(s.name for s in known)))
    for step in known:
        if step.name in names:
            runner.forget(step.name)
            runner.run(step, environment)


def run_all(environment):
    """Runs every step. Returns the exit code."""
    if not run_first(environment):
        say("no GPU can be used: nothing was measured; see diagnosis.log")
        return 3
    run_tests(environment)
    run_in_order(steps.memcheck(), environment, TESTS_AT_ONCE)
    wrong = [name for name in ("first", "check_cuda_attention_gpu", "check_golden_gpu") if runner.failed(name)]
    if wrong:
        say("nothing is measured, since %s failed" % ", ".join(wrong))
        return 1
    run_in_order(steps.speed(), environment)
    run_in_order([*steps.races(), *steps.two_ranks()], environment, TESTS_AT_ONCE)
    run_in_order(steps.serving(), environment)
    run_in_order(steps.rest(), environment)
    return 0


def main():
    signal.signal(signal.SIGTERM, runner.stop)
    signal.signal(signal.SIGINT, runner.stop)
    environment = program_environment(out, o.trial, say)
    code = 1
    try:
        code = run_only(o.only.split(","), environment) if o.only else run_all(environment)
    finally:
        if os.listdir(os.path.join(out, "steps")):
            write_results()
    states = [runner.state(os.path.basename(path)[:-5])["state"] for path in glob.glob(os.path.join(out, "steps", "*.json"))]
    sys.exit(code or (0 if set(states) <= {"passed", "skipped"} else 1))


main()
