# SPDX-License-Identifier: Apache-2.0
"""Each kind of vulnerability that was published for vLLM, SGLang and Triton in 2025 and 2026, tried on a cluster: it is refused
with the right status, and no process grows by over 20 MiB. SECURITY.md lists the kinds with their CVE numbers.

Usage: vulnerabilities_client.py WORK PROTO ROUTER_PID WORKER_PID HTTP_PORT GRPC_PORT NODE_PORT [times]
  WORK has the keys acme.key and globex.key, router.log and the folder batches; `times` prints a table for bench/.
"""
import base64
import glob
import http.client
import importlib
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile

import grpc

work, proto = sys.argv[1:3]
ROUTER, WORKER, HTTP, GRPC, NODE = map(int, sys.argv[3:8])
MIB, WAIT = 1 << 20, 600
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
MARKER = os.path.join(work, "executed")  # a file that code of an attacker would make

with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["protoc", "-I", proto, "--python_out=" + folder, proto + "/inference/kserve.proto"], check=True)
    sys.path.insert(0, folder)
    kserve = importlib.import_module("inference.kserve_pb2")


def key(tenant):
    with open(os.path.join(work, tenant + ".key"), encoding="ascii") as file:
        return file.read().strip()


def cpu_ms(pid):
    total = 0
    for path in glob.glob("/proc/%d/task/*/schedstat" % pid):
        with open(path, encoding="ascii") as file:
            total += int(file.read().split()[0]) / 1e6
    return total


costs = []  # of requests, in ms of the router's CPU time


def timed(request):
    def run(*arguments, **named):
        before = cpu_ms(ROUTER)
        try:
            return request(*arguments, **named)
        finally:
            costs.append(cpu_ms(ROUTER) - before)
    return run


