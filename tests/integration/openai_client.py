# SPDX-License-Identifier: Apache-2.0
"""The official client of OpenAI's API, unmodified, against a running cluster: completions, chat completions, responses,
models, streams, errors, headers, many requests at once.

Usage: openai_client.py URL GRPC_HOST:PORT PROMPTS.jsonl FOREPACK
"""
import asyncio
import json
import subprocess
import sys
import time

import openai

from abort import abort
from answered import answered

url, server, prompts_file, forepack = sys.argv[1:5]
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600)
with open(prompts_file) as file:
    rows = [json.loads(line) for line in file][:4]
prompt = rows[0]["prompt"]
question = "The badge number of Romas is"
turns = [{"role": "system", "content": "Answer with a number."}, {"role": "user", "content": question}]
long_turns = [{"role": "user", "content": prompt}]
model = client.models.list().data[0].id


def refused(kind, param, call, **arguments):
    """The call raises `kind`; its error names the parameter, which says what to change."""
    try:
        call(**arguments)
    except kind as error:
        assert error.type == "invalid_request_error", error
        assert param is None or error.param == param, error
        return error
    raise AssertionError("%s: not refused" % arguments)


def chat(**more):
    return client.chat.completions.create(**{"model": model, "messages": turns, "temperature": 0, "max_tokens": 8, **more})


