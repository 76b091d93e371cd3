# SPDX-License-Identifier: Apache-2.0
"""Structured output with the official client of OpenAI's API, and Anthropic's.

Usage: structured_output.py URL ROUNDS; a round is 8 answers
"""
import json
import re
import sys

import anthropic
import jsonschema
import openai

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

for body, sentence in (
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}, "structured output: "),
    ({"guided_regex": "("}, "structured output: "),
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