@timed
def send(method, path, body=None, tenant="acme", **headers):
    """Returns the status and the body of the answer."""
    if tenant:
        headers["Authorization"] = "Bearer " + key(tenant)
    connection = http.client.HTTPConnection("127.0.0.1", HTTP, timeout=WAIT)
    try:
        connection.request(method, path, json.dumps(body) if isinstance(body, (dict, list)) else body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def refused(status, path, body, words=b""):
    got, answer = send("POST", path, body)
    assert got == status and words in answer, (path, str(body)[:200], got, answer[:300])


def answered(body, path=COMPLETIONS, tenant="acme"):
    got, answer = send("POST", path, body, tenant)
    assert got == 200, (str(body)[:200], got, answer[:300])
    return json.loads(answer)


@timed
def raw(data, port=HTTP):
    """Sends bytes and returns all that comes back until the server closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT) as connection:
        try:
            connection.sendall(data)
            while piece := connection.recv(65536):
                received += piece
        except ConnectionError:
            pass
    return received


def head(path, fields="", method="POST"):
    return ("%s %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nConnection: close\r\n%s" %
            (method, path, key("acme"), fields)).encode()


def unbounded_n():
    for n in (129, 10 ** 9, 2 ** 63, -1):
        refused(400, CHAT, {"messages": HELLO, "n": n}, b"n")
        refused(400, COMPLETIONS, {"prompt": "x", "n": n}, b"n")
    refused(400, COMPLETIONS, {"prompt": ["x"] * 1024, "n": 128}, b"choices")


def path_in_a_file_name():
    for name in ("../../executed", MARKER, "..%2f..%2fexecuted", "a/../../../executed"):
        body = ('--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--b\r\nContent-Disposition: form-data; '
                'name="file"; filename="%s"\r\n\r\nx\r\n--b--\r\n' % name)
        status, answer = send("POST", "/v1/files", body, **{"Content-Type": "multipart/form-data; boundary=b"})
        assert status in (200, 400), (name, status, answer)
    for path in ("/v1/files/../../keys/content", "/v1/files/..%2f..%2fkeys/content", "/v1/files/%2e%2e%2fkeys", "/v1/batches/..%2flock"):
        assert send("GET", path)[0] in (400, 404), path
    stored = [os.path.basename(path) for path in glob.glob(work + "/batches/files/*")]
    assert all(name.startswith("file-") for name in stored), stored


class Attack:
    def __reduce__(self):
        return os.system, ("touch '%s'" % MARKER,)


def pickle_on_open_sockets():
    for data in (pickle.dumps(Attack(), 2), b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f" + pickle.dumps(Attack())):
        for port in (HTTP, GRPC, NODE):
            raw(data + b"\r\n\r\n", port)
    text = base64.b64encode(pickle.dumps(Attack())).decode()
    for path in ("/update_weights_from_tensor", "/load_lora_adapter_from_tensors", "/v1/load_lora_adapter", "/collective_rpc"):
        refused(404, path, {"serialized_named_tensors": [text]})
    refused(400, COMPLETIONS, {"prompt_embeds": text, "max_tokens": 1}, b"prompt")
    refused(400, COMPLETIONS, {"prompt": "x", "logits_processors": [text]}, b"logits_processors")
    listening = {line.split()[9] for name in ("tcp", "tcp6") for line in open("/proc/net/" + name, encoding="ascii")
                 if line.split()[3] == "0A"}
    sockets = {os.readlink(path) for path in glob.glob("/proc/%d/fd/*" % WORKER) if os.path.islink(path)}
    assert not any("socket:[%s]" % inode in sockets for inode in listening), "the worker listens"


def chunked_bodies():
    chunks = head(COMPLETIONS, "Transfer-Encoding: chunked\r\n\r\n") + b"1\r\n[\r\n" * 500000 + b"0\r\n\r\n"
    assert b" 400 " in raw(chunks).split(b"\r\n")[0]
    for size in (b"7fffffffffffffff", b"ffffffffffffffffff", b"-1"):
        assert b" 4" in raw(head(COMPLETIONS, "Transfer-Encoding: chunked\r\n\r\n") + size + b"\r\nx\r\n").split(b"\r\n")[0], size
    refused(400, COMPLETIONS, b"[" * 1000000)
    refused(400, COMPLETIONS, b'{"prompt":' + b'{"a":' * 100000)


def authentication_by_path():
    for path in ("/v1/models", "/v1/models/", "//v1/models", "/V1/models", "/v1/../v1/models", "/health/../v1/models", "/v1%2fmodels",
                 "/v1/models?x=/health", "/v1/models;/health", "/health/%2e%2e/v1/models", "http://localhost/v1/models",
                 "/live/events", "/metrics", "/invocations", "/inference/v1/generate"):
        status, answer = send("GET", path, None, None, **{"X-Original-URL": "/health", "X-Forwarded-Prefix": "/health"})
        assert status in (400, 401, 404, 405) and b'"data"' not in answer, (path, status, answer[:200])
    for path in (COMPLETIONS, "/invocations", "/v1/completions/", "/./v1/completions", "/tokenize", "/v1/score"):
        assert send("POST", path, {"prompt": "x", "max_tokens": 1}, None)[0] in (400, 401, 404), path
    for wrong in (key("acme")[:-1], key("acme") + "x", "", "x" * 30000):
        assert send("GET", "/v1/models", None, None, Authorization="Bearer " + wrong)[0] in (401, 431), wrong


@timed
def infer(request):
    with grpc.insecure_channel("127.0.0.1:%d" % GRPC) as channel:
        stub = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", type(request).SerializeToString,
                                   kserve.ModelInferResponse.FromString)
        try:
            stub(request, timeout=WAIT, metadata=(("authorization", "Bearer " + key("acme")),))
        except grpc.RpcError as error:
            return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def text_input(shape=(1,), contents=(b"Hello",)):
    made = kserve.ModelInferRequest.InferInputTensor(name="text_input", datatype="BYTES", shape=shape)
    made.contents.bytes_contents.extend(contents)
    return made


def output_count():
    outputs = [kserve.ModelInferRequest.InferRequestedOutputTensor(name="text_output")] * 100000
    code, sentence = infer(kserve.ModelInferRequest(model_name="main", inputs=[text_input()], outputs=outputs))
    assert code == grpc.StatusCode.INVALID_ARGUMENT, (code, sentence)
    for number in (21, 10 ** 9, 10 ** 30, -2):
        refused(400, COMPLETIONS, {"prompt": "x", "logprobs": number}, b"logprobs")
        refused(400, COMPLETIONS, {"prompt": "x", "prompt_logprobs": number}, b"prompt_logprobs")
        refused(400, CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": number}, b"top_logprobs")


def overflow_of_shapes():
    for shape in ((2 ** 62, 4), (-1,), (2 ** 32, 2 ** 32), (0,), (2,), (1,) * 1000 + (2,), (2 ** 63 - 1,)):
        code, sentence = infer(kserve.ModelInferRequest(model_name="main", inputs=[text_input(shape)]))
        assert code == grpc.StatusCode.INVALID_ARGUMENT, (shape[:4], code, sentence)
    request = kserve.ModelInferRequest(model_name="main", inputs=[kserve.ModelInferRequest.InferInputTensor(
        name="text_input", datatype="BYTES", shape=[1])], raw_input_contents=[b"\xff\xff\xff\xff" + b"x"])
    assert infer(request)[0] == grpc.StatusCode.INVALID_ARGUMENT


def shared_memory():
    with grpc.insecure_channel("127.0.0.1:%d" % GRPC) as channel:
        for method in ("SystemSharedMemoryRegister", "CudaSharedMemoryRegister", "SystemSharedMemoryStatus", "RepositoryModelLoad"):
            try:
                channel.unary_unary("/inference.GRPCInferenceService/" + method)(
                    b"", timeout=WAIT, metadata=(("authorization", "Bearer " + key("acme")),))
                raise AssertionError(method)
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.UNIMPLEMENTED, (method, error)


def template_injection():
    payload = "{{ cycler.__init__.__globals__.os.system('touch %s') }}{%% for i in range(10**9) %%}x{%% endfor %%}" % MARKER
    ids = json.loads(send("POST", "/tokenize", {"messages": [{"role": "user", "content": payload}]})[1])["tokens"]
    assert payload in json.loads(send("POST", "/detokenize", {"tokens": ids})[1])["prompt"], "the content was rendered"
    refused(400, CHAT, {"messages": HELLO, "chat_template": payload}, b"chat_template")
    wide = {"messages": [payload * 1000], "chat_template": payload, "tokenize": True, "add_generation_prompt": {"x": ["y"] * 1000}}
    status, _ = send("POST", CHAT, {"messages": HELLO, "max_tokens": 1, "chat_template_kwargs": wide})
    assert status in (200, 400), status


def regex_bombs():
    for pattern in ("((((a{1,1000}){1,1000}){1,1000}){1,1000})", "(a|a?)+" * 20000, "(a+)+$"):  # no engine here goes back
        status, answer = send("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 4, "guided_regex": pattern})
        assert status in (200, 400), (pattern[:40], status, answer)
    for pattern in ("(" * 50000, "[", "\\p{", "(a)\\1"):
        refused(400, COMPLETIONS, {"prompt": "x", "max_tokens": 4, "guided_regex": pattern}, b"structured output")
    call = '<tool_call>{"name": ' + "(" * 1000 + "[" * 1000
    answered({"messages": [{"role": "assistant", "content": call}, *HELLO], "max_tokens": 2}, CHAT)
    answered({"prompt": "<|eot|>" * 300, "max_tokens": 1})


def malformed_grammars():
    for schema in ({"type": "nothing"}, {"type": "string", "pattern": "("}, {"$ref": "#"}, {"type": "object", "properties": 7}):
        refused(400, COMPLETIONS, {"prompt": "x", "guided_json": schema})
        refused(400, CHAT, {"messages": HELLO, "tool_choice": "required", "tools": [
            {"type": "function", "function": {"name": "f", "parameters": schema}}]})
    deep = b'{"prompt":"x","guided_json":' + b'{"items":' * 3000 + b"{}" + b"}" * 3001
    refused(400, COMPLETIONS, deep)
    refused(400, COMPLETIONS, {"prompt": "x", "guided_grammar": "start: " + "(" * 100000}, b"")
    for tools in ([{"type": []}], [{"type": "function", "function": {"name": {}, "parameters": "x"}}], {}, [None]):
        refused(400, CHAT, {"messages": HELLO, "tools": tools})


def urls_in_fields():
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.setblocking(False)
        for url in ("http://127.0.0.1:%d/" % inside.getsockname()[1], "http://evil\\@127.0.0.1:%d/" % inside.getsockname()[1],
                    "file:///etc/passwd", "data:image/png;base64," + "A" * MIB):
            for kind in ("image_url", "audio_url", "video_url", "file", "input_audio"):
                refused(400, CHAT, {"messages": [{"role": "user", "content": [{"type": kind, kind: {"url": url}}]}]})
            refused(400, "/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]})
            refused(400, "/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "url", "url": url}}]}]})
        try:
            inside.accept()
            raise AssertionError("the router opened a connection")
        except BlockingIOError:
            pass


def log_injection():
    forged = "\n2026-01-01 error router forged \x1b[2J\r\n{\"level\":\"error\",\"event\":\"forged\"}\u2028forged"
    refused(404, COMPLETIONS, {"prompt": "x", "model": forged})
    refused(403, COMPLETIONS, {"prompt": "x", "tenant": forged})
    answered({"prompt": "x", "max_tokens": 1, "user": forged, forged: 1, "cache_salt": forged})
    send("GET", "/v1/models", None, "acme", **{"X-Request-Id": "\x1b[2Jforged", "User-Agent": "forged \x1b[2J"})
    with open(os.path.join(work, "router.log"), "rb") as file:
        lines = file.read().split(b"\n")
    assert not any(line.startswith((b"2026-01-01", b"forged", b"{")) or b"\x1b" in line or b"\r" in line for line in lines)


def cache_timing():
    """An entry of the prefix cache is found by the same tenant with the same salt only."""
    def cached(tenant, **fields):
        return answered({"prompt": "A secret prompt of the first tenant. " * 20, "max_tokens": 1, **fields}, tenant=tenant)[
            "usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
    assert cached("acme") == 0 and cached("acme") > 0 and cached("globex") == 0
    assert cached("acme", cache_salt="one") == 0 and cached("acme", cache_salt="one") > 0 and cached("acme", cache_salt="two") == 0
    assert cached("globex", cache_salt="one") == 0, "a salt opens the cache of another tenant"


def large_heads_and_bodies():
    assert b" 431 " in raw(head(COMPLETIONS, "X: %s\r\n\r\n" % ("x" * 4 * MIB))).split(b"\r\n")[0]
    assert b" 431 " in raw(head(COMPLETIONS, "X: x\r\n" * 10000 + "\r\n")).split(b"\r\n")[0]
    assert b" 413 " in raw(head(COMPLETIONS, "Content-Length: %d\r\n\r\n" % (1 << 40))).split(b"\r\n")[0]
    refused(400, COMPLETIONS, {"prompt": "x" * 4 * MIB, "max_tokens": 1}, b"context")


@timed
def begin(body):
    """Reads the first bytes of an answer and leaves."""
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", HTTP), timeout=WAIT) as connection:
        connection.sendall(head(COMPLETIONS, "Content-Length: %d\r\n\r\n" % len(data)) + data)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def cancelled_streams():
    for _ in range(20):
        begin({"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": True, "n": 4})


KINDS = [unbounded_n, path_in_a_file_name, pickle_on_open_sockets, chunked_bodies, authentication_by_path, output_count,
         overflow_of_shapes, shared_memory, template_injection, regex_bombs, malformed_grammars, urls_in_fields, log_injection,
         cache_timing, large_heads_and_bodies, cancelled_streams]


def memory(pid, name):
    with open("/proc/%d/status" % pid, encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))


def measure(kind):
    """Returns the growth of router and worker in MiB, and the router's CPU time for the costliest request in ms."""
    for pid in (ROUTER, WORKER):
        with open("/proc/%d/clear_refs" % pid, "w", encoding="ascii") as file:
            file.write("5")  # the peak starts from the present size
    before = [memory(pid, "VmRSS") for pid in (ROUTER, WORKER)]
    costs.clear()
    kind()
    return [memory(pid, "VmHWM") - was for pid, was in zip((ROUTER, WORKER), before)], max(costs, default=0)


for _ in range(3):  # memory that any request needs
    answered({"prompt": "Hello", "max_tokens": 4, "n": 8})
    answered({"messages": HELLO, "max_tokens": 4}, CHAT)
for one in KINDS:
    grown, ms = measure(one)
    if sys.argv[8:] == ["times"]:
        print("| %s | %.1f | %.1f | %.1f |" % (one.__name__, ms, *grown), flush=True)
    assert max(grown) <= 20, "%s: router and worker grow by %s MiB" % (one.__name__, grown)
    assert not os.path.exists(MARKER), "%s: code was executed" % one.__name__
answered({"prompt": "Hello", "max_tokens": 4})
print("vulnerabilities: %d kinds refused" % len(KINDS))
