# SPDX-License-Identifier: Apache-2.0
"""Requests to the Responses API in the shapes that Codex, openai-agents, inspect-ai and instructor send. The demo model
cannot call tools: a regular expression makes it write calls in the form of a model that can.

Usage: responses_client.py URL
"""
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=600)
model = client.models.list().data[0].id


def call(name, arguments):
    return r'<tool_call>\n\{"name": "%s", "arguments": %s\}\n</tool_call>' % (name, arguments)


def user(text):
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


# --- a coding agent: three kinds of tools, hosted tools that are not here, reasoning that is not stored

shell = {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
         "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}},
                        "required": ["command"], "additionalProperties": False}}
patch = {"type": "custom", "name": "apply_patch", "description": "Edits files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"*** Begin\" /(.|\\n)+/"}}
files = {"type": "namespace", "name": "mcp__files__", "description": "Tools of a server.",
         "tools": [{"type": "function", "name": "read", "description": "Reads a file.", "strict": False,
                    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}]}
agent = {
    "model": model,
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Work in /tmp."}]},
        user("Fix the bug.")],
    "tools": [shell, patch, files, {"type": "web_search", "external_web_access": False}],
    "tool_choice": "auto", "parallel_tool_calls": False, "store": False, "stream": True,
    "reasoning": {"effort": "medium", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0198c0de-0000-7000-8000-000000000000", "text": {"verbosity": "low"},
}


def ask(regex, **more):
    """Sends the agent's request. Returns the events and the header that lists tools that were left out."""
    extra = {"seed": 1, "client_metadata": {"session": "1"}, "guided_regex": regex}
    with client.responses.with_streaming_response.create(
            **{**agent, **more}, max_output_tokens=300, extra_body=extra,
            extra_headers={"originator": "codex_exec"}) as raw:
        header = raw.headers.get("x-forepack-tools-left-out")
        return list(raw.parse()), header


def deltas(events, name):
    return "".join(e.delta for e in events if e.type == "response.%s.delta" % name)


events, header = ask(call("apply_patch", r'\{"input": "\*\*\* Begin\\n[a-z]{3,6}"\}'))
assert header == "web_search", header
item = events[-1].response.output[-1]
assert events[-1].type == "response.completed" and item.type == "custom_tool_call", events[-1]
assert item.name == "apply_patch" and item.input.startswith("*** Begin\n"), item
assert deltas(events, "custom_tool_call_input") == item.input
assert [e.input for e in events if e.type == "response.custom_tool_call_input.done"] == [item.input]
assert [tool.type for tool in events[-1].response.tools] == ["function", "custom", "namespace"]
assert events[-1].response.reasoning.effort == "medium" and events[-1].response.store is False
output = [{"type": "custom_tool_call_output", "call_id": item.call_id, "output": "Done"}]

second = agent["input"] + [item.to_dict()] + output
events, _ = ask(call("mcp__files__read", r'\{"path": "[a-z]{3}"\}'), input=second)
item = events[-1].response.output[-1]
assert (item.type, item.namespace, item.name) == ("function_call", "mcp__files__", "read"), item
assert deltas(events, "function_call_arguments") == item.arguments and json.loads(item.arguments)["path"]
assert [(e.name, e.arguments) for e in events if e.type == "response.function_call_arguments.done"] == [
    ("read", item.arguments)]

third = second + [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}, item.to_dict(),
                  {"type": "function_call_output", "call_id": item.call_id,
                   "output": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]}]
events, _ = ask("Fixed[.]", input=third)
assert events[-1].response.output_text == "Fixed.", events[-1]
assert events[0].response.usage.input_tokens == events[-1].response.usage.input_tokens

# The same tokens are counted by the endpoint for it.
counted = client.responses.input_tokens.count(
    **{k: v for k, v in agent.items() if k in ("model", "instructions", "tools", "tool_choice")}, input=third)
