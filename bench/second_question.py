#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""TTFT of further questions on a document that a cluster has scored, against the first one, scoring included. Every request
makes one token, so the time of its answer is its TTFT. Documents and questions are random tokens: the selections of two
questions agree only by chance. SHARED 1: the requests say that the document is shared (shared_tokens).

Usage: second_question.py HTTP_HOST:PORT KEEP_RATE [DOCUMENT_TOKENS QUESTION_TOKENS VOCABULARY DOCUMENTS SHARED]
"""
import http.client
import json
import random
import statistics
import sys
import time

server, keep_rate = sys.argv[1], float(sys.argv[2])
given = [int(argument) for argument in sys.argv[3:]]
document_tokens, question_tokens, vocabulary, documents, shared = given + [3950, 40, 1500, 7, 0][len(given):]


def tokens(n):
    return [random.randrange(300, vocabulary) for _ in range(n)]


def ask(prompt):
    body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "prefill": "on", "keep_rate": keep_rate}
    if shared:
        body["shared_tokens"] = document_tokens
    connection = http.client.HTTPConnection(server)
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = json.load(connection.getresponse())
    ms = (time.perf_counter() - start) * 1e3
    connection.close()
    usage = answer["usage"]
    return {"ttft_ms": ms, "scored_rows": usage["scored_tokens"] - usage["score_cached_tokens"],
            "prefilled_rows": usage["kept_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]}


questions = ("first", "second", "second again")
rows = {name: [] for name in questions}
ask(tokens(document_tokens + question_tokens))
for _ in range(documents):
    document, first, second = tokens(document_tokens), tokens(question_tokens), tokens(question_tokens)
    for name, question in zip(questions, (first, second, second)):
        rows[name].append(ask(document + question))
for name in questions:
    median = {key: round(statistics.median(row[key] for row in rows[name]), 1) for key in rows[name][0]}
    share = median["ttft_ms"] / statistics.median(row["ttft_ms"] for row in rows["first"])
    print(json.dumps({"question": name, "keep_rate": keep_rate} | median | {"of_first": round(share, 3)}))
