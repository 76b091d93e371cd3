#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Compresses chats over HTTP and gRPC: what is kept, the fields of the answer, and refusals.

Usage: compress_client.py HTTP_PORT HOST:PORT KEY KEY_OF_HALF REPORT REPOSITORY
"""
import http.client
import json
import subprocess
import sys
import tempfile

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

port, server, key_file, half_file, report_file, repository = sys.argv[1:7]
key, half = (open(name, encoding="utf-8").read().strip() for name in (key_file, half_file))
report = open(report_file, encoding="utf-8").read()
facts = report[:report.index("Question:")]
WAIT = 600  # seconds, an upper bound


def post(fields, own_key=key):
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=WAIT)
    connection.request("POST", "/v1/compress", json.dumps(fields), {"x-api-key": own_key})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def compress(**fields):
    status, answer = post(fields)
    assert status == 200, (status, answer)
    return answer


def refused(status, sentence, **fields):
    got, answer = post(fields)
    assert got == status and sentence in answer["error"]["message"], (got, answer)


rows = json.dumps([{"id": i, "note": "Row %d. It is about the gate." % i} for i in range(12)])
code = "```python\n" + "\n\n".join("def f%d(x):\n    return x + %d" % (i, i) for i in range(40)) + "\n```\n"
chat = [
    {"role": "system", "content": "You are brief. You always answer with a number, and you never explain it to anybody."},
    {"role": "user", "content": [{"type": "text", "text": facts}, {"type": "image_url", "image_url": {"url": "data:,"}}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "rows", "arguments": '{"of": "gates. All of them."}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": rows},
    {"role": "assistant", "content": code},
    {"role": "user", "content": "What is the permit number of Nena Morik?"},
]
answer = compress(messages=chat, keep_rate=0.4, model="gpt-4o", config={"mode": "ccr"})
sent, got = chat, answer["messages"]
assert [m["role"] for m in got] == [m["role"] for m in sent]
assert [got[i] for i in (0, 2, 5)] == [sent[i] for i in (0, 2, 5)], "what must stay whole is cut"
assert got[1]["content"][1] == sent[1]["content"][1] and "4892" in got[1]["content"][0]["text"]
assert got[3]["tool_call_id"] == "call_1" and all(row in json.loads(rows) for row in json.loads(got[3]["content"]))
assert got[4]["content"].count("```") in (0, 2) and len(got[4]["content"]) < len(code)
assert answer["tokens_after"] <= 0.4 * answer["tokens_before"] + 1
assert answer["tokens_saved"] == answer["tokens_before"] - answer["tokens_after"]
assert abs(answer["compression_ratio"] - answer["tokens_after"] / answer["tokens_before"]) < 1e-6
assert answer["decided_by"] == "keep_rate" and answer["keep_rate"] == 0.4 and answer["ccr_hashes"] == []
rules = {(k["message"], k.get("part")): k for k in answer["kept"]}
assert [k["rule"] for k in answer["kept"]] == ["system", "prose", "json", "code", "last_user"], answer["kept"]
for (i, part), kept in rules.items():
    before = sent[i]["content"] if part is None else sent[i]["content"][part]["text"]
    after = got[i]["content"] if part is None else got[i]["content"][part]["text"]
    assert b"".join(before.encode()[a:b] for a, b in kept["ranges"]).decode() == after
assert compress(messages=chat, keep_rate=1)["messages"] == chat
assert compress(messages=chat, config={"target_ratio": 0.4})["messages"] == got
assert compress(messages=chat, token_budget=50)["tokens_after"] < answer["tokens_after"], "what must stay is over the budget"
assert compress(messages=chat)["decided_by"] in ("keep_rate", "quality")
assert compress(prompt=report, token_budget=300)["prompt"].endswith("Answer:")
assert post({"prompt": report, "keep_rate": 0.1}, half)[1]["prefill_limit"] == "keep-at-least:0.5"
whole = compress(messages=[{"role": "tool", "content": "A result. " * 20}], keep_rate=0.2)
assert whole["messages"][0]["content"], "a text is empty"

# Bad input: one sentence that names the field and what is accepted.
refused(400, "prompt: give either prompt or messages", keep_rate=0.5)
refused(400, "prompt: give either prompt or messages", prompt="x", messages=chat)
refused(400, "prompt: must be a string", prompt=[1, 2])
refused(400, "messages: at least one is required", messages=[])
refused(400, "messages: 4097 given, at most 4096 are allowed", messages=[{"role": "user", "content": "x"}] * 4097)
refused(400, "messages[0]: role 'robot' is not known", messages=[{"role": "robot", "content": "x"}])
for wrong in (0, -0.1, 1.01, "half"):
    refused(400, "keep_rate", prompt="x", keep_rate=wrong)
    refused(400, "quality", prompt="x", quality=wrong)
    refused(400, "config.target_ratio", prompt="x", config={"target_ratio": wrong})
for wrong in (0, -1, 1 << 31, 1.5, "many"):
    refused(400, "token_budget", prompt="x", token_budget=wrong)
refused(400, "keep_rate, quality and token_budget exclude each other", prompt="x", keep_rate=0.5, token_budget=5)
refused(400, "stream", prompt="x", stream=True)
refused(400, "This model's maximum context length is", prompt=report * 20, keep_rate=0.5)
refused(403, "of tenant free", prompt="x", tenant="other")
refused(504, "ttft_deadline_ms", prompt=report * 2, keep_rate=0.5, ttft_deadline_ms=1)

# gRPC returns the same texts.
pool = descriptor_pool.DescriptorPool()
with tempfile.NamedTemporaryFile() as out:
    subprocess.run(["protoc", "-I", repository + "/proto", "--descriptor_set_out=" + out.name,
                    repository + "/proto/forepack/v1/inference.proto"], check=True)
    for file in descriptor_pb2.FileDescriptorSet.FromString(out.read()).file:
        pool.Add(file)


def message_class(name):
    descriptor = pool.FindMessageTypeByName("forepack.v1." + name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)


Request, Response = message_class("CompressRequest"), message_class("CompressResponse")
channel = grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0)])
call = channel.unary_unary("/forepack.v1.Inference/Compress", request_serializer=Request.SerializeToString,
                           response_deserializer=Response.FromString)
metadata = (("authorization", "Bearer " + key),)
texts = [{"role": "system", "content": "Be brief."}, {"role": "tool", "content": rows}, {"role": "user", "content": facts},
         {"role": "user", "content": "What is the permit number of Nena Morik?"}]
over_http = compress(messages=texts, keep_rate=0.4)
over_grpc = call(Request(messages=texts, keep_rate=0.4), timeout=WAIT, metadata=metadata)
assert [m.content for m in over_grpc.messages] == [m["content"] for m in over_http["messages"]]
assert [m.role for m in over_grpc.messages] == [m["role"] for m in texts]
assert (over_grpc.tokens_before, over_grpc.tokens_after) == (over_http["tokens_before"], over_http["tokens_after"])
assert [[[r.start, r.end] for r in k.ranges] for k in over_grpc.kept] == [k["ranges"] for k in over_http["kept"]]
assert [k.rule for k in over_grpc.kept] == [k["rule"] for k in over_http["kept"]]
assert over_grpc.decided_by == "keep_rate"


def refused_call(code, sentence, **fields):
    try:
        call(Request(**fields), timeout=WAIT, metadata=metadata)
    except grpc.RpcError as error:
        assert error.code() == code and sentence in error.details(), error
    else:
        raise AssertionError("not refused: %r" % fields)


refused_call(grpc.StatusCode.INVALID_ARGUMENT, "give either text or messages", keep_rate=0.5)
refused_call(grpc.StatusCode.INVALID_ARGUMENT, "give either text or messages", text="x", messages=texts)
refused_call(grpc.StatusCode.INVALID_ARGUMENT, "token_budget 0: must be 1 or more", text="x", token_budget=0)
refused_call(grpc.StatusCode.INVALID_ARGUMENT, "keep_rate", text="x", keep_rate=0)
refused_call(grpc.StatusCode.INVALID_ARGUMENT, "messages[0]: role '' is not known", messages=[{"content": "x"}])
