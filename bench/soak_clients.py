#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Clients of bench/soak.sh, each in a thread that starts over until SIGTERM: chats over HTTP with and without streaming,
streams that are closed early, connections that break off, calls over gRPC that are cancelled or aborted. Refusals and lost
connections are part of the run; any other wrong answer ends the program with exit code 1.

Usage: soak_clients.py GRPC_HOST:PORT HTTP_HOST:PORT REPOSITORY PROMPTS.jsonl
"""
import collections
import http.client
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import grpc

grpc_server, http_server, repository, prompts_file = sys.argv[1:5]
with open(prompts_file, encoding="utf-8") as file:
    prompts = [json.loads(line)["prompt"] for line in file]
with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["protoc", "-I", repository + "/proto", "--python_out=" + folder,
                    repository + "/proto/forepack/v1/inference.proto"], check=True)
    sys.path.insert(0, folder)
    api = importlib.import_module("forepack.v1.inference_pb2")

SERVICE = "/forepack.v1.Inference/"
TIMEOUT = 120
SYSTEM = "You keep the archive of a small harbour town. Answer in one sentence. " * 8  # one prefix for all chats
counts = collections.Counter()
stopping = threading.Event()


def chat_body(rng, stream):
    return json.dumps({"model": "main", "stream": stream, "max_tokens": rng.randint(1, 24),
                       "messages": [{"role": "system", "content": SYSTEM},
                                    {"role": "user", "content": "Who has number %d?" % rng.randint(1, 9999)}]}).encode()


def post(body):
    connection = http.client.HTTPConnection(http_server, timeout=TIMEOUT)
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def http_answer(rng):
    connection, response = post(chat_body(rng, False))
    data = response.read()
    connection.close()
    if response.status != 200:
        return "status %d" % response.status
    assert json.loads(data)["choices"][0]["finish_reason"] in ("stop", "length"), data
    return "answered"


def http_stream(rng):
    connection, response = post(chat_body(rng, True))
    data = response.read()
    connection.close()
    if response.status != 200:
        return "status %d" % response.status
    assert data.endswith(b"data: [DONE]\n\n") or b'"error"' in data, data[-500:]
    return "answered"


def http_stream_closed_early(rng):
    connection, response = post(chat_body(rng, True))
    for _ in range(rng.randint(0, 6)):
        response.readline()
    connection.close()
    return "closed"


def http_broken_off(rng):
    """A request of which only a part arrives, or whose answer is not awaited."""
    body = chat_body(rng, True)
    data = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    host, port = http_server.rsplit(":", 1)
    with socket.create_connection((host, int(port)), TIMEOUT) as connection:
        connection.sendall(data[:rng.randint(1, len(data))])
        time.sleep(rng.random() / 10)
    return "broken off"


channel = grpc.insecure_channel(grpc_server, options=[("grpc.enable_http_proxy", 0)])
generate = channel.unary_stream(SERVICE + "Generate", api.GenerateRequest.SerializeToString, api.GenerateResponse.FromString)
abort = channel.unary_unary(SERVICE + "Abort", api.AbortRequest.SerializeToString, api.AbortResponse.FromString)


def request(rng, max_tokens):
    return api.GenerateRequest(text=rng.choice(prompts), request_id="soak-%x" % rng.getrandbits(64),
                               sampling=api.SamplingOptions(max_tokens=max_tokens, ignore_eos=True))


def grpc_cancelled(rng):
    call = generate(request(rng, 200), timeout=TIMEOUT)
    time.sleep(rng.random() / 2)
    call.cancel()
    return "cancelled"


def grpc_aborted(rng):
    message = request(rng, 200)
    call = generate(message, timeout=TIMEOUT)
    time.sleep(rng.random() / 2)
    abort(api.AbortRequest(request_ids=[message.request_id]), timeout=TIMEOUT)
    last = list(call)[-1].completion
    assert last.finish_reason in ("cancelled", "length", "error"), last
    return "aborted"


def grpc_connection_lost(rng):
    """A separate connection that ends with calls on it."""
    lost = grpc.insecure_channel(grpc_server, options=[("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)])
    stub = lost.unary_stream(SERVICE + "Generate", api.GenerateRequest.SerializeToString, api.GenerateResponse.FromString)
    calls = [stub(request(rng, 100), timeout=TIMEOUT) for _ in range(3)]
    time.sleep(rng.random() / 2)
    lost.close()
    return "%d calls lost" % len(calls)


def repeat(action, seed):
    rng = random.Random(seed)
    while not stopping.is_set():
        try:
            counts[action.__name__, action(rng)] += 1
        except (OSError, http.client.HTTPException, grpc.RpcError, ValueError) as error:
            counts[action.__name__, type(error).__name__] += 1
            time.sleep(0.1)
        except Exception:
            if stopping.is_set():
                return
            traceback.print_exc()
            os._exit(1)


def report(*_):
    stopping.set()
    for (action, outcome), n in sorted(counts.copy().items()):
        print("%s: %s: %d" % (action, outcome, n))
    sys.stdout.flush()
    os._exit(0)


signal.signal(signal.SIGTERM, report)
actions = [http_answer, http_stream, http_stream, http_stream_closed_early, http_broken_off, grpc_cancelled, grpc_aborted,
           grpc_connection_lost]
for seed, each in enumerate(actions):
    threading.Thread(target=repeat, args=(each, seed), daemon=True).start()
while True:
    signal.pause()
