#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile input for a router: a compressed bomb, a long echo, messages of a node that grow when they are unpacked, idle sockets.

Usage: hostile_client.py PROTO_FOLDER ROUTER_PID GRPC_PORT NODE_PORT HTTP_PORT PROTOCOL_VERSION     (exit 77: skipped)
"""
import importlib
import json
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

try:
    import grpc
except ImportError as error:
    print(f"skipped: {error} (python3-grpcio and python3-protobuf are needed)")
    sys.exit(77)

proto, pid = sys.argv[1], int(sys.argv[2])
grpc_port, node_port, http_port, protocol_version = map(int, sys.argv[3:7])
MIB = 1 << 20
SOCKETS = 2000
WAIT = 600  # seconds, an upper bound

if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < SOCKETS + 200:
    print("skipped: the hard limit of descriptors is too low")
    sys.exit(77)
resource.setrlimit(resource.RLIMIT_NOFILE, (SOCKETS + 200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

folder = tempfile.TemporaryDirectory()
files = ["forepack/v1/inference.proto", "forepack/cluster/v1/cluster.proto"]
subprocess.run(["protoc", f"-I{proto}", f"--python_out={folder.name}", *files], check=True)
sys.path.insert(0, folder.name)
inference = importlib.import_module("forepack.v1.inference_pb2")
cluster = importlib.import_module("forepack.cluster.v1.cluster_pb2")


def memory(key):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(key))


def growth(action):
    """Returns by how many MiB the router's memory grows at most during the action."""
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as clear:
        clear.write("5")  # the peak starts from the present size
    before = memory("VmRSS")
    action()
    return memory("VmHWM") - before


def call(port, method, request, answer, **options):
    with grpc.insecure_channel(f"127.0.0.1:{port}", **options) as channel:
        # Compressing a large message must not delay the preface: the router waits 10 s for it.
        grpc.channel_ready_future(channel).result(WAIT)
        return channel.unary_unary(method, request_serializer=bytes if isinstance(request, bytes) else
                                   type(request).SerializeToString, response_deserializer=answer.FromString)(request, timeout=WAIT)


def model_info():
    return call(grpc_port, "/forepack.v1.Inference/GetModelInfo", inference.GetModelInfoRequest(), inference.ModelInfo)


# --- a compressed message

def send_bomb():
    try:
        call(grpc_port, "/forepack.v1.Inference/Tokenize", b"\x0a" + bytes(400 * MIB), inference.TokenizeResponse,
             compression=grpc.Compression.Gzip)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
    else:
        raise AssertionError("the bomb was accepted")


# --- messages of a node

def hello():
    info = model_info()
    return cluster.NodeMessage(hello=cluster.Hello(
        node_id="hostile", role=cluster.ROLE_SPECULATOR, version="1", host="h", ranks=1, dtype="f32", backend="cpu",
        kv_dtype="f32", model_fingerprint=1, tokenizer_fingerprint=info.tokenizer_fingerprint,
        vocab_size=info.vocab_size, context_tokens=1024, token_budget=1024, block_tokens=16, kv_blocks=1000, max_seqs=8,
        protocol=protocol_version, instance=7)).SerializeToString()


def nested(field, inner):
    """A message whose field holds bytes."""
    size, length = len(inner), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([field << 3 | 2]) + length + bytes([size]) + inner


def empty(field, mib):
    """Returns empty sub-messages of that many MiB, not counting the fields around them."""
    return bytes([field << 3 | 2, 0]) * (mib * MIB // 2 - 32)


MESSAGES = {
    "2 MiB of empty step results": nested(4, empty(1, 2)),
    "8 MiB of empty step results": nested(4, empty(1, 8)),
    "8 MiB of empty score results": nested(3, empty(1, 8)),
    "8 MiB of empty ranges": nested(3, nested(1, empty(2, 8))),
    "8 MiB of unknown fields": b"\x78\x01" * (4 * MIB),
}


def attach(messages, wanted):
    """Sends them after each other on one stream, which must end with an error."""
    received = []
    with grpc.insecure_channel(f"127.0.0.1:{node_port}") as channel:
        try:
            stream = channel.stream_stream("/forepack.cluster.v1.Cluster/Attach", request_serializer=bytes,
                                           response_deserializer=cluster.RouterMessage.FromString)
            for answer in stream(iter(messages), timeout=WAIT):
                received.append(answer.WhichOneof("kind"))
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED), error
        else:
            raise AssertionError(f"the node was served: {received}")
    assert received == wanted, received


# --- an echo

def ask_for_echoes():
    """128 choices that start with a prompt of 5 MB, which no context holds."""
    body = json.dumps({"prompt": "a " * 2500000, "n": 128, "echo": True, "max_tokens": 1}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{http_port}/v1/completions", body)
    try:
        urllib.request.urlopen(request, timeout=WAIT)
    except urllib.error.HTTPError as error:
        assert error.code == 400, error
    else:
        raise AssertionError("the prompt was accepted")


# --- sockets

def flood(port):
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(SOCKETS)]


def ask_http():
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/health", timeout=WAIT) as answer:
        assert answer.status == 200


def ask_nodes():
    """A gRPC health check on the port of nodes."""
    with grpc.insecure_channel(f"127.0.0.1:{node_port}") as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=WAIT) == b"\x08\x01"


def measure_flood(name, port, ask):
    sockets = flood(port)
    start = time.monotonic()
    ask()
    print(f"{SOCKETS} idle sockets on the {name} port, then a request: {time.monotonic() - start:.3f} s")
    for one in sockets:
        one.close()


growths = {"a gzip message of 400 MiB": growth(send_bomb)}
growths["128 echoes of a prompt of 5 MB"] = growth(ask_for_echoes)
first = hello()
for name, message in MESSAGES.items():
    growths[f"{name} before Hello"] = growth(lambda: attach([message], []))
    growths[f"{name} after Hello"] = growth(lambda: attach([first] + 4 * [message], ["welcome"]))
for name, mib in growths.items():
    print(f"{name}: the router grows by {mib:.1f} MiB")
for name, mib in growths.items():
    assert mib <= (20 if "gzip" in name else 64), name

measure_flood("gRPC", grpc_port, model_info)
measure_flood("HTTP", http_port, ask_http)
measure_flood("node", node_port, ask_nodes)
