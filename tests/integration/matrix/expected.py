# SPDX-License-Identifier: Apache-2.0
"""The right answers, and how many answers differ from them."""
import json

from clients import Crowd
from features import FEATURES

WIDTH = 64  # clients at the same time


class Expected:
    """The answers of an undisturbed cluster: with the prompt pruned as asked, and with the whole prompt."""

    def __init__(self, address, requests, width=WIDTH):
        asked = [(path, {**body, "prefill": "required"} if body["prefill"] == "on" else body) for path, body in requests]
        self.asked = Crowd(address, asked, width).wait()
        pruning = [i for i, (_, body) in enumerate(requests) if body["prefill"] == "on"]
        whole = [(requests[i][0], {**requests[i][1], "prefill": "off"}) for i in pruning]
        self.whole = dict(zip(pruning, Crowd(address, whole, width).wait()))
        wrong = [answer for answer in [*self.asked, *self.whole.values()] if isinstance(answer, Exception)]
        assert not wrong, "the undisturbed cluster failed: %s" % wrong[:3]

    def of(self, index, usage):
        kept_whole = index in self.whole and usage["prefill"] != "speculated"
        return (self.whole[index] if kept_whole else self.asked[index])[0]


def compare(expected, results, chosen=None):
    """Returns how many answers are lost, repeated and different, and a sentence for each. `chosen` are the indices of the
    requests; None: all."""
    counts, sentences = dict(lost=0, repeated=0, different=0), []
    for index, result in zip(chosen or range(len(results)), results):
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
