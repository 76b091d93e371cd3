#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What a batch leaves to interactive requests, and what these leave to the batch, on a running cluster with --batch-dir.

Interactive requests come one at a time at random times and measure TTFT: alone, then during a batch. The batch measures
answered requests per second: alone, then with these requests. The passes of the worker groups
(forepack:forward_pass_seconds) give the share of time that the interactive requests use alone. Prints the ratios that
docs/reference.md is about:

    ttft p50, p99    with the batch over alone; p99 also less one longest pass
    batch rate       with interactive requests over alone times the idle share

Usage: batches.py HTTP_HOST:PORT [SECONDS [PROMPT_TOKENS [GAP_S]]]     of each phase (30); 512; mean gap between requests (0.5)
"""
import http.client
import json
import random
import re
import sys
import time

server = sys.argv[1]
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 30
prompt_words = int(sys.argv[3]) if len(sys.argv) > 3 else 512
gap_s = float(sys.argv[4]) if len(sys.argv) > 4 else 0.5
random.seed(1)
WORDS = "river stone lamp garden winter paper music bridge"


def call(method, path, body=None, content_type="application/json"):
    connection = http.client.HTTPConnection(server, timeout=600)
    connection.request(method, path, body, {"Content-Type": content_type})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        sys.exit(f"{method} {path}: {answer.status} {text[:300]}")
    return text


def prompt(words):
    return " ".join(random.choice(WORDS.split()) for _ in range(words))


def ttft():
    """Returns the seconds to the first token of a streamed request."""
    connection = http.client.HTTPConnection(server, timeout=600)
    body = {"prompt": prompt(prompt_words), "max_tokens": 1, "stream": True, "ignore_eos": True, "prefill": "off"}
    begun = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.readline()
    first = time.monotonic() - begun
    answer.read()
    return first


def interactive(until):
    times = []
    while time.monotonic() < until:
        time.sleep(random.expovariate(1 / gap_s))
        times.append(ttft())
    return sorted(times)


def busy_s():
    """Returns the seconds of all passes of worker groups so far."""
    text = call("GET", "/metrics").decode()
    found = re.findall(r'^forepack:forward_pass_seconds_sum\{[^}]*pool="worker"[^}]*\} (\S+)', text, re.M)
    return sum(map(float, found))


def batch_begin(n):
    line = lambda i: json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {
        "prompt": prompt(64), "max_tokens": 64, "ignore_eos": True, "prefill": "off"}})
    content = "\n".join(map(line, range(n))).encode()
    form = (b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; '
            b'name="file"; filename="in"\r\n\r\n' + content + b"\r\n--b--\r\n")
    file = json.loads(call("POST", "/v1/files", form, "multipart/form-data; boundary=b"))["id"]
    batch = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    return json.loads(call("POST", "/v1/batches", json.dumps(batch)))["id"]


def completed(batch):
    return json.loads(call("GET", "/v1/batches/" + batch))["request_counts"]["completed"]


def rate(batch, run):
    """Returns the batch's answers per second while run() runs, and the result of run()."""
    begun, before = time.monotonic(), completed(batch)
    result = run()
    return (completed(batch) - before) / (time.monotonic() - begun), result


def quantile(times, q):
    return times[min(len(times) - 1, int(q * len(times)))]


for _ in range(5):
    ttft()
before, begun = busy_s(), time.monotonic()
alone = interactive(time.monotonic() + seconds)
idle = 1 - (busy_s() - before) / (time.monotonic() - begun)
batch = batch_begin(50000)
while completed(batch) < 64:
    time.sleep(0.2)
rate_alone, _ = rate(batch, lambda: time.sleep(seconds))
rate_both, both = rate(batch, lambda: interactive(time.monotonic() + seconds))
call("POST", f"/v1/batches/{batch}/cancel", "{}")
print(f"interactive requests: {len(alone)} alone, {len(both)} with a batch; idle share of pass time alone {idle:.2f}")
for q in (0.5, 0.99):
    a, b = quantile(alone, q), quantile(both, q)
    print(f"ttft p{round(100 * q)}: alone {1000 * a:.1f} ms, with a batch {1000 * b:.1f} ms, ratio {b / a:.2f}")
print(f"batch rate: alone {rate_alone:.2f}/s, with interactive requests {rate_both:.2f}/s, "
      f"ratio to alone times idle share {rate_both / (rate_alone * idle):.2f}")
