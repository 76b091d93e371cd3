#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A client of each API that asks for more pruning than its API key allows: with KEY_OF_NEVER all tokens are kept, with
KEY_OF_HALF the keep rate is 0.5.

Usage: prune_rules_client.py HTTP_PORT HOST:PORT KEY_OF_NEVER KEY_OF_HALF PROMPT REPOSITORY
"""
import http.client
import json
import subprocess
import sys
import tempfile

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

port, server, never_file, half_file, prompt_file, repository = sys.argv[1:7]
never, half = (open(name).read().strip() for name in (never_file, half_file))
prompt = open(prompt_file).read()
channel = grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0)])
WAIT = 600  # seconds, an upper bound
ASKED = {"prefill": "on", "keep_rate": 0.2}
TURNS = [{"role": "user", "content": prompt}]
TALK = [*TURNS, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Again: " + prompt}]
SHARED = {"prompt": prompt, "shared_tokens": 100}


def post(key, path, fields):
    """Returns the text of the answer and its headers."""
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=WAIT)
    connection.request("POST", path, json.dumps({"model": "main", **fields}), {"x-api-key": key})
    answer = connection.getresponse()
    text = answer.read().decode()
    assert answer.status == 200, (path, fields, text)
    return text, answer.headers


def check_headers(path, fields, key, rate, limit):
    headers = post(key, path, fields)[1]
    prompt_tokens, kept = (int(headers["x-forepack-" + name + "-tokens"]) for name in ("prompt", "kept"))
    assert headers["x-forepack-prefill-limit"] == limit, (path, limit, headers.items())
    assert float(headers["x-forepack-keep-rate"]) == rate, (path, headers.items())
    assert kept == prompt_tokens if rate == 1 else kept >= rate * prompt_tokens - 1, (path, headers.items())


ENDPOINTS = [
    ("/v1/completions", {"prompt": prompt, "max_tokens": 2, **ASKED}),
    ("/v1/completions", {"prompt": prompt, "max_tokens": 2, "n": 3, "temperature": 1, **ASKED}),
    ("/v1/completions", {"prompt": prompt, "max_tokens": 2, "stream": True, **ASKED}),
    ("/v1/completions", {**SHARED, "max_tokens": 2, **ASKED}),
    ("/v1/completions", {"prompt": prompt, "max_tokens": 2, "keep_rate": 0.2, "prefill": "required"}),
    ("/v1/chat/completions", {"messages": TURNS, "max_tokens": 2, **ASKED}),
    ("/v1/chat/completions", {"messages": TALK, "max_tokens": 2, **ASKED}),
    ("/v1/responses", {"input": prompt, "max_output_tokens": 16, **ASKED}),
    ("/v1/messages", {"messages": TURNS, "max_tokens": 2, **ASKED}),
]
for path, fields in ENDPOINTS:
    for key, rate, limit in ((never, 1, "never"), (half, 0.5, "keep-at-least:0.5")):
        check_headers(path, fields, key, rate, limit)

for stream in (False, True):
    text = post(never, "/v1/completions", {**ENDPOINTS[0][1], "stream": stream,
                                           **({"stream_options": {"include_usage": True}} if stream else {})})[0]
    usages = [json.loads(line.removeprefix("data: ")).get("usage") for line in text.splitlines() if line[-1:] == "}"]
    assert usages[-1]["prefill_limit"] == "never" and usages[-1]["prefill"] == "whole:off", text

# A score prunes nothing: it says what would be kept at the asked rate.
score = json.loads(post(never, "/v1/score", {"prompt": prompt, "keep_rate": 0.2})[0])
assert score["keep_rate"] == 0.2 and score["kept"] != [[0, len(score["token_ids"]) - 1]], score


def messages(name):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["protoc", "-I", repository + "/proto", "--include_imports", "--descriptor_set_out=" + out.name,
                        repository + "/proto/" + name], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return lambda message: message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName(message))


forepack, kserve = messages("forepack/v1/inference.proto"), messages("inference/kserve.proto")
GenerateRequest, ModelInferRequest = forepack("forepack.v1.GenerateRequest"), kserve("inference.ModelInferRequest")
generate = GenerateRequest(text=prompt.encode(), sampling={"max_tokens": 2}, prefill={"mode": "PREFILL_MODE_ON", "keep_rate": 0.2})


def completions(method, request, key):
    call = channel.stream_stream if method == "GenerateMany" else channel.unary_stream
    answers = call("/forepack.v1.Inference/" + method, GenerateRequest.SerializeToString,
                   forepack("forepack.v1.GenerateResponse").FromString)
    sent = iter([request, request]) if method == "GenerateMany" else request
    return [a.completion for a in answers(sent, metadata=[("authorization", "Bearer " + key)], timeout=WAIT)
            if a.HasField("completion")]


for method, n in (("Generate", 1), ("GenerateMany", 2)):
    for key, rate, limit in ((never, 1, "never"), (half, 0.5, "keep-at-least:0.5")):
        ends = completions(method, generate, key)
        assert len(ends) == n and all(c.prefill_limit == limit and c.keep_rate == rate for c in ends), ends
        assert all(rate < 1 or c.usage.kept_tokens == c.usage.prompt_tokens for c in ends), ends

infer = ModelInferRequest(model_name="main", inputs=[{"name": "text_input", "datatype": "BYTES", "shape": [1],
                                                      "contents": {"bytes_contents": [prompt.encode()]}}])
for name, value in (("prefill", "on"), ("max_tokens", 2), ("keep_rate", 0.2)):
    kind = {str: "string_param", int: "int64_param", float: "double_param"}[type(value)]
    setattr(infer.parameters[name], kind, value)
for method in ("ModelInfer", "ModelStreamInfer"):
    stream = method == "ModelStreamInfer"
    response = kserve("inference.ModelStreamInferResponse" if stream else "inference.ModelInferResponse")
    call = (channel.stream_stream if stream else channel.unary_unary)(
        "/inference.GRPCInferenceService/" + method, ModelInferRequest.SerializeToString, response.FromString)
    for key, rate, limit in ((never, 1, "never"), (half, 0.5, "keep-at-least:0.5")):
        answer = call(iter([infer]) if stream else infer, metadata=[("authorization", "Bearer " + key)], timeout=WAIT)
        got = (next(answer).infer_response if stream else answer).parameters
        assert got["prefill_limit"].string_param == limit and got["keep_rate"].double_param == rate, got
print("ok rules in all APIs")
