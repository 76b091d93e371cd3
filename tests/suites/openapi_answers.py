#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Validates answers of a server with OpenAI's specification.

Usage: openapi_answers.py openapi.json BASE_URL
Sends the requests of REQUESTS, whole and as streams. Each answer and each event of a stream must match the schema that
the specification has for the path and the kind of content. Answers with an error must match ErrorResponse.
"""
import collections
import json
import re
import sys
import urllib.error
import urllib.request

import jsonschema

TOOL = {"name": "add", "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                       "required": ["a", "b"], "additionalProperties": False}}
CHAT_TOOL = {"type": "function", "function": TOOL}
RESPONSE_TOOL = {"type": "function", "strict": True, **TOOL}
CUSTOM_TOOL = {"type": "custom", "name": "run", "description": "Runs a command."}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
CALLED = [*TURNS, {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1,\"b\":2}"}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "3"}]
ITEMS = [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
         {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{\"a\":1,\"b\":2}"},
         {"type": "function_call_output", "call_id": "call_1", "output": "3"}]

# Path and body. `stream` is added to each body of a generation.
REQUESTS = [
    ("/chat/completions", {"messages": TURNS, "max_tokens": 8}),
    ("/chat/completions", {"messages": TURNS, "max_completion_tokens": 8, "n": 2, "seed": 1, "user": "u"}),
    ("/chat/completions", {"messages": TURNS, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}),
    ("/chat/completions", {"messages": TURNS, "max_tokens": 8, "stop": ["a"], "temperature": 1.5, "top_p": 0.9}),
    ("/chat/completions", {"messages": CALLED, "max_tokens": 8, "tools": [CHAT_TOOL]}),
    ("/chat/completions", {"messages": TURNS, "max_tokens": 48, "tools": [CHAT_TOOL], "tool_choice": "required"}),
    ("/chat/completions", {"messages": TURNS, "max_tokens": 5, "tools": [CHAT_TOOL], "tool_choice": "required"}),
    ("/chat/completions", {"messages": TURNS, "max_tokens": 32, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}}),
    ("/completions", {"prompt": "Hello", "max_tokens": 8}),
    ("/completions", {"prompt": ["Hello", "Bye"], "max_tokens": 4, "n": 2, "logprobs": 2, "echo": True}),
    ("/responses", {"input": "Hello", "max_output_tokens": 16}),
    ("/responses", {"input": ITEMS, "instructions": "Be brief.", "max_output_tokens": 16, "tools": [RESPONSE_TOOL],
                    "metadata": {"key": "value"}, "parallel_tool_calls": False, "store": False}),
    ("/responses", {"input": "Hello", "max_output_tokens": 48, "tools": [RESPONSE_TOOL], "tool_choice": "required"}),
    ("/responses", {"input": "Hello", "max_output_tokens": 16, "tools": [RESPONSE_TOOL], "tool_choice": "required"}),
    ("/responses", {"input": "Hello", "max_output_tokens": 48, "tools": [CUSTOM_TOOL], "tool_choice": "required"}),
    ("/responses", {"input": "Hello", "max_output_tokens": 16, "include": ["message.output_text.logprobs"],
                    "top_logprobs": 2, "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}}),
    ("/responses", {"input": "Hello", "max_output_tokens": 32, "text": {
        "format": {"type": "json_schema", "name": "n", "strict": True, "schema": SCHEMA}}}),
    ("/responses/input_tokens", {"input": "Hello"}),
    ("/models", None),
    ("/chat/completions", {"messages": TURNS, "temperature": 9}),
    ("/chat/completions", {"messages": TURNS, "model": "other"}),
    ("/responses", {"input": "Hello", "previous_response_id": "resp_1"}),
]

# Path, place and reason of differences that are accepted: OpenAI's servers send null there, which the schemas leave out.
KNOWN = [
    ("/completions", r"choices/\d/finish_reason", "null in all events of a stream but the last"),
    ("/completions", r"choices/\d/logprobs/token_logprobs/0", "null for the first token of an echoed prompt"),
]


def post(url, body):
    """Returns the kind of content and the text of the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.headers.get_content_type(), answer.read().decode()
    except urllib.error.HTTPError as error:
        return "error", error.read().decode()


def events(text):
    """Returns the objects of a stream of server-sent events."""
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def with_null(schema):
    """Returns the schema with null allowed wherever it has OpenAPI 3.0's `nullable`."""
    if isinstance(schema, list):
        return [with_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: with_null(value) for key, value in schema.items()}
    return {"anyOf": [schema, {"type": "null"}]} if schema.pop("nullable", None) is True else schema


def main():
    specification = with_null(json.load(open(sys.argv[1], encoding="utf-8")))

    def schema_of(path, kind):
        if kind == "error":
            return "#/components/schemas/ErrorResponse"
        operation = specification["paths"][path]
        operation = operation.get("post") if path != "/models" else operation["get"]
        kinds = operation["responses"]["200"]["content"]
        return kinds.get(kind, kinds["application/json"])["schema"]["$ref"]  # completions have one schema for both

    def faults(path, kind, value):
        validator = jsonschema.Draft202012Validator({"$ref": schema_of(path, kind), **{
            key: specification[key] for key in ("components",)}})
        return [jsonschema.exceptions.best_match([error]) for error in validator.iter_errors(value)]

    def reason_of(path, error):
        place = "/".join(map(str, error.absolute_path))
        return next((reason for at, where, reason in KNOWN if at == path and re.fullmatch(where, place)), None)

    passed, failed, known = 0, 0, collections.Counter()
    for path, body in REQUESTS:
        streams = [False, True] if body and path != "/responses/input_tokens" else [None]
        for stream in streams:
            kind, text = post(sys.argv[2] + path, body if stream is None else {**body, "stream": stream})
            values = events(text) if kind == "text/event-stream" else [json.loads(text)]
            assert values, (path, body)
            for value in values:
                found = faults(path, kind, value)
                reasons = {reason_of(path, error) for error in found}
                passed += not found
                if found and None not in reasons:
                    known.update(reasons)
                    continue
                failed += bool(found)
                for error in found[:2]:
                    place = "/".join(map(str, error.absolute_path))
                    print(f"{path} {kind}: {place}: {error.message[:300]}\n  of {json.dumps(body)[:300]}\n  in "
                          f"{json.dumps(value)[:400]}")
    print(f"{passed} answers and events valid, {known.total()} differ for a known reason, {failed} not valid")
    for reason, number in known.items():
        print(f"  {number}: {reason}")
    sys.exit(failed > 0)


main()
