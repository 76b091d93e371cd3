# SPDX-License-Identifier: Apache-2.0
"""Checks the spans of requests over HTTP and gRPC, which a collector (collector.py) wrote.

Usage: tracing_client.py http://HOST:PORT HOST:PORT SPANS.jsonl ROUTER.log requests|replay
"""
import http.client
import json
import re
import socket
import sys
import time
import urllib.error
import urllib.request

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

url, server, spans_file, log_file, mode = sys.argv[1:6]
SECRET = "marzipan-obelisk"  # in every prompt, and in no span
LONG = (SECRET + " The quick brown fox jumps over the lazy dog. ") * 40
PHASES = ["admit", "tokenise", "queue", "score", "pack_wait", "prefill", "decode"]
MODEL = "main"
WAIT = 600  # seconds, an upper bound
last = 0


def new_parent(flags="01"):
    """Returns the traceparent of a new trace, and the trace's id."""
    global last
    last += 1
    trace = "%032x" % (0xabc000 + last)
    return trace, "00-%s-00000000000000ff-%s" % (trace, flags)


def post(path, body, headers=()):
    request = urllib.request.Request(url + path, json.dumps(body).encode(),
                                     {"content-type": "application/json", **dict(headers)})
    try:
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def spans():
    with open(spans_file) as rows:
        text = rows.read()
    assert SECRET not in text
    return [json.loads(line) for line in text.splitlines()]


def poll(what, condition):
    end = time.monotonic() + WAIT
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, "waited in vain for " + what
        time.sleep(0.05)


def servers(condition, n=1):
    """Returns the n server spans that meet the condition, once they are there."""
    def found():
        rows = [s for s in spans() if s["kind"] == 2 and condition(s)]
        return rows if len(rows) >= n else None
    rows = poll("a span", found)
    assert len(rows) == n, rows
    return rows


def of_trace(trace, n=1):
    return servers(lambda s: s["trace"] == trace, n)


def of_id(request_id):
    return servers(lambda s: s["attributes"].get("gen_ai.response.id") == request_id)[0]


def check_phases(span, expected, nodes=None):
    """The spans below follow one another from the start to the end of the request."""
    parts = sorted((s for s in spans() if s["parent"] == span["span"]), key=lambda s: (s["start"], s["end"]))
    names = [s["name"] for s in parts]
    assert sorted(names) == sorted(expected), names
    at = span["start"]
    for part in parts:
        assert part["trace"] == span["trace"] and part["kind"] == 1 and part["flags"] & 1, part
        assert part["start"] == at <= part["end"], (part, at)
        at = part["end"]
    assert at == span["end"], (parts, span)
    assert len({s["span"] for s in parts} | {span["span"]}) == len(parts) + 1
    for part in parts:
        node = part["attributes"].get("forepack.node")
        on_node = part["name"] in ("score", "prefill", "decode")
        assert (node is not None) == on_node, part
        if nodes and on_node:
            assert node == nodes[part["name"]], part
    return parts


def check_time(span):
    now = time.time_ns()
    assert now - WAIT * 10**9 < span["start"] <= span["end"] < now + 10**9, (span, now)


def log_lines(event, trace):
    with open(log_file) as lines:
        return [line for line in lines if " " + event + " " in line and "trace=" + trace in line]


def check_http():
    trace, parent = new_parent()
    body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "seed": 1,
            "prefill": "off", "ignore_eos": True}
    status, answer = post("/v1/chat/completions", body, {"traceparent": parent, "tracestate": "a=1"}.items())
    assert status == 200, answer
    span = of_trace(trace)[0]
    check_phases(span, [p for p in PHASES if p != "score"], {"prefill": "worker-0", "decode": "worker-0"})
    check_time(span)
    assert span["parent"] == "00000000000000ff" and span["state"] == "a=1" and span["status"] == {}, span
    assert span["flags"] == 0x301, span
    model, usage = answer["model"], answer["usage"]
    assert span["name"] == "chat " + model, span
    assert span["resource"]["service.name"] == "forepack-test" and span["scope"] == "forepack.router", span
    assert {"service.version", "service.instance.id", "host.name"} < span["resource"].keys(), span
    expected = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "forepack", "gen_ai.request.model": model,
        "gen_ai.response.model": model, "gen_ai.response.id": answer["id"], "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.request.max_tokens": 5, "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 0.9,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"], "gen_ai.usage.output_tokens": 5,
        "server.address": "127.0.0.1", "server.port": int(url.rsplit(":", 1)[1]),
        "forepack.kept_tokens": usage["prompt_tokens"], "forepack.scored_tokens": 0, "forepack.score_cached_tokens": 0, "forepack.replays": 0,
        "forepack.prefill": "whole", "forepack.prefill.skip_reason": "off"}
    got = span["attributes"]
    assert expected.items() <= {k: v for k, v in got.items() if k in expected}.items(), got
    first = got["gen_ai.response.time_to_first_chunk"]
    assert 0 < first <= (span["end"] - span["start"]) / 1e9, got
    assert len(log_lines("request_done", trace)) == 1
    assert "req=" + got["forepack.request"] in log_lines("request_done", trace)[0]


