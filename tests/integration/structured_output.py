# SPDX-License-Identifier: Apache-2.0
"""Structured output with the official client of OpenAI's API, and Anthropic's.

Usage: structured_output.py URL ROUNDS; a round is 8 answers
"""
import json
import re
import sys
import typing

import anthropic
import jsonschema
import openai
import pydantic

url = sys.argv[1]
rounds = int(sys.argv[2])
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600)
anthropic_client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=600)
model = client.models.list().data[0].id
turns = [{"role": "user", "content": "Who is it?"}]
schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
response_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}


def chat(**more):
    return client.chat.completions.create(**{"model": model, "messages": turns, "max_tokens": 80, **more})


def valid(text):
    jsonschema.validate(json.loads(text), schema)


ended = 0
for seed in range(rounds):
    answer = chat(response_format=response_format, seed=seed, n=8, temperature=1)
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            valid(choice.message.content)
            ended += 1
assert ended >= 2 * rounds, ended

whole = chat(response_format=response_format, seed=1).choices[0].message.content
stream = chat(response_format=response_format, seed=1, stream=True)
assert whole == "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

answer = chat(response_format={"type": "json_object"}, temperature=0).choices[0]
assert answer.message.content.startswith("{"), answer
assert chat(response_format={"type": "text"}, temperature=0).choices[0].message.content

for body, pattern in (
    ({"guided_choice": ["left", "right"]}, "left|right"),
    ({"guided_regex": "[a-f]{4}-[0-9]+!"}, "[a-f]{4}-[0-9]+!"),
    ({"guided_grammar": 'start: "<" /[xyz]+/ ">"'}, "<[xyz]+>"),
    ({"structured_outputs": {"choice": ["up", "down"]}}, "up|down"),
    ({"guided_json": json.dumps({"enum": ["k", 7]})}, '"k"|7'),
):
    choice = chat(extra_body=body, seed=2).choices[0]
    if choice.finish_reason == "stop":
        assert re.fullmatch(pattern, choice.message.content), (body, choice)
    else:
        assert choice.finish_reason == "length", choice

answer = client.responses.create(
    model=model, input="Who?", max_output_tokens=80,
    text={"format": {"type": "json_schema", "name": "person", "schema": schema}},
)
if answer.status == "completed":
    valid(answer.output_text)

answer = anthropic_client.messages.create(
    model=model, max_tokens=80, messages=turns, extra_body={"output_config": {"format": {"type": "json_schema", "schema": schema}}}
)
assert answer.content[0].text.startswith("{"), answer

# A property that a pattern also matches: no other name is left after it.
score = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"],
         "additionalProperties": False, "patternProperties": {"^score$": {"maximum": 9}}}
for seed in range(8):
    choice = chat(extra_body={"guided_json": score}, seed=seed, temperature=1, max_tokens=200).choices[0]
    assert choice.finish_reason == "stop", choice
    jsonschema.validate(json.loads(choice.message.content), score)
# The same in two schemas, which only llguidance combines.
dead_end = {"allOf": [{"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]},
                      {"patternProperties": {"^score$": {}}, "additionalProperties": False}]}

# `strict` closes objects that do not say whether they are closed.
opened = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"],
          "$defs": {"a": {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}}}
tool = {"type": "function", "function": {"name": "f", "parameters": opened, "strict": True}}
for seed in range(8):
    strict = {"type": "json_schema", "json_schema": {"name": "a", "schema": opened, "strict": True}}
    text = chat(response_format=strict, seed=seed, temperature=1, max_tokens=200).choices[0].message.content
    assert json.loads(text) in ({"a": {"b": True}}, {"a": {"b": False}}), text
    answer = chat(tools=[tool], tool_choice="required", parallel_tool_calls=False, seed=seed, temperature=1, max_tokens=200)
    text = answer.choices[0].message.tool_calls[0].function.arguments
    assert json.loads(text) in ({"a": {"b": True}}, {"a": {"b": False}}), text

# A long schema, and one with too many members.
names = ["a member with a name of about forty letters %d" % i for i in range(800)]
large = {"type": "object", "properties": {name: {"description": "x" * 200, "type": "boolean"} for name in names}}
assert len(json.dumps(large)) > 200 << 10
answer = chat(extra_body={"guided_json": large}, seed=1, temperature=1)
assert answer.choices[0].message.content.startswith("{"), answer
LIMIT = 1 << 20  # bytes of a schema


def described(size):
    """A schema of this size, over HTTP and in the message to the worker group."""
    schema = {"type": "boolean", "description": ""}
    schema["description"] = "x" * (size - len(json.dumps(schema, separators=(",", ":"))))
    return schema


for more in {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": described(LIMIT)}}}, {
        "guided_json": described(LIMIT)}:
    assert chat(extra_body=more).choices[0].message.content in ("true", "false")
endless = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
endless_tool = {"type": "function", "function": {"name": "f", "parameters": endless}}
many = {"properties": {"%d" % i: {} for i in range(900)}}


class Person(pydantic.BaseModel):
    name: typing.Literal["Ann", "Bob"]
    adult: bool | None


for seed in range(8):
    parsed = client.chat.completions.parse(model=model, messages=turns, response_format=Person, seed=seed, max_tokens=400)
    assert isinstance(parsed.choices[0].message.parsed, Person), parsed

for body, sentence in (
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}, "structured output: "),
    ({"guided_regex": "("}, "structured output: "),
    ({"guided_json": dead_end, "temperature": 1}, "tokens the grammar has a dead end"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}},
     "response_format.json_schema.strict: "),
    ({"guided_json": described(LIMIT + 1)}, "the JSON schema has 1048577 bytes: at most 1048576"),
    ({"guided_regex": "a" * ((256 << 10) + 1)}, "have 262145 bytes: at most 262144"),
    ({"guided_json": {"enum": [[i] for i in range(21000)]}}, "too many members"),
    ({"guided_json": many}, "too many members"),
    ({"guided_json": {"$ref": "#"}}, "requires itself"),
    ({"tools": [endless_tool], "tool_choice": "required"}, "requires itself"),
    ({"guided_regex": "a", "min_tokens": 4}, "min_tokens: not allowed"),
    ({"guided_choice": []}, "guided_choice: "),
):
    try:
        chat(extra_body=body)
    except openai.BadRequestError as error:
        assert sentence in str(error), error
    else:
        raise AssertionError("%s: not refused" % body)
print("structured output: %d of %d answers ended and were valid" % (ended, 8 * rounds))
