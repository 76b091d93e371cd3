#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A client that is not part of this project: Debian's Python gRPC, which learns the API from server reflection alone.

Usage: grpc_client.py HOST:PORT REPOSITORY PROMPTS.jsonl
"""
import json
import subprocess
import sys
import tempfile
import threading
import time

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

server, repository, prompts_file = sys.argv[1:4]
WAIT = 600  # seconds, an upper bound
channel = grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0)])


def message_class(pool, name):
    descriptor = pool.FindMessageTypeByName(name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)


def reflection_pool(package):
    """The reflection protocol is the only protocol that a client must know in advance."""
    with tempfile.NamedTemporaryFile() as out:
        version = package.rsplit(".", 1)[1]
        subprocess.run(["protoc", "-I", repository + "/proto", "--descriptor_set_out=" + out.name,
                        repository + "/proto/grpc_reflection/" + version + "/reflection.proto"], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


def discover(package):
    pool = reflection_pool(package)
    request = message_class(pool, package + ".ServerReflectionRequest")
    response = message_class(pool, package + ".ServerReflectionResponse")
    call = channel.stream_stream("/" + package + ".ServerReflection/ServerReflectionInfo",
                                 request.SerializeToString, response.FromString)
    services = [s.name for s in next(call(iter([request(list_services="*")]))).list_services_response.service]
    found = descriptor_pool.DescriptorPool()
    seen = set()
    for service in services:
        answer = next(call(iter([request(file_containing_symbol=service)])))
        for data in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            if file.name not in seen:
                seen.add(file.name)
                found.Add(file)
    unknown = next(call(iter([request(file_containing_symbol="no.such.Thing")])))
    assert unknown.error_response.error_code == 5, unknown
    return services, found


for package in ("grpc.reflection.v1alpha", "grpc.reflection.v1"):
    services, pool = discover(package)
    assert "forepack.v1.Inference" in services and "grpc.health.v1.Health" in services, services


def method(service, name):
    descriptor = pool.FindServiceByName(service).FindMethodByName(name)
    request = message_class(pool, descriptor.input_type.full_name)
    response = message_class(pool, descriptor.output_type.full_name)
    return request, response, "/%s/%s" % (service, name)


def unary(service, name, /, **fields):
    request, response, path = method(service, name)
    return channel.unary_unary(path, request.SerializeToString, response.FromString)(request(**fields), timeout=WAIT)


def generate_many(requests):
    request, response, path = method("forepack.v1.Inference", "GenerateMany")
    call = channel.stream_stream(path, request.SerializeToString, response.FromString)
    return call(iter([request(**r) for r in requests]), timeout=WAIT)


def generate(**fields):
    request, response, path = method("forepack.v1.Inference", "Generate")
    call = channel.unary_stream(path, request.SerializeToString, response.FromString)
    return call(request(**fields), timeout=WAIT)


def gather(stream):
    text, ids, completion = "", [], None
    for message in stream:
        assert completion is None, "something came after the completion"
        if message.WhichOneof("kind") == "chunk":
            text += message.chunk.text
            ids += message.chunk.token_ids
        else:
            completion = message.completion
    return text, ids, completion


def refused(code, fragment, **fields):
    try:
        gather(generate(**fields))
    except grpc.RpcError as error:
        assert error.code() == code, (fields, error.code(), error.details())
        assert fragment in error.details(), (fields, error.details())
        return error
    raise AssertionError("was not refused: %s" % fields)


# Health.
for service in ("", "forepack.v1.Inference"):
    assert unary("grpc.health.v1.Health", "Check", service=service).status == 1
try:
    unary("grpc.health.v1.Health", "Check", service="no.such.Service")
    raise AssertionError("an unknown service is healthy")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.NOT_FOUND

# Model and tokenizer.
info = unary("forepack.v1.Inference", "GetModelInfo")
assert info.context_tokens > 0 and info.vocab_size > 0 and info.model_fingerprint
text = "Hello w\u00f6rld \U0001F600"
ids = unary("forepack.v1.Inference", "Tokenize", text=text, no_special=True).token_ids
assert unary("forepack.v1.Inference", "Detokenize", token_ids=ids).text == text
cluster = unary("forepack.v1.Inference", "GetClusterInfo")
assert cluster.ready and cluster.nodes

# One request, with the prompt as text, token ids and messages.
rows = [json.loads(line) for line in open(prompts_file, encoding="utf-8")]
prompt = rows[0]["prompt"]
sampling = {"max_tokens": 8, "ignore_eos": True}
text, ids, completion = gather(generate(text=prompt, sampling=sampling))
assert len(ids) == 8 and completion.finish_reason == "length", completion
assert completion.usage.completion_tokens == 8 and completion.timing.ttft_ms > 0
prompt_ids = unary("forepack.v1.Inference", "Tokenize", text=prompt).token_ids
assert gather(generate(token_ids=prompt_ids, sampling=sampling))[1] == ids
if info.chat_template:
    turns = [{"role": "user", "content": prompt}]
    assert gather(generate(messages=turns, sampling=sampling))[2].finish_reason == "length"

# Many requests on one call, in order of completion, each with its id; an invalid one does not affect the others.
requests = [{"request_id": "r%d" % i, "text": row["prompt"], "sampling": sampling} for i, row in enumerate(rows[:6])]
requests.insert(2, {"request_id": "bad", "token_ids": [info.vocab_size], "sampling": sampling})
done = {}
for message in generate_many(requests):
    if message.WhichOneof("kind") == "completion":
        assert message.request_id not in done
        done[message.request_id] = message.completion
assert set(done) == {r["request_id"] for r in requests}, done.keys()
assert done["bad"].finish_reason == "error" and done["bad"].error.code == 3
assert all(done["r%d" % i].finish_reason == "length" for i in range(6))

# Refusals.
code = grpc.StatusCode
refused(code.INVALID_ARGUMENT, "empty")
refused(code.INVALID_ARGUMENT, "only one of", text="x", token_ids=[1])
refused(code.INVALID_ARGUMENT, "keep_rate 0", text="x", prefill={"keep_rate": 0})
refused(code.INVALID_ARGUMENT, "keep_rate 1.5", text="x", prefill={"keep_rate": 1.5})
refused(code.INVALID_ARGUMENT, "temperature", text="x", sampling={"temperature": -1})
refused(code.INVALID_ARGUMENT, "outside the vocabulary", token_ids=[1, info.vocab_size])
refused(code.NOT_FOUND, "not served", text="x", model="gpt-9")
refused(code.OUT_OF_RANGE, "context", token_ids=[1] * (info.context_tokens + 1))
refused(code.OUT_OF_RANGE, "context", text="x" * 10000000)
if info.chat_template:
    refused(code.INVALID_ARGUMENT, "role", messages=[{"role": "", "content": "x"}])

# A method with one request message fails with none and with two.
def answers_to(name, *messages):
    request, response, path = method("forepack.v1.Inference", name)
    try:
        call = channel.stream_stream(path, request.SerializeToString, response.FromString)
        return list(call(iter([request(**fields) for fields in messages]), timeout=WAIT))
    except grpc.RpcError as error:
        return error.code()


for name in ("Generate", "Score", "Abort", "Tokenize", "Detokenize", "GetModelInfo", "GetClusterInfo", "DrainNode"):
    assert answers_to(name) == code.INVALID_ARGUMENT, name
long_sampling = {"max_tokens": info.context_tokens - 100, "ignore_eos": True}  # longer than this client may be delayed
hello = {"text": "x", "sampling": long_sampling}
assert answers_to("Generate", hello, hello) == code.INVALID_ARGUMENT
assert answers_to("GenerateMany") == []

# A client cannot block the threads that also serve the nodes, nor fill the memory with answers that it does not read.
assert answers_to("Tokenize", {"text": "x" * 60000000}) == code.OUT_OF_RANGE
assert len(unary("forepack.v1.Inference", "Detokenize", token_ids=[prompt_ids[1]] * 1000000).text) >= 1000000
assert answers_to("Detokenize", {"token_ids": [1] * 2000000}) == code.OUT_OF_RANGE
taken = 0


def flood():
    global taken
    for taken in range(60000):
        yield request(request_id="i" * 256, model="m" * 256)


request, response, path = method("forepack.v1.Inference", "GenerateMany")
call = channel.stream_stream(path, request.SerializeToString, response.FromString)(flood(), timeout=WAIT)
still = 0
while still < 6:  # until the server reads no more requests, while it answers other calls
    before = taken
    unary("forepack.v1.Inference", "GetModelInfo")
    time.sleep(0.5)
    still = still + 1 if taken == before else 0
try:
    read = sum(1 for message in call)
    raise AssertionError("%d refusals waited for a client that does not read" % read)
except grpc.RpcError as error:
    assert error.code() == code.RESOURCE_EXHAUSTED and "too slowly" in error.details(), error

# A text with U+0000 is not cut.
zero = "a\0b"
assert len(unary("forepack.v1.Inference", "Tokenize", text=zero).token_ids) > len(
    unary("forepack.v1.Inference", "Tokenize", text="a").token_ids)

# Abort from another call; a cancelled call; a deadline.
request, response, path = method("forepack.v1.Inference", "Generate")
stub = channel.unary_stream(path, request.SerializeToString, response.FromString)
for attempt in range(100):
    call = stub(request(request_id="victim", text="x", sampling=long_sampling), timeout=WAIT)
    next(call)
    aborted = unary("forepack.v1.Inference", "Abort", request_ids=["victim", "nobody"]).aborted
    assert gather(call)[2].finish_reason == ("cancelled" if aborted else "length")
    if aborted:  # otherwise the request had ended while this client was delayed
        break
assert aborted == 1, aborted
call = stub(request(text="x", sampling=long_sampling), timeout=WAIT)
next(call)
call.cancel()
try:
    gather(stub(request(text="x", sampling=long_sampling), timeout=0.01))
    raise AssertionError("the deadline did not pass")
except grpc.RpcError as error:
    assert error.code() == code.DEADLINE_EXCEEDED, error
error = refused(code.DEADLINE_EXCEEDED, "", text=prompt * 2, ttft_deadline_ms=1)

# Concurrent calls receive only their own answers.
expected = [gather(generate(text=row["prompt"], sampling=sampling))[1] for row in rows[:4]]
results = [None] * 16


def one(i):
    results[i] = gather(generate(text=rows[i % 4]["prompt"], sampling=sampling))[1]


threads = [threading.Thread(target=one, args=(i,)) for i in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert results == [expected[i % 4] for i in range(16)]
print("python client: all passed")