def check_parents():
    body = {"prompt": SECRET + " Hi", "max_tokens": 1}
    trace, parent = new_parent("00")  # not sampled
    assert post("/v1/completions", body, {"traceparent": parent}.items())[0] == 200
    poll("the line", lambda: log_lines("request_done", trace))
    unsampled = trace
    for wrong in (parent.upper(), parent + "-", parent.replace("00-", "ff-", 1), "garbage"):
        status, answer = post("/v1/completions", body, {"traceparent": wrong}.items())
        span = of_id(answer["id"])
        assert span["trace"] not in wrong.lower() and span["parent"] == "" and span["flags"] == 0x101, span
        assert span["name"].startswith("text_completion "), span
    # If there are two parents, neither counts; several states count as one.
    trace, parent = new_parent()
    connection = http_connection()
    for twice in ("traceparent", "tracestate"):
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("traceparent", parent)
        if twice == "traceparent":
            connection.putheader("traceparent", parent)
        connection.putheader("tracestate", "a=1")
        connection.putheader("tracestate", "b=2")
        data = json.dumps(body).encode()
        connection.putheader("content-length", str(len(data)))
        connection.endheaders(data)
        answer = json.load(connection.getresponse())
        span = of_id(answer["id"])
        if twice == "traceparent":
            assert span["trace"] != trace and span["state"] == "", span
        else:
            assert span["trace"] == trace and span["state"] == "a=1,b=2", span
    # By now the span would have come.
    assert not [s for s in spans() if s["trace"] == unsampled]


def http_connection():
    return http.client.HTTPConnection(url.removeprefix("http://"), timeout=WAIT)


def check_choices():
    trace, parent = new_parent()
    body = {"prompt": [SECRET, SECRET + " two"], "n": 2, "max_tokens": 2, "ignore_eos": True}
    assert post("/v1/completions", body, {"traceparent": parent}.items())[0] == 200
    rows = of_trace(trace, 4)
    assert len({s["span"] for s in rows} | {s["attributes"]["gen_ai.response.id"] for s in rows}) == 8, rows
    status, answer = post("/v1/completions", body)
    row = of_id(answer["id"])
    of_trace(row["trace"], 4)


def check_failures():
    trace, parent = new_parent()
    headers = {"traceparent": parent}.items()
    status, _ = post("/v1/completions", {"prompt": SECRET, "max_tokens": 1, "temperature": -1}, headers)
    assert status == 400
    row = of_trace(trace)[0]
    assert row["status"] == {"code": "STATUS_CODE_ERROR"} and row["attributes"]["error.type"] == "invalid", row
    assert "gen_ai.response.finish_reasons" not in row["attributes"], row
    trace, parent = new_parent()
    status, _ = post("/v1/completions", {"prompt": SECRET, "model": SECRET}, {"traceparent": parent}.items())
    assert status == 404
    assert of_trace(trace)[0]["attributes"]["error.type"] == "not_found"
    trace, parent = new_parent()  # refused by the core
    status, _ = post("/v1/completions", {"prompt": SECRET, "max_tokens": 1, "ttft_deadline_ms": 1, "prefill": "off"},
                     {"traceparent": parent}.items())
    row = of_trace(trace)[0]
    if status != 200:
        assert row["status"]["code"] == "STATUS_CODE_ERROR" and row["attributes"]["error.type"] == "deadline", row
    trace, parent = new_parent()  # not JSON
    request = urllib.request.Request(url + "/v1/completions", SECRET.encode(), {"traceparent": parent})
    try:
        urllib.request.urlopen(request, timeout=WAIT)
        raise AssertionError("was not refused")
    except urllib.error.HTTPError as error:
        assert error.code == 400
    assert of_trace(trace)[0]["attributes"]["error.type"] == "invalid"


def check_cancelled():
    trace, parent = new_parent()
    connection = http_connection()
    body = {"prompt": SECRET, "max_tokens": 1500, "ignore_eos": True, "stream": True, "return_token_ids": True}
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"content-type": "application/json", "traceparent": parent})
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    row = of_trace(trace)[0]
    assert row["attributes"]["gen_ai.response.finish_reasons"] == ["cancelled"] and row["status"] == {}, row
    assert 0 < row["attributes"]["gen_ai.usage.output_tokens"] < 1500, row
    check_phases(row, [p for p in PHASES if p != "score"])


