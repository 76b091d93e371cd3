# SPDX-License-Identifier: Apache-2.0
"""One step of determinism.sh: asks all requests in one way, and compares each answer with the first one.

Usage: determinism.py PORT PROMPTS.jsonl ANSWERS REQUESTS STEP: `first` stores the answers in the file ANSWERS, `alone` asks one
after another, `together` 64 at a time, `drafted` lets speculators draft, `auto` lets the router decide about pruning, `pruned`
asks only what prunes.
"""
import pickle
import sys

from clients import Crowd
from expected import WIDTH, Expected, compare
from features import FEATURES, PRUNING, load


def asked(requests, step):
    """The requests as the step asks them. With `required`, a prompt is pruned in every state of every cache."""
    prefill = "auto" if step == "auto" else "required"
    drafts = {"drafts": "auto"} if step == "drafted" else {}
    return [(path, {**body, **drafts, "prefill": prefill if body["prefill"] == "on" else "off"}) for path, body in requests]


def main(port, prompts, answers, count, step):
    address, n = ("127.0.0.1", int(port)), int(count)
    requests = load(prompts, -(-n // len(FEATURES)))[:n]
    if step == "first":
        with open(answers, "wb") as file:
            pickle.dump(Expected(address, requests, width=1), file)
        print("first: %d requests" % n)
        return 0
    with open(answers, "rb") as file:
        expected = pickle.load(file)
    only = step in ("auto", "pruned")
    chosen = [i for i in range(n) if not only or FEATURES[i % len(FEATURES)] in PRUNING]
    every = asked(requests, step)
    results = Crowd(address, [every[i] for i in chosen], 1 if step == "alone" else WIDTH).wait()
    counts, sentences = compare(expected, results, chosen)
    usages = [result[1] for result in results if isinstance(result, tuple)]
    print("%s: %d requests, %d replays, %d draft tokens accepted, %d lost, %d repeated, %d different" % (
        step, len(chosen), sum(u.get("replays", 0) for u in usages),
        sum(u.get("completion_tokens_details", {}).get("accepted_prediction_tokens", 0) for u in usages), *counts.values()), flush=True)
    print("\n".join(sentences[:5]), end="")
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
