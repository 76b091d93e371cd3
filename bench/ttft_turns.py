#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TTFT and CPU time of unique prompts with all tokens kept and at keep rates, in turns, by one or more builds.

    bench/ttft_turns.py PROMPTS TOKENS RATE,RATE,... BUILD/bin... [-- OPTIONS OF forepack up]

Starts a cluster of each build with the demo models, waits until their memory is in RAM, and sends PROMPTS random prompts
each way over HTTP, one token each. CPU time is that of router and nodes (/proc/PID/task/*/schedstat). Shares are of the
same build with all tokens kept, as medians over the turns. Standard library only."""
import glob
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

WARM_UP, FIRST_PORT, LAST_PRIORITY = 3, 27100, 19


def fields_of(path):
    """The fields of /proc/PID/stat after the name, or none if the thread has ended."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[-1].split()
    except FileNotFoundError:
        return []


class Cluster:
    def __init__(self, programs, index, options):
        port = FIRST_PORT + 10 * index
        self.up = subprocess.Popen([os.path.join(programs, "forepack"), "up", "--port", str(port), "--http-port",
                                    str(port + 5), *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.up.stdout.readline()  # ready
        with open(f"/proc/{self.up.pid}/task/{self.up.pid}/children", encoding="utf-8") as file:
            self.pids = file.read().split()
        while any(fields[16:17] == [str(LAST_PRIORITY)] for fields in map(fields_of, self.files("stat"))):
            time.sleep(0.1)  # a thread brings memory into RAM
        self.connection = http.client.HTTPConnection("127.0.0.1", port + 5)

    def files(self, name):
        return [path for pid in self.pids for path in glob.glob(f"/proc/{pid}/task/*/{name}")]

    def cpu_ms(self):
        return sum(int(fields[0]) for fields in map(fields_of, self.files("schedstat")) if fields) / 1e6

    def ask(self, tokens, rate):
        body = {"prompt": tokens, "max_tokens": 1, "ignore_eos": True, "prefill": "off"}
        if rate < 1:
            body.update(prefill="on", keep_rate=rate)
        before, begin = self.cpu_ms(), time.monotonic()
        self.connection.request("POST", "/v1/completions", json.dumps(body))
        answer = json.loads(self.connection.getresponse().read())
        ttft_ms = (time.monotonic() - begin) * 1e3
        time.sleep(0.002)  # until the pools sleep
        return ttft_ms, self.cpu_ms() - before, answer["usage"]["kept_tokens"]


def row(name, rate, here, whole):
    ttft, cpu, kept = ([values[i] for values in here] for i in range(3))
    shares = [statistics.median(a[i] / b[i] for a, b in zip(here, whole)) for i in range(2)]
    median = statistics.median(ttft)
    p95 = sorted(ttft)[int(0.95 * len(ttft))]
    print(f"{name:30} {rate:4} {statistics.median(kept):6.0f} {median:8.1f} {shares[0]:6.3f} {p95 / median:6.2f} "
          f"{statistics.median(cpu):8.1f} {shares[1]:6.3f}")


def main():
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, options = arguments[:at], arguments[at + 1:]
    count, tokens, builds = int(arguments[0]), int(arguments[1]), arguments[3:]
    rates = [1.0] + [float(rate) for rate in arguments[2].split(",")]
    clusters = [Cluster(build, index, options) for index, build in enumerate(builds)]
    values = {(build, rate): [] for build in builds for rate in rates}
    for turn in range(WARM_UP + count):
        for rate in rates:
            for build, cluster in zip(builds, clusters):
                value = cluster.ask([random.randrange(300, 1400) for _ in range(tokens)], rate)
                if turn >= WARM_UP:
                    values[build, rate].append(value)
    print(f"{'build':30} rate   kept  TTFT ms  share p95/md   CPU ms  share")
    for build in builds:
        for rate in rates:
            row(build[-30:], rate, values[build, rate], values[build, 1.0])
    for cluster in clusters:
        cluster.up.send_signal(signal.SIGTERM)
        cluster.up.wait()


if __name__ == "__main__":
    main()