def check_score():
    trace, parent = new_parent()
    status, answer = post("/v1/score", {"prompt": LONG}, {"traceparent": parent}.items())
    assert status == 200, answer
    row = of_trace(trace)[0]
    check_phases(row, ["admit", "tokenise", "queue", "score"], {"score": "spec-0"})
    assert row["name"].startswith("score ") and "gen_ai.request.max_tokens" not in row["attributes"], row


def grpc_types(service, name):
    channel = grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0)])
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    method = pool.FindServiceByName(service).FindMethodByName(name)
    return (channel, message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type))


def check_grpc():
    channel, request, response = grpc_types("forepack.v1.Inference", "Generate")
    trace, parent = new_parent()
    generate = channel.unary_stream("/forepack.v1.Inference/Generate", request.SerializeToString, response.FromString)
    fields = {"text": LONG.encode() if request.DESCRIPTOR.fields_by_name["text"].type == 12 else LONG, "tenant": "acme",
              "request_id": "pruned", "priority": 2, "sampling": {"max_tokens": 3, "ignore_eos": True},
              "prefill": {"mode": "PREFILL_MODE_ON", "keep_rate": 0.3}}
    last_message = list(generate(request(**fields), timeout=WAIT, metadata=[("traceparent", parent), ("tracestate", "x=y")]))[-1]
    usage = last_message.completion.usage
    row = of_trace(trace)[0]
    check_phases(row, PHASES, {"score": "spec-0", "prefill": "worker-0", "decode": "worker-0"})
    got = row["attributes"]
    assert row["state"] == "x=y" and got["server.port"] == int(server.rsplit(":", 1)[1]), row
    assert got["forepack.prefill"] == "speculated" and "forepack.prefill.skip_reason" not in got, got
    assert got["forepack.scored_tokens"] == usage.prompt_tokens > usage.kept_tokens == got["forepack.kept_tokens"] > 0, got
    assert got["forepack.tenant"] == "acme" and got["forepack.priority"] == 2, got
    assert got["gen_ai.response.id"] == "pruned" and got["gen_ai.operation.name"] == "text_completion", got

    # Each request of a GenerateMany call that has no parent has its own trace.
    many = channel.stream_stream("/forepack.v1.Inference/GenerateMany", request.SerializeToString, response.FromString)
    list(many(iter([request(**{**fields, "request_id": "many-%d" % i}) for i in range(2)]), timeout=WAIT))
    assert of_id("many-0")["trace"] != of_id("many-1")["trace"]

    trace, parent = new_parent()
    try:
        list(generate(request(text=fields["text"], model="other"), timeout=WAIT, metadata=[("traceparent", parent)]))
        raise AssertionError("was not refused")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.NOT_FOUND
    row = of_trace(trace)[0]
    assert row["attributes"]["error.type"] == "not_found" and row["status"] == {"code": "STATUS_CODE_ERROR"}, row


def check_kserve():
    channel, request, response = grpc_types("inference.GRPCInferenceService", "ModelInfer")
    infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", request.SerializeToString, response.FromString)
    asked = request(model_name=MODEL)
    asked.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(SECRET.encode())
    asked.parameters["max_tokens"].int64_param = 2
    trace, parent = new_parent()
    infer(asked, timeout=WAIT, metadata=[("traceparent", parent)])
    check_phases(of_trace(trace)[0], [p for p in PHASES if p != "score"])
    trace, parent = new_parent()
    asked.inputs[0].datatype = "FP32"
    try:
        infer(asked, timeout=WAIT, metadata=[("traceparent", parent)])
        raise AssertionError("was not refused")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    assert of_trace(trace)[0]["attributes"]["error.type"] == "invalid"


def metric(name):
    with urllib.request.urlopen(url + "/metrics", timeout=WAIT) as answer:
        text = answer.read().decode()
    return sum(float(v) for v in re.findall("^" + re.escape(name) + r"(?:\{.*\})? (\S+)$", text, re.M))


def check_metrics():
    poll("the counter", lambda: metric("forepack:trace_spans_total") == len(spans()))
    assert metric("forepack:trace_spans_dropped_total") == 0


def check_replay():
    row = of_trace("%032x" % 0xef)[0]
    parts = check_phases(row, [p for p in PHASES if p != "score"] + ["pack_wait", "prefill"])
    nodes = [p["attributes"]["forepack.node"] for p in parts if "forepack.node" in p["attributes"]]
    assert nodes == ["worker-0", "worker-1", "worker-1"], nodes
    assert row["attributes"]["forepack.replays"] == 1 and row["status"] == {}, row


if mode == "replay":
    check_replay()
else:
    for check in (check_http, check_parents, check_choices, check_failures, check_cancelled, check_score, check_grpc,
                  check_kserve, check_metrics):
        check()
print("tracing:", mode, "ok")
