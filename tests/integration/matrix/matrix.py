# SPDX-License-Identifier: Apache-2.0
"""The fault matrix: every fault while streams of every feature run. Each answer must come once, complete, and with the bytes of
an undisturbed cluster. A prompt that a lost speculator left whole (`usage.prefill`) is compared with the answer to the whole
prompt.

Usage: matrix.py PROGRAMS SOURCE FOLDER STREAMS [FAULT]...: STREAMS of each fault and feature
"""
import os
import subprocess
import sys
import time

import batches
import faults
from cluster import HTTP, Cluster
from clients import Crowd
from expected import WIDTH, Expected, compare
from features import FEATURES, PRUNING, load

FAULTS = {**faults.FAULTS, "router restarted": batches.router_restarted, "disk full": batches.disk_full}


def run_fault(name, cluster, requests, expected):
    """Plants the fault again and again until all streams have ended. Returns the counts."""
    crowd = batches.Batches(requests) if name == "router restarted" else Crowd(HTTP, requests, WIDTH)
    cluster.crowd, planted, began = crowd, 0, time.monotonic()
    while planted == 0 or crowd.running():
        FAULTS[name](cluster)
        planted += 1
    results = crowd.wait()
    counts, sentences = compare(expected, results)
    usages = [result[1] for result in results if isinstance(result, tuple)]
    replays = sum(usage.get("replays", 0) for usage in usages)
    degraded = sum(usage["prefill"] != "speculated" for i, usage in enumerate(usages) if FEATURES[i % len(FEATURES)] in PRUNING)
    print("%-22s %5d streams %3d times %6d replays %5d left whole %4d lost %4d repeated %4d different %5.0f s" % (
        name, len(results), planted, replays, degraded, *counts.values(), time.monotonic() - began), flush=True)
    for sentence in sentences[:5]:
        print("   ", sentence[:3000], flush=True)
    return sum(counts.values())


def main(programs, source, folder, per_feature, *chosen):
    requests = load(os.path.join(source, "deploy/demo-model/prompts.jsonl"), int(per_feature))
    names = chosen or tuple(FAULTS)
    with Cluster(programs, source, os.path.join(folder, "undisturbed")):
        expected = Expected(HTTP, requests)
    wrong = 0
    for name in names:
        where = os.path.join(folder, name.replace(" ", "-"))
        if name == "disk full":
            os.mkdir(where)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "matrix", where], check=True)
        preload = os.path.join(programs, "clock_jump.so") if name == "clock jump" else None
        with Cluster(programs, source, where, preload) as cluster:
            wrong += run_fault(name, cluster, requests, expected)
    print("matrix: %d streams of %d faults and %d features, %d wrong" % (len(names) * len(requests), len(names), len(FEATURES), wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
