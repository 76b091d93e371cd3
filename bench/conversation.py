#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Conversations of seven turns on a running cluster: each turn is a message of a tool and a question about the message of any turn so
far. The same conversations with the rows of earlier turns (conversation), pruned as one prompt each time (one_prompt) and with
every token kept (whole), turn by turn in alternation. Prints, for each way: right answers, turns in which it alone or the
whole history alone was right, the share of the history's rows that was found in the worker group's prefix cache, kept and
recalled tokens, and the median TTFT from the second turn on.

Usage: forepack bench documents --task needle --tokens 450 --count 70 --seed 7 |
       conversation.py HTTP_HOST:PORT KEEP_RATE [ROLE ANSWER_TOKENS]
ROLE: role of the tool's message, tool or user (default). ANSWER_TOKENS: most tokens of an answer, default 16.
"""
import http.client
import json
import random
import secrets
import statistics
import sys
import time

TURNS = 7
WAYS = {"conversation": {"prefill": "on"}, "one_prompt": {"prefill": "on", "conversation": False}, "whole": {"prefill": "off"}}
server, keep_rate = sys.argv[1], float(sys.argv[2])
role = sys.argv[3] if len(sys.argv) > 3 else "user"
answer_tokens = int(sys.argv[4]) if len(sys.argv) > 4 else 16
random.seed(1)


def read_document(line):
    row = json.loads(line)
    text, question = row["prompt"].replace("<|begin_of_text|>", "").rsplit("\n\nQuestion: ", 1)
    return text, "Question: " + question.removesuffix("\nAnswer:"), row["answer"].strip()


def ask(messages, way):
    body = {"messages": messages, "max_tokens": answer_tokens, "stream": True, "stream_options": {"include_usage": True}} | WAYS[way]
    if way != "whole":
        body["keep_rate"] = keep_rate
    connection = http.client.HTTPConnection(server)
    text, usage, first = "", None, None
    start = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        first = first or time.perf_counter() - start
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        text += "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))
    connection.close()
    return text, usage, 1e3 * first


class Conversation:
    def __init__(self, way):
        self.way, self.turns, self.rows_before = way, [], 0
        # Each conversation begins differently, so that conversations share no cached rows.
        self.messages = [{"role": "system", "content": f"{secrets.randbelow(10 ** 8):08d}"}]

    def ask(self, text, question, answer):
        self.messages += [{"role": role, "content": text}, {"role": "user", "content": question}]
        got, usage, ms = ask(self.messages, self.way)
        self.messages.append({"role": "assistant", "content": got})
        self.turns.append({
            "right": got.strip() == answer, "ttft_ms": ms, "history": self.rows_before, "kept": usage["kept_tokens"],
            "recalled": usage["recalled_tokens"], "prompt": usage["prompt_tokens"],
            "cached": usage["prompt_tokens_details"]["cached_tokens"]})
        self.rows_before = usage["kept_tokens"] + usage["completion_tokens"] - 1  # the last token has no row


def share(turns, part, whole):
    return round(sum(t[part] for t in turns) / max(1, sum(t[whole] for t in turns)), 3)


documents = [read_document(line) for line in sys.stdin]
turns = {way: [] for way in WAYS}
for first in range(0, len(documents) - TURNS + 1, TURNS):
    conversations = [Conversation(way) for way in WAYS]
    for t in range(TURNS):
        text = documents[first + t][0]
        _, question, answer = documents[first + random.randrange(t + 1)]
        for conversation in conversations:
            conversation.ask(text, question, answer)
    for conversation in conversations:
        turns[conversation.way] += conversation.turns[1:]
for way in WAYS:
    for t in turns[way]:
        t["cached_history"] = min(t["cached"], t["history"])
whole_ms = statistics.median(t["ttft_ms"] for t in turns["whole"])
for way, list_of in turns.items():
    ms = statistics.median(t["ttft_ms"] for t in list_of)
    print(json.dumps({
        "way": way, "keep_rate": keep_rate, "turns": len(list_of), "right": round(statistics.mean(t["right"] for t in list_of), 3),
        "right_alone": sum(t["right"] > w["right"] for t, w in zip(list_of, turns["whole"])),
        "whole_alone": sum(t["right"] < w["right"] for t, w in zip(list_of, turns["whole"])),
        "cached_history": share(list_of, "cached_history", "history"),
        "kept": share(list_of, "kept", "prompt"), "recalled": share(list_of, "recalled", "prompt"), "ttft_ms": round(ms, 1),
        "of_whole": round(ms / whole_ms, 3)}))