def complete(**more):
    return client.completions.create(**{"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 8, **more})


def respond(**more):
    return client.responses.create(**{"model": model, "input": turns, "temperature": 0, "max_output_tokens": 8, **more})


def test_models():
    assert client.models.retrieve(model).id == model
    assert client.models.list().data[0].object == "model"
    refused(openai.NotFoundError, None, client.models.retrieve, model="no-such-model")


def test_completions():
    answer = complete()
    text, usage = answer.choices[0].text, answer.usage
    assert answer.object == "text_completion" and answer.model == model and answer.id
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.completion_tokens <= 8
    told = json.loads(subprocess.run([forepack, "generate", "--server", server, "--json", "--temperature", "0",
                                      "--max-tokens", "8", "--prompt", prompt], check=True, capture_output=True).stdout)
    assert told["text"] == text and told["usage"]["prompt_tokens"] == usage.prompt_tokens, (told, answer)
    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == text
    assert chunks[-1].usage.completion_tokens == usage.completion_tokens
    many = complete(prompt=[row["prompt"] for row in rows])
    assert [c.index for c in many.choices] == list(range(len(rows))) and many.choices[0].text == text
    drawn = [complete(temperature=1, seed=7, n=2).choices for _ in range(2)]
    assert [c.text for c in drawn[0]] == [c.text for c in drawn[1]], drawn


def test_chat():
    answer = chat()
    text = answer.choices[0].message.content
    assert answer.object == "chat.completion" and answer.choices[0].message.role == "assistant"
    assert answer.usage.completion_tokens <= 8 and answer.choices[0].finish_reason in ("stop", "length")
    stream = list(chat(stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == text
    assert stream[-1].usage == answer.usage or stream[-1].usage.total_tokens == answer.usage.total_tokens
    assert [c.choices[0].finish_reason for c in stream if c.choices][-1] == answer.choices[0].finish_reason
    parts = [{"role": turn["role"], "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
    assert chat(messages=parts).choices[0].message.content == text
    assert chat(max_tokens=openai.omit, max_completion_tokens=1).usage.completion_tokens == 1
    assert len(text) > 3, text  # the demo models answer with a number
    stopped = chat(stop=["never", text[1:3]])
    assert stopped.choices[0].message.content == text[:text.index(text[1:3])], stopped
    assert stopped.choices[0].finish_reason == "stop"
    whole = chat(extra_body={"prefill": "off"})
    assert whole.choices[0].message.content == text


def test_logprobs_and_logit_bias():
    answer = chat(logprobs=True, top_logprobs=3, extra_body={"return_token_ids": True})
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens and all(len(c.top_logprobs) == 3 for c in content)
    assert all(c.logprob <= 0 and c.top_logprobs[0].logprob >= c.logprob for c in content)
    first = answer.choices[0].model_extra["token_ids"][0]
    banned = chat(logit_bias={str(first): -100}, extra_body={"return_token_ids": True})
    assert first not in banned.choices[0].model_extra["token_ids"]
    forced = chat(logit_bias={str(first): 100}, max_tokens=3, extra_body={"return_token_ids": True, "ignore_eos": True})
    assert forced.choices[0].model_extra["token_ids"] == 3 * [first]
    choices = chat(logit_bias={str(first): 100}, max_tokens=3, n=2, extra_body={"return_token_ids": True, "ignore_eos": True}).choices
    assert [c.model_extra["token_ids"] for c in choices] == 2 * [3 * [first]]
    refused(openai.BadRequestError, "logit_bias", chat, logit_bias={"1": 101})
    refused(openai.BadRequestError, "logit_bias", chat, logit_bias={"99999999": 1})


def test_responses():
    text = chat().choices[0].message.content
    answer = respond(metadata={"topic": "numbers"})
    assert answer.output_text == text and answer.object == "response" and answer.id.startswith("resp")
    assert answer.metadata == {"topic": "numbers"} and answer.store is False and answer.max_output_tokens == 8
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    if answer.status == "incomplete":
        assert answer.incomplete_details.reason == "max_output_tokens"
    else:
        assert answer.status == "completed"
    short = respond(max_output_tokens=1, extra_body={"ignore_eos": True})
    assert short.status == "incomplete" and short.usage.output_tokens == 1
    instructed = respond(instructions=turns[0]["content"], input=question)
    assert instructed.output_text == text and instructed.instructions == turns[0]["content"]

    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    likely = respond(**asked).output[0].content[0].logprobs
    assert len(likely) == answer.usage.output_tokens and all(len(l.top_logprobs) == 2 for l in likely)
    assert likely[0].logprob == chat(logprobs=True).choices[0].logprobs.content[0].logprob
    events = list(respond(stream=True, **asked))
    deltas = [l.token for e in events if e.type == "response.output_text.delta" for l in e.logprobs]
    assert deltas == [l.token for l in likely] and events[-1].response.output[0].content[0].logprobs == likely

    events = list(respond(stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    names = [e.type for e in events]
    assert names[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"], names
    assert names[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"], names
    assert names[-1] in ("response.completed", "response.incomplete"), names
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == text
    assert events[-1].response.output_text == text and events[-1].response.usage == answer.usage

    with client.responses.stream(model=model, input=turns, temperature=0, max_output_tokens=8) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == text

    turn = answer.output[0].to_dict()  # an answer is part of the next turn's input
    again = respond(input=turns + [turn, {"role": "user", "content": "Again."}])
    assert again.usage.input_tokens > answer.usage.input_tokens
    refused(openai.BadRequestError, "previous_response_id", respond, previous_response_id=answer.id)
    refused(openai.BadRequestError, "background", respond, background=True)
    refused(openai.BadRequestError, "tools", respond, tools=[{"type": "web_search"}])
    refused(openai.BadRequestError, "max_output_tokens", respond, max_output_tokens=0)
    assert respond(max_output_tokens=10 ** 6).status == "completed"  # reduced to what the context has room for
    refused(openai.NotFoundError, None, respond, model="no-such-model")


def test_streams_that_fail():
    events = respond(stream=True, max_output_tokens=2000, extra_body={"ignore_eos": True})
    first = next(iter(events))
    abort(server, first.response.id)
    last = list(events)[-1]
    assert last.type == "response.failed" and last.response.status == "failed", last
    assert last.response.error.code == "server_error" and "cancelled" in last.response.error.message, last
    stream = chat(stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
    try:
        abort(server, next(iter(stream)).id)
        for _ in stream:
            pass
        raise AssertionError("the stream did not fail")
    except openai.APIError as error:
        assert error.code == "cancelled", error


def test_errors():
    error = refused(openai.NotFoundError, "model", chat, model="no-such-model")
    assert "no-such-model" in error.message and error.code == "model_not_found"
    refused(openai.BadRequestError, "temperature", chat, temperature=-1)
    refused(openai.BadRequestError, "temperature", chat, temperature="warm")
    refused(openai.BadRequestError, "messages", chat, messages=[])
    refused(openai.BadRequestError, "keep_rate", chat, extra_body={"keep_rate": 2})
    error = refused(openai.BadRequestError, None, complete, prompt="word " * 100000)
    assert error.code == "context_length_exceeded", error
    refused(openai.BadRequestError, "max_tokens", complete, max_tokens=0)
    long = [{"role": "user", "content": "word " * 5000}]
    error = refused(openai.BadRequestError, None, chat, stream=True, messages=long)  # before the stream begins
    assert error.code == "context_length_exceeded" and "maximum context length is" in error.message, error


def test_retries():
    before = answered(url, "5xx")
    try:
        client.with_options(max_retries=openai.DEFAULT_MAX_RETRIES).chat.completions.create(
            model=model, messages=long_turns, extra_body={"ttft_deadline_ms": 1})
        raise AssertionError("the deadline did not pass")
    except openai.InternalServerError as error:
        assert error.status_code == 504 and error.response.headers["x-should-retry"] == "false", error
    assert answered(url, "5xx") == before + 1, "the client tried again"


def test_headers():
    raw = client.with_raw_response.chat.completions.create(
        model=model, messages=long_turns, temperature=0, max_tokens=4, extra_headers={"x-request-id": "mine-1"},
        extra_body={"prefill": "required", "keep_rate": 0.3})
    assert raw.headers["x-request-id"] == "mine-1"
    answer = raw.parse()
    assert int(raw.headers["x-forepack-prompt-tokens"]) == answer.usage.prompt_tokens
    assert int(raw.headers["x-forepack-kept-tokens"]) < answer.usage.prompt_tokens
    assert raw.headers["x-forepack-prefill"] == "speculated"
    whole = client.with_raw_response.responses.create(model=model, input=prompt, max_output_tokens=4,
                                                      extra_body={"prefill": "off"})
    assert whole.headers["x-forepack-kept-tokens"] == whole.headers["x-forepack-prompt-tokens"]
    assert whole.headers["x-forepack-prefill"].startswith("whole:") and whole.headers["x-request-id"]


async def at_once():
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600) as many:
        async def one(i):
            stream = await many.chat.completions.create(model=model, messages=turns, temperature=0, max_tokens=8,
                                                        stream=True)
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

        async def other(i):
            return (await many.responses.create(model=model, input=turns, temperature=0, max_output_tokens=8)).output_text

        return await asyncio.gather(*[(one if i % 2 else other)(i) for i in range(16)])


def test_many_at_once():
    texts = asyncio.run(at_once())
    assert set(texts) == {chat().choices[0].message.content}, texts


def test_batches():
    body = {"model": model, "messages": turns, "temperature": 0, "max_tokens": 8}
    content = "".join(json.dumps({"custom_id": f"request-{i}", "method": "POST", "url": "/v1/chat/completions",
                                  "body": body}) + "\n" for i in range(3)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert client.files.content(file.id).read() == content and client.files.retrieve(file.id) == file
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h",
                                  metadata={"description": "nightly eval job"})
    end = time.monotonic() + 300
    while batch.status != "completed" and time.monotonic() < end:
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.metadata == {"description": "nightly eval job"}, batch
    alone, rows = chat(max_tokens=8), client.files.content(batch.output_file_id).text.splitlines()
    texts = [json.loads(row)["response"]["body"]["choices"][0]["message"]["content"] for row in rows]
    assert texts == [alone.choices[0].message.content] * 3, texts
    assert batch.model == alone.model and batch.usage.total_tokens == 3 * alone.usage.total_tokens, batch
    assert batch.id in [one.id for one in client.batches.list(limit=10)]
    assert client.files.delete(file.id).deleted
    refused(openai.ConflictError, None, client.batches.cancel, batch_id=batch.id)


def test_a_stream_that_is_left():
    stream = chat(stream=True, max_tokens=500, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()  # the script that runs this test checks that its KV blocks are freed


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok", name[5:], flush=True)
