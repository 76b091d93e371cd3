#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that overload a cluster: requests that are too large, too late or too many, slow readers, clients that vanish.
Uses Debian's Python gRPC.

Usage: load_client.py HOST:PORT REPOSITORY SCENARIO [NUMBER]
"""
import importlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

import grpc

server, repository, scenario = sys.argv[1:4]
number = int(sys.argv[4]) if len(sys.argv) > 4 else 0
WAIT = 600  # seconds, an upper bound
SERVICE = "/forepack.v1.Inference/"
code = grpc.StatusCode
FULL = "the queue is full for this tenant"

with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["protoc", "-I", repository + "/proto", "--python_out=" + folder,
                    repository + "/proto/forepack/v1/inference.proto"], check=True)
    sys.path.insert(0, folder)
    api = importlib.import_module("forepack.v1.inference_pb2")


def connect():
    """A connection of its own."""
    return grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)])


channel = connect()


def unary(name, request, answer, timeout=WAIT):
    return channel.unary_unary(SERVICE + name, type(request).SerializeToString, answer.FromString)(request, timeout=timeout)


def generate(request, timeout=WAIT, over=None):
    stub = (over or channel).unary_stream(SERVICE + "Generate", api.GenerateRequest.SerializeToString,
                                          api.GenerateResponse.FromString)
    return stub(request, timeout=timeout)


def generate_many(requests):
    stub = channel.stream_stream(SERVICE + "GenerateMany", api.GenerateRequest.SerializeToString,
                                 api.GenerateResponse.FromString)
    return stub(requests, timeout=WAIT)


def request(max_tokens, **fields):
    return api.GenerateRequest(sampling=api.SamplingOptions(max_tokens=max_tokens, ignore_eos=True), **fields)


def failure(call):
    """Status and sentence of a call that must fail."""
    try:
        answers = list(call)
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("went well: %s" % answers[-1:])


def refused(wanted, fragment, call):
    status, sentence = failure(call)
    assert status == wanted and fragment in sentence, (wanted, fragment, status, sentence)


info = unary("GetModelInfo", api.GetModelInfoRequest(), api.ModelInfo)


def bad_requests():
    """Requests that can never be served are refused with a reason, alone and among others."""
    n = info.context_tokens
    never = [  # code, what the sentence names, the request
        (11, "the prompt is too long (%d tokens)" % (n + 1), request(1, token_ids=[1] * (n + 1))),
        (11, "more than any prompt of this length", request(1, text="x" * 50000000)),
        (11, "context", request(1, token_ids=[1] * n)),
        (11, "context", request(n, text="x")),
        (11, "context", request(2**31 - 1, text="x")),
        (3, "empty", request(1)),
        (4, "ttft_deadline_ms", request(100, text="x " * (n // 4), ttft_deadline_ms=1)),
    ]
    codes = {3: code.INVALID_ARGUMENT, 4: code.DEADLINE_EXCEEDED, 11: code.OUT_OF_RANGE}
    for status, fragment, message in never:
        refused(codes[status], fragment, generate(message))
    for i, (status, fragment, message) in enumerate(never):
        message.request_id = "bad-%d" % i
    good = [request(3, text="Hello", request_id="good-%d" % i) for i in range(len(never))]
    mixed = [message for pair in zip([m for _, _, m in never], good) for message in pair]
    done = {m.request_id: m.completion for m in generate_many(iter(mixed)) if m.WhichOneof("kind") == "completion"}
    assert len(done) == 2 * len(never), sorted(done)
    for i, (status, fragment, message) in enumerate(never):
        error = done["bad-%d" % i].error
        assert error.code == status and fragment in error.message, (i, error)
        assert done["good-%d" % i].finish_reason == "length"
    # A deadline of the call that has passed: the client's library notices it first.
    assert failure(generate(request(n - 100, text="x"), timeout=1e-6))[0] == code.DEADLINE_EXCEEDED
    # Millions of empty chat messages would take gigabytes when unpacked.
    bomb = channel.unary_stream(SERVICE + "Generate", bytes, api.GenerateResponse.FromString)
    refused(code.INVALID_ARGUMENT, "fields", bomb(b"\x2a\x00" * 300000, timeout=WAIT))
    refused(code.OUT_OF_RANGE, "the message has 60000000 bytes", bomb(b"\x2a\x00" * 30000000, timeout=WAIT))
    bomb = channel.unary_unary(SERVICE + "Tokenize", bytes, bytes)
    refused(code.INVALID_ARGUMENT, "fields", iter(lambda: bomb(b"\x12\x00" * 30000000, timeout=WAIT), None))


def cluster():
    return unary("GetClusterInfo", api.GetClusterInfoRequest(), api.ClusterInfo)


def crowd():
    """Sends `number` requests on one call, and some on separate calls and connections, first and when the queue is full:
    each is answered or refused exactly once, refused because the queue is full. The worker group is stopped until this
    client prints `full`."""
    channels = [connect() for _ in range(10)]

    def some(name):
        return [generate(request(2, text="Once upon a time", request_id="%s-%d" % (name, i)), over=channels[i % 10])
                for i in range(50)]

    begin = []
    signal.signal(signal.SIGUSR1, lambda *_: begin.append(True))
    print("here", flush=True)
    while not begin:
        time.sleep(0.05)
    before = cluster().totals.requests
    early, late = some("early"), []
    while cluster().totals.requests < before + len(early):
        time.sleep(0.05)
    completions, reasons = {}, set()
    requests = (request(2, text="Once upon a time", request_id="crowd-%d" % i) for i in range(number))
    for m in generate_many(requests):
        if m.WhichOneof("kind") != "completion":
            continue
        assert m.request_id not in completions, m.request_id
        completions[m.request_id] = m.completion.finish_reason
        if m.completion.finish_reason != "error":
            assert m.completion.usage.completion_tokens == 2, m
            continue
        reason = re.sub("[0-9]+ ", "", m.completion.error.message.split(":")[0])
        reasons.add((m.completion.error.code, reason))
        if not late and reason == FULL:
            late = some("late")
            for call in late:
                refused(code.RESOURCE_EXHAUSTED, "try again later", call)
                assert int(dict(call.trailing_metadata())["retry-after-ms"]) > 0
            print("full", flush=True)
    refusals = sum(1 for reason in completions.values() if reason == "error")
    assert len(completions) == number, (len(completions), number)
    assert reasons <= {(8, FULL), (8, "the router is events behind")}, reasons
    assert late and number - refusals > 0, refusals
    for call in early:
        assert list(call)[-1].completion.usage.completion_tokens == 2
    print("%d answered, %d refused: the queue is full" % (number - refusals, refusals))


# --- connections without a library: libraries read ahead and send whole messages


def http2_frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def generate_by_hand(receive_buffer=None):
    """A connection with an open call of Generate, as stream 1, without its message."""
    host, port = server.rsplit(":", 1)
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((host, int(port)))
    header = lambda name, value: bytes([0, len(name)]) + name + bytes([len(value)]) + value  # a literal that is not indexed
    headers = b"".join(header(*h) for h in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", (SERVICE + "Generate").encode()),
        (b":authority", server.encode()), (b"content-type", b"application/grpc"), (b"te", b"trailers")))
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0, b"") + http2_frame(1, 4, 1, headers))
    return connection


def tokens(i, n):
    """Returns a prompt that differs for each i."""
    return [10 + (17 * k + 31 * i) % 400 for k in range(n)]


def slow():
    """Clients that read one byte per second, and `number` clients that read nothing until SIGUSR1 arrives."""
    enough = []
    signal.signal(signal.SIGUSR1, lambda *_: enough.append(True))
    readers = []
    for prefill in (api.PREFILL_MODE_OFF, api.PREFILL_MODE_ON):
        long = request(info.context_tokens - 1100, token_ids=tokens(prefill, 1000), request_id="drip-%d" % prefill)
        long.sampling.logprobs = 20
        long.prefill.mode = prefill
        body = long.SerializeToString()
        readers.append(generate_by_hand(2048))
        readers[-1].sendall(http2_frame(0, 1, 1, b"\0" + len(body).to_bytes(4, "big") + body))
    # The longest possible refusals, to clients that do not read them.
    never, taken = [], [0]

    def refusals():
        for _ in range(40000):
            taken[0] += 1
            yield request(1, request_id="i" * 256, model="m" * 256)

    for _ in range(number):
        stub = connect().stream_stream(SERVICE + "GenerateMany", api.GenerateRequest.SerializeToString,
                                       api.GenerateResponse.FromString)
        never.append(stub(refusals(), timeout=WAIT))
    print("reading", flush=True)
    still = 0
    while still < 4 or not enough:  # until the server reads no more of their requests, while it answers others
        before = taken[0]
        unary("GetModelInfo", api.GetModelInfoRequest(), api.ModelInfo)
        for reader in readers:
            assert reader.recv(1), "the server ended the connection"
        time.sleep(1)
        still = still + 1 if taken[0] == before else 0
    for call in never:
        refused(code.RESOURCE_EXHAUSTED, "too slowly", call)


class Hoarder:
    """Sends a message of the maximum size without its end, as fast as the server reads it."""
    SIZE = 60 << 20

    def __init__(self):
        self.connection = generate_by_hand()
        self.connection.setblocking(False)
        self.stream_window = self.window = self.initial = 65535
        self.sent, self.ended, self.out, self.inbox = 0, False, b"", b""

    def wants(self):
        return not self.ended and (self.out or (self.sent < self.SIZE and min(self.window, self.stream_window) > 0))

    def send(self):
        if not self.out:
            n = min(16384, self.SIZE - self.sent, self.window, self.stream_window)
            start = b"" if self.sent else b"\0" + (62 << 20).to_bytes(4, "big")
            self.out = http2_frame(0, 0, 1, start + bytes(n - len(start)))
            self.sent, self.window, self.stream_window = self.sent + n, self.window - n, self.stream_window - n
        self.out = self.out[self.connection.send(self.out):]

    def receive(self):
        got = self.connection.recv(1 << 16)
        self.ended |= not got
        self.inbox += got
        while len(self.inbox) >= 9:
            size, kind, flags = int.from_bytes(self.inbox[:3], "big"), self.inbox[3], self.inbox[4]
            if len(self.inbox) < 9 + size:
                return
            stream, payload = int.from_bytes(self.inbox[5:9], "big"), self.inbox[9:9 + size]
            self.inbox = self.inbox[9 + size:]
            if kind == 8 and stream:
                self.stream_window += int.from_bytes(payload, "big")
            elif kind == 8:
                self.window += int.from_bytes(payload, "big")
            elif kind == 4 and not flags & 1:
                for i in range(0, size, 6):
                    if payload[i:i + 2] == b"\0\4":
                        initial = int.from_bytes(payload[i + 2:i + 6], "big")
                        self.stream_window += initial - self.initial
                        self.initial = initial
                self.out += http2_frame(4, 1, 0, b"")
            elif kind == 6 and not flags & 1:
                self.out += http2_frame(6, 1, 0, payload)
            elif kind in (3, 7) or (kind == 1 and flags & 1):
                self.ended = True


def hoard():
    """`number` connections that send messages without an end."""
    hoarders = [Hoarder() for _ in range(number)]
    told, progress = False, time.monotonic()
    while True:
        alive = [h for h in hoarders if not h.ended]
        readable, writable, _ = select.select([h.connection for h in alive],
                                              [h.connection for h in alive if h.wants()], [], 1)
        for h in alive:
            try:
                if h.connection in readable:
                    h.receive()
                if h.connection in writable and not h.ended:
                    sent = h.sent
                    h.send()
                    progress = time.monotonic() if h.sent > sent else progress
            except ConnectionError:
                h.ended = True
        if not told and time.monotonic() - progress > 4:
            sent = sum(h.sent for h in hoarders)
            assert sent < number * Hoarder.SIZE, "the server took all of it"
            print("hoarding: %d MiB of %d were taken, %d calls were ended" %
                  (sent >> 20, number * Hoarder.SIZE >> 20, sum(h.ended for h in hoarders)), flush=True)
            told = True


def long_prompt():
    text = ("The lighthouse keeper wrote %d lines about the sea. " * 20) % tuple(range(20))
    tokens_of_text = len(unary("Tokenize", api.TokenizeRequest(text=text), api.TokenizeResponse).token_ids)
    return text * (100000 // tokens_of_text)


def drain():
    """`number` prompts of 100,000 tokens at a router that is told to stop when this client prints `sent`: prompts that
    waited to be tokenised are still read and answered by the worker group's limits, later prompts are refused."""
    long = long_prompt()
    calls = [generate(request(1, text=long)) for i in range(number)]
    refused(code.OUT_OF_RANGE, "maximum context length", calls[0])
    print("sent", flush=True)
    read = 1
    for call in calls[1:]:
        status, sentence = failure(call)
        read += status == code.OUT_OF_RANGE and "maximum context length" in sentence
        assert status == code.OUT_OF_RANGE or "the router is shutting down" in sentence, (status, sentence)
    print("%d of %d prompts were read" % (read, number))