assert counted.input_tokens == events[-1].response.usage.input_tokens, (counted, events[-1].response.usage)
assert counted.object == "response.input_tokens"

# --- a choice among the tools


def respond(regex=None, **more):
    extra = {"seed": 1, **({"guided_regex": regex} if regex else {})}
    return client.responses.create(
        **{"model": model, "input": "Hi", "max_output_tokens": 300, "extra_body": extra, **more})


def days(name, most):
    return {"type": "function", "name": name, "strict": True, "parameters": {
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": most}}, "required": ["n"],
        "additionalProperties": False}}


three = [days("one", 1), days("two", 2), {"type": "custom", "name": "free"}]
allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "two"}]}
for seed in range(4):
    answer = respond(tools=three, tool_choice=allowed, parallel_tool_calls=False, extra_body={"seed": seed})
    assert [item.name for item in answer.output] == ["two"] and answer.tool_choice.mode == "required", answer
two_only = respond(tools=three[1:2], tool_choice="required", parallel_tool_calls=False)
assert answer.usage.input_tokens == two_only.usage.input_tokens, "the prompt shows a tool that is not allowed"
answer = respond(tools=three, tool_choice={"type": "custom", "name": "free"}, max_output_tokens=60)
assert answer.output[0].type == "custom_tool_call" and not answer.output[0].input.startswith('{"input'), answer

# --- tools and a format: a call if the model calls, else the format

fmt = {"format": {"type": "json_schema", "name": "days", "strict": True, "schema": days("", 9)["parameters"]}}
named = {"type": "function", "name": "one"}
answer = respond(tools=three, tool_choice=named, text=fmt)
assert [(item.type, item.name) for item in answer.output] == [("function_call", "one")], answer
kinds = set()
for seed in range(12):
    answer = respond(tools=three[:2], text=fmt, parallel_tool_calls=False, extra_body={"seed": seed})
    item = answer.output[0]
    kinds.add(item.type)
    if item.type == "message" and answer.status == "completed":
        assert 1 <= json.loads(answer.output_text)["n"] <= 9, answer
    assert item.type == "message" or item.name in ("one", "two"), answer
assert "message" in kinds, kinds

# --- an answer that is cut in a call: the whole answer has the items and labels of the stream

two_calls = "Text[.]\n" + call("one", r'\{"n": 1\}') + "\n" + call("two", r'\{"n": 1{60}\}')


def labels(response):
    return [(item.type, item.status, getattr(item, "arguments", None) or item.content[0].text)
            for item in response.output]


complete = respond(two_calls, tools=three)
assert [item.type for item in complete.output] == ["message", "function_call", "function_call"], complete
for cut in range(complete.usage.output_tokens - 60, complete.usage.output_tokens, 7):
    whole = respond(two_calls, tools=three, max_output_tokens=cut)
    streamed = list(respond(two_calls, tools=three, max_output_tokens=cut, stream=True))[-1].response
    assert labels(whole) == labels(streamed) and whole.status == "incomplete", (labels(whole), labels(streamed))
    last = "completed" if labels(whole)[-1][2].endswith("}") else "incomplete"
    assert [status for _, status, _ in labels(whole)] == ["completed", "completed", last], whole

# --- fields that ask for what is not here

for more, sentence in (
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]: type item_reference"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input_image"),
    ({"include": ["everything"]}, "include[0]"),
    ({"tools": three, "tool_choice": {**allowed, "tools": [{"type": "function", "name": "ten"}]}},
     "no tool has the name 'ten'"),
):
    try:
        respond(**more)
    except openai.BadRequestError as error:
        assert sentence in str(error), error
    else:
        raise AssertionError("%s: not refused" % more)
hints = respond("Yes", truncation="auto", service_tier="flex", max_tool_calls=3, store=True, metadata={"a": "b"},
                prompt_cache_retention="24h", safety_identifier="s")
assert hints.metadata == {"a": "b"} and hints.max_tool_calls == 3 and hints.output_text == "Yes", hints
print("responses: ok")
