# SPDX-License-Identifier: Apache-2.0
"""The official client of Anthropic's API, unmodified, against a running cluster: messages, streams, stop sequences,
counting tokens, errors, many requests at once.

Usage: anthropic_client.py URL GRPC_HOST:PORT PROMPTS.jsonl
"""
import asyncio
import json
import sys

import anthropic
import openai

from abort import abort
from answered import answered

url, server, prompts_file = sys.argv[1:4]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=600)
chat = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600)
with open(prompts_file) as file:
    prompt = json.loads(file.readline())["prompt"]
question = "The badge number of Romas is"
turns = [{"role": "user", "content": question}]
long_turns = [{"role": "user", "content": prompt}]
model = chat.models.list().data[0].id
GREEDY = {"temperature": 0}
SYSTEM = "Answer with a number."


def ask(extra_body=None, **more):
    return client.messages.create(**{"model": model, "messages": turns, "max_tokens": 8, "system": SYSTEM,
                                     "extra_body": {**GREEDY, **(extra_body or {})}, **more})


def refused(kind, error_type, words, **arguments):
    try:
        ask(**arguments)
    except kind as error:
        assert error.body["type"] == "error" and error.body["error"]["type"] == error_type, error.body
        assert words in error.body["error"]["message"], error.body
        assert error.request_id, error
        return
    raise AssertionError("%s: not refused" % arguments)


def test_messages():
    answer = ask()
    assert answer.type == "message" and answer.role == "assistant" and answer.model == model
    assert answer.id.startswith("msg") and answer.content[0].type == "text"
    same = chat.chat.completions.create(model=model, messages=[{"role": "system", "content": SYSTEM}] + turns,
                                        max_tokens=8, temperature=0)
    assert answer.content[0].text == same.choices[0].message.content
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == same.usage.prompt_tokens
    assert usage.output_tokens == same.usage.completion_tokens
    assert answer.stop_reason == {"stop": "end_turn", "length": "max_tokens"}[same.choices[0].finish_reason]
    blocks = ask(system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
                 messages=[{"role": "user", "content": [{"type": "text", "text": question}]}])
    assert blocks.content[0].text == answer.content[0].text
    cut = ask(max_tokens=1, extra_body={"ignore_eos": True})
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 1
    longer = ask(messages=turns + [{"role": "assistant", "content": "No."}, {"role": "user", "content": "Why?"}])
    assert longer.usage.input_tokens + longer.usage.cache_read_input_tokens > same.usage.prompt_tokens


def test_stop_sequences():
    text = ask().content[0].text
    assert len(text) > 3, text  # the demo models answer with a number
    ends = text[1:3]
    for stream in (False, True):
        if stream:
            with client.messages.stream(model=model, messages=turns, max_tokens=8, system=SYSTEM,
                                        stop_sequences=["never", ends], extra_body=GREEDY) as events:
                answer = events.get_final_message()
        else:
            answer = ask(stop_sequences=["never", ends])
        assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == ends, answer
        assert "".join(block.text for block in answer.content) == text[:text.index(ends)], (answer, text)


def test_streams():
    answer = ask()
    events = list(ask(stream=True))
    names = [e.type for e in events]
    assert names[0] == "message_start" and names[1] == "content_block_start", names
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"], names
    assert set(names[2:-3]) == {"content_block_delta"}, names
    assert "".join(e.delta.text for e in events if e.type == "content_block_delta") == answer.content[0].text
    assert events[0].message.usage.input_tokens > 0
    assert events[-2].usage.output_tokens == answer.usage.output_tokens
    with client.messages.stream(model=model, messages=turns, max_tokens=8, system=SYSTEM,
                                extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == answer.content[0].text
        final = stream.get_final_message()
    assert final.stop_reason == answer.stop_reason and final.usage.output_tokens == answer.usage.output_tokens


def test_models():
    listed = client.models.list()
    assert listed.data[0].id == model and listed.data[0].type == "model" and listed.data[0].display_name == model
    assert listed.data[0].created_at.year >= 2026 and not listed.has_more
    assert client.models.retrieve(model).id == model


def test_agents():
    """The fields that Claude Code sends."""
    call = {"type": "tool_use", "id": "1", "name": "ls", "input": {"path": "."}}
    result = {"type": "tool_result", "tool_use_id": "1",
              "content": [{"type": "text", "text": "a.txt"}, {"type": "text", "text": "b.txt"}]}
    answer = client.beta.messages.create(
        model=model, max_tokens=32000, betas=["context-management-2025-06-27"], thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
        messages=turns + [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                          {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}],
        extra_body={**GREEDY, "output_config": {"effort": "high"}})
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 20, answer
    raw = client.messages.with_raw_response.create(model=model, max_tokens=10 ** 8, messages=turns,
                                                   stop_sequences=list("0123456789"), extra_body=GREEDY)
    reduced = int(raw.headers["x-forepack-max-tokens"])
    assert 4000 < reduced < 4096, raw.headers


def test_count_tokens():
    usage = ask().usage
    count = client.messages.count_tokens(model=model, messages=turns, system=SYSTEM)
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_stream_that_fails():
    stream = ask(stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
    try:
        for event in stream:
            if event.type == "message_start":
                abort(server, event.message.id)
        raise AssertionError("the stream did not fail")
    except anthropic.APIError as error:
        assert error.body["error"]["type"] == "api_error", error.body


def test_errors():
    invalid = (anthropic.BadRequestError, "invalid_request_error")
    refused(anthropic.NotFoundError, "not_found_error", "no-such-model", model="no-such-model")
    refused(*invalid, "max_tokens", max_tokens=0)
    refused(*invalid, "temperature", extra_body={"temperature": "warm"})
    refused(*invalid, "tools", tools=[{"name": "f"}])
    refused(*invalid, "thinking.budget_tokens", thinking={"type": "enabled", "budget_tokens": 0})
    refused(*invalid, "image", messages=[{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]}])
    refused(*invalid, "messages", messages=[])
    refused(*invalid, "last turn", messages=turns + [{"role": "assistant", "content": "The"}])
    for stream in (False, True):  # before the stream begins
        refused(*invalid, " tokens > 4095 maximum", messages=[{"role": "user", "content": "word " * 5000}], stream=stream)


def test_retries():
    before = answered(url, "5xx")
    try:
        client.with_options(max_retries=anthropic.DEFAULT_MAX_RETRIES).messages.create(
            model=model, messages=long_turns, max_tokens=4, extra_body={"ttft_deadline_ms": 1})
        raise AssertionError("the deadline did not pass")
    except anthropic.InternalServerError as error:
        assert error.status_code == 504 and error.response.headers["x-should-retry"] == "false", error
    assert answered(url, "5xx") == before + 1, "the client tried again"


def test_headers():
    raw = client.messages.with_raw_response.create(model=model, messages=long_turns, max_tokens=4,
                                                   extra_body={"prefill": "required", "keep_rate": 0.3})
    assert raw.headers["request-id"] and raw.headers["x-forepack-prefill"] == "speculated"
    assert int(raw.headers["x-forepack-kept-tokens"]) < int(raw.headers["x-forepack-prompt-tokens"])


async def at_once():
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=600) as many:
        async def one():
            async with many.messages.stream(model=model, messages=turns, max_tokens=8, system=SYSTEM,
                                            extra_body=GREEDY) as stream:
                return await stream.get_final_text()

        return await asyncio.gather(*[one() for _ in range(8)])


def test_many_at_once():
    assert set(asyncio.run(at_once())) == {ask().content[0].text}


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok", name[5:], flush=True)