def full():
    """Chat messages of 700 KB at a router that lets 1 MiB wait to be tokenised: each is refused under its own id."""
    chat = [api.Message(role="user", content="sea " * 175000)]
    for round in range(100):
        ids = ["%d-%d" % (round, i) for i in range(10)]
        many = list(generate_many(iter([request(1, messages=chat, request_id=name) for name in ids])))
        assert sorted(m.request_id for m in many) == ids, many
        if any("wait to be tokenised" in m.completion.error.message for m in many):
            return
    raise AssertionError("no message was refused")


def heavy():
    """`number` prompts of 100,000 tokens at once, which no worker group can hold, and a chat message of 60 MiB, while an
    answer is streamed: they are refused, and the stream equals a quiet router's."""
    def answer():
        calls = generate(request(1500, text="Once upon a time", request_id="stream"))
        first = next(calls)
        yield first
        tokens = list(first.chunk.token_ids)
        for message in calls:
            tokens += message.chunk.token_ids
        yield tokens

    def whole():
        return list(answer())[1]

    calm = whole()
    assert len(calm) == 1500, len(calm)
    long = long_prompt()
    stream = answer()
    next(stream)
    calls = [generate(request(1, text=long)) for i in range(number)]
    for call in [generate(request(1, text=long)) for i in range(10)]: # clients that go while their prompts wait
        call.cancel()
    many = generate_many(iter([request(1, text=long, request_id="many-%d" % i) for i in range(5)]))
    chat = api.GenerateRequest(messages=[api.Message(role="user", content="sea " * (15 << 20))])
    status, sentence = failure(generate(chat))
    assert status in (code.OUT_OF_RANGE, code.RESOURCE_EXHAUSTED), (status, sentence)
    assert list(generate(request(1, text="a short one")))[-1].completion.usage.completion_tokens == 1
    assert next(stream) == calm
    for call in calls:
        refused(code.OUT_OF_RANGE, "maximum context length", call)
    # A call whose client has sent everything ends after the last of its prompts.
    assert sorted((m.request_id, m.completion.error.code) for m in many) == [("many-%d" % i, 11) for i in range(5)]


def vanish():
    """`number` requests on ten connections, every other one with a prompt to be scored, until this process is killed."""
    channels = [connect() for _ in range(10)]
    short = request(info.context_tokens - 200, text="Once upon a time")
    calls = []
    for i in range(number):
        long = request(200, token_ids=tokens(i, info.context_tokens - 300))
        long.prefill.mode = api.PREFILL_MODE_ON
        calls.append(generate(long if i % 2 else short, over=channels[i % 10]))
    signal.pause()
    return calls


scenarios = {"bad": bad_requests, "crowd": crowd, "drain": drain, "full": full, "heavy": heavy, "slow": slow, "vanish": vanish, "hoard": hoard}
os.environ.pop("GRPC_VERBOSITY", None)
try:
    scenarios[scenario]()
    print("%s: passed" % scenario, flush=True)
    code_of_end = 0
except Exception:
    traceback.print_exc()
    code_of_end = 1
sys.stderr.flush()
os._exit(code_of_end)  # does not wait for calls that the library still has open
