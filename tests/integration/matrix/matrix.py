# SPDX-License-Identifier: Apache-2.0
"""The fault matrix: every fault while streams of every feature run. Each answer must come once, complete, and with the bytes of
an undisturbed cluster. A prompt that a lost speculator left whole (`usage.prefill`) is compared with the answer to the whole
prompt.

Usage: matrix.py PROGRAMS SOURCE FOLDER STREAMS [FAULT]...: STREAMS of each fault and feature
"""
import json
import os
import subprocess
import sys
import time

import batches
import faults
from cluster import HTTP, Cluster
from clients import Crowd
from features import FEATURES, PRUNING, STREAMED, Features

WIDTH = 64  # clients at the same time
FAULTS = {**faults.FAULTS, "router restarted": batches.router_restarted, "disk full": batches.disk_full}


def requests_of(made, per_feature):
    """Requests of all features in turn, so that all run at the same time."""
    requests = []
    for i in range(per_feature):
        for feature in FEATURES:
            path, body = made.request(feature, i)
            stream = {"stream": True, "stream_options": {"include_usage": True}} if feature in STREAMED else {}
            requests.append((path, {**body, **stream}))
    return requests


class Expected:
    """The answers of an undisturbed cluster: with the prompt pruned as asked, and with the whole prompt."""

    def __init__(self, requests):
        asked = [(path, {**body, "prefill": "required"} if body["prefill"] == "on" else body) for path, body in requests]
        self.asked = Crowd(HTTP, asked, WIDTH).wait()
        pruning = [i for i, (_, body) in enumerate(requests) if body["prefill"] == "on"]
        whole = [(requests[i][0], {**requests[i][1], "prefill": "off"}) for i in pruning]
        self.whole = dict(zip(pruning, Crowd(HTTP, whole, WIDTH).wait()))
        wrong = [answer for answer in [*self.asked, *self.whole.values()] if isinstance(answer, Exception)]
        assert not wrong, "the undisturbed cluster failed: %s" % wrong[:3]

    def of(self, index, usage):
        kept_whole = index in self.whole and usage["prefill"] != "speculated"
        return (self.whole[index] if kept_whole else self.asked[index])[0]


def compare(expected, results):
    """Returns how many answers are lost, repeated and different, and a sentence for each of the first."""
    counts, sentences = dict(lost=0, repeated=0, different=0), []
    for index, result in enumerate(results):
        if isinstance(result, Exception):
            kind, sentence = "lost", str(result)
        elif result == "twice":
            kind, sentence = "repeated", "two lines"
        else:
            answer, usage = result
            right = expected.of(index, usage)
            if answer == right:
                continue
            longer = usage["completion_tokens"] > json.loads(right)[1]["completion_tokens"]
            kind, sentence = "repeated" if longer else "different", "%s\ninstead of %s" % (answer, right)
        counts[kind] += 1
        sentences.append("%s, request %d of %s: %s" % (kind, index // len(FEATURES), FEATURES[index % len(FEATURES)], sentence))
    return counts, sentences


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
    with open(os.path.join(source, "deploy/demo-model/prompts.jsonl"), encoding="utf-8") as file:
        prompts = [json.loads(line)["prompt"] for line in file]
    requests = requests_of(Features(prompts), int(per_feature))
    names = chosen or tuple(FAULTS)
    with Cluster(programs, source, os.path.join(folder, "undisturbed")):
        expected = Expected(requests)
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
