# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of the prompt, asked for as evaluation programs do, with the official client of OpenAI's API. The
values are compared over HTTP, gRPC and in one process, and with the log-probabilities of generated tokens.

Usage: prompt_logprobs.py URL GRPC_HOST:PORT FOREPACK MODEL_DIR
"""
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import openai
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

url, server, forepack, model_dir = sys.argv[1:5]
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600)
model = client.models.list().data[0].id
text = "The badge number of Romas is 5215. The ticket number of Tovi is 7136."


def run(*arguments):
    return json.loads(subprocess.run([forepack, *arguments], check=True, capture_output=True).stdout)


def tokens_of(string):
    return run("tokenize", "--model", model_dir, "--json", string)["token_ids"]


def complete(prompt, **more):
    return client.completions.create(**{"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 1, "echo": True,
                                        "logprobs": 1, "seed": 1234, **more})


def loglikelihood(context, continuation, **more):
    """Scores a continuation like an evaluation harness: the sum of its log-probabilities, and whether it is greedy."""
    ids, n = context + continuation, len(context)
    lists = complete([ids], **more).choices[0].logprobs
    end = len(ids)
    greedy = all(max(top, key=top.get) == token
                 for token, top in zip(lists.tokens[n:end], lists.top_logprobs[n:end]))
    return sum(lists.token_logprobs[n:end]), greedy


def test_echo():
    ids = tokens_of(text)
    whole = complete(text, max_tokens=3).choices[0]
    lists = whole.logprobs
    assert whole.text.startswith(text) and len(lists.tokens) == len(ids) + 3
    assert lists.token_logprobs[0] is None and lists.top_logprobs[0] is None
    assert all(value <= 0 for value in lists.token_logprobs[1:])
    assert [whole.text[at:at + len(token)] for token, at in zip(lists.tokens, lists.text_offset)][1:] == lists.tokens[1:]
    alone = complete(text, max_tokens=0)
    assert alone.choices[0].text == text and alone.choices[0].finish_reason == "length"
    assert alone.usage.completion_tokens == 0 and alone.usage.prompt_tokens == len(ids)
    for key in "tokens", "token_logprobs", "top_logprobs", "text_offset":
        assert getattr(alone.choices[0].logprobs, key) == getattr(lists, key)[:len(ids)], key
    # Streamed: the same lists.
    streamed = {key: [] for key in ("tokens", "token_logprobs", "text_offset")}
    shown = ""
    for event in complete(text, max_tokens=3, stream=True):
        shown += event.choices[0].text
        for key in streamed if event.choices[0].logprobs else ():
            streamed[key] += getattr(event.choices[0].logprobs, key)
    assert shown == whole.text
    assert all(streamed[key] == getattr(lists, key) for key in streamed)


def test_harness():
    context = tokens_of(text)
    answer = complete([context], max_tokens=6, extra_body={"return_token_ids": True}).choices[0]
    generated = answer.token_ids
    # The values of generated tokens, bit for bit, when the same tokens are a prompt; also among many other requests.
    ways = [{"max_tokens": 0}, {"max_tokens": 1}, {"max_tokens": 0, "logprobs": 5}]
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda i: loglikelihood(context, generated, **ways[i % 3]), range(48)))
    wanted = sum(answer.logprobs.token_logprobs[len(context):])
    assert set(results) == {(wanted, True)}, (set(results), wanted)
    assert not loglikelihood(context, context[5:9])[1]


def test_prompts():
    """Several prompts and choices in one request."""
    ids = tokens_of(text)
    answer = complete([ids[:1], ids[:2], ids], n=2, max_tokens=0)
    assert [len(choice.logprobs.tokens) for choice in answer.choices] == [1, 1, 2, 2, len(ids), len(ids)]
    assert answer.choices[4].logprobs.token_logprobs == answer.choices[5].logprobs.token_logprobs


def test_prompt_logprobs():
    ids = tokens_of(text)
    wanted = complete(text, max_tokens=0, logprobs=2).choices[0].logprobs
    answer = complete(text, echo=False, logprobs=None, n=2, extra_body={"prompt_logprobs": 2})
    for choice in answer.choices:
        assert choice.logprobs is None and len(choice.prompt_logprobs) == len(ids) and choice.prompt_logprobs[0] is None
        for i in range(1, len(ids)):
            entry = choice.prompt_logprobs[i]
            assert entry[str(ids[i])]["logprob"] == wanted.token_logprobs[i]
            assert {1, 2} <= {item["rank"] for item in entry.values()} and len(entry) <= 3
    chat = client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], max_tokens=1,
                                          extra_body={"prompt_logprobs": 0})
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens and chat.prompt_logprobs[0] is None
    assert all(len(entry) == 1 for entry in chat.prompt_logprobs[1:])
    # gRPC, and the model in one process.
    flags = ["--prompt", text, "--prompt-logprobs", "2", "--max-tokens", "1", "--json"]
    for place in ["--server", server], ["--model", model_dir]:
        listed = run("generate", *place, *flags)["prompt_logprobs"]
        assert [entry and entry["token_id"] for entry in listed] == [None] + ids[1:]
        assert [entry and entry["logprob"] for entry in listed] == wanted.token_logprobs, place


def refused(prompt=text, **more):
    try:
        complete(prompt, **more)
    except openai.BadRequestError as error:
        return error.message
    raise AssertionError("%s: not refused" % more)


def test_refusals():
    for prefill in {"keep_rate": 0.5}, {"prefill": "on"}, {"prefill": "required"}:
        assert "need all of its tokens" in refused(extra_body=prefill)
    assert complete(text, extra_body={"prefill": "auto"}).choices[0].text.startswith(text)
    assert "stream" in refused(echo=False, stream=True, extra_body={"prompt_logprobs": 1})
    assert "leave out one" in refused(extra_body={"prompt_logprobs": 1})
    assert "max_tokens 0" in refused(echo=False, max_tokens=0)
    assert "21" in refused(echo=False, extra_body={"prompt_logprobs": 21})


def stub():
    channel = grpc.insecure_channel(server, options=[("grpc.enable_http_proxy", 0)])
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    method = pool.FindServiceByName("forepack.v1.Inference").FindMethodByName("Generate")
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return request, channel.unary_stream("/forepack.v1.Inference/Generate", request.SerializeToString, response.FromString)


def test_whole_context():
    """A prompt without an answer may have exactly the context, and one that asks for a token may not."""
    context = client.models.list().data[0].max_model_len
    ids = (tokens_of(text) * context)[:context + 1]
    answer = complete([ids[:context]], max_tokens=0)
    values = answer.choices[0].logprobs.token_logprobs
    assert len(values) == context and answer.usage.completion_tokens == 0
    assert sum(len(event.choices[0].logprobs.tokens) for event in complete([ids[:context]], max_tokens=0, stream=True)
               if event.choices[0].logprobs) == context
    assert complete([ids[:context - 1]], max_tokens=1).choices[0].logprobs.token_logprobs[:-1] == values[:-1]
    for sent in {"prompt": [ids], "max_tokens": 0}, {"prompt": [ids[:context]], "max_tokens": 1}:
        assert "maximum context length is %d tokens" % context in refused(**sent)
    # gRPC.
    request, generate = stub()

    def chunks(n, max_tokens):
        sampling = {"max_tokens": max_tokens, "prompt_logprobs": 1}
        return list(generate(request(token_ids=ids[:n], sampling=sampling), timeout=600))

    *parts, end = chunks(context, 0)
    got = [entry.logprob for part in parts for entry in part.chunk.prompt_logprobs]
    assert len(got) == context - 1 and max(abs(a - b) for a, b in zip(got, values[1:])) < 1e-6
    assert not any(part.chunk.token_ids or part.chunk.text for part in parts)
    assert end.completion.finish_reason == "length" and end.completion.usage.completion_tokens == 0
    for n, max_tokens in (context + 1, 0), (context, 1):
        try:
            chunks(n, max_tokens)
            raise AssertionError("not refused")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.OUT_OF_RANGE, error


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok", name[5:])
