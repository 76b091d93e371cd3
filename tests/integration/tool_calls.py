# SPDX-License-Identifier: Apache-2.0
"""Tool calls and reasoning with the official client of OpenAI's API. The demo model cannot call tools: a regular
expression makes it write calls in the form of a model that can.

Usage: tool_calls.py URL
"""
import json
import sys

import anthropic
import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=600)
model = client.models.list().data[0].id
turns = [{"role": "user", "content": "How warm is it in Oslo and in Bergen?"}]
tools = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "[A-Z][a-z]{3,6}"\}\}\n</tool_call>'


def chat(regex=None, **more):
    body = {"guided_regex": regex} if regex else {}
    return client.chat.completions.create(
        **{"model": model, "messages": turns, "max_tokens": 300, "seed": 1, "extra_body": body, **more}
    )


def collect(stream):
    """Returns the message and the finish reason that the deltas of a stream add up to."""
    message, reason = {"content": "", "reasoning": "", "calls": []}, None
    for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta
            message["content"] += delta.content or ""
            message["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or []:
                if call.id:
                    assert call.index == len(message["calls"]) and call.type == "function", call
                    message["calls"].append([call.function.name, ""])
                message["calls"][call.index][1] += call.function.arguments or ""
            reason = choice.finish_reason or reason
    return message, reason


def whole(choice):
    message = choice.message
    return {
        "content": message.content or "",
        "reasoning": getattr(message, "reasoning_content", None) or "",
        "calls": [[call.function.name, call.function.arguments] for call in message.tool_calls or []],
    }


two_calls = "<think>\nI need [a-z]{3,9}\\.\n</think>\n\nOne moment\\.\n" + CALL + "\n" + CALL
answer = chat(two_calls, tools=tools).choices[0]
assert answer.finish_reason == "tool_calls", answer
message = whole(answer)
assert message["content"] == "One moment.\n" and message["reasoning"].startswith("I need "), message
assert [name for name, _ in message["calls"]] == ["weather", "weather"], message
assert all("city" in json.loads(arguments) for _, arguments in message["calls"]), message
assert len({call.id for call in answer.message.tool_calls}) == 2

assert collect(chat(two_calls, tools=tools, stream=True)) == (message, "tool_calls")
assert len(whole(chat(two_calls, tools=tools, parallel_tool_calls=False).choices[0])["calls"]) == 1

# If there are no tools, or with tool_choice none, the same text is content.
for more in ({}, {"tools": tools, "tool_choice": "none"}):
    answer = chat(CALL, **more).choices[0]
    assert answer.finish_reason == "stop" and answer.message.content.startswith("<tool_call>"), answer
    assert not answer.message.tool_calls

# A call that the client requires: the arguments fit the tool's schema.
other = {"type": "function", "function": {"name": "clock", "parameters": {"$defs": {"zone": {"enum": ["utc", "cet"]}},
         "type": "object", "properties": {"zone": {"$ref": "#/$defs/zone"}}, "required": ["zone"]}}}
forecast = {"type": "function", "function": {"name": "days", "parameters": {"type": "object", "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": False}}}
for choice, names in (("required", {"clock", "days"}), ({"type": "function", "function": {"name": "days"}}, {"days"})):
    for seed in range(6):
        answer = chat(tools=[other, forecast], tool_choice=choice, seed=seed, parallel_tool_calls=False)
        for name, arguments in whole(answer.choices[0])["calls"]:
            assert name in names, answer
            if answer.choices[0].finish_reason == "tool_calls":
                values = json.loads(arguments)
                assert values["zone"] in ("utc", "cet") if name == "clock" else 1 <= values["n"] <= 9, answer
        assert answer.choices[0].finish_reason == "tool_calls" or choice == "required", answer

# A grammar holds from the first token on, even if the prompt begins the reasoning.
thinking = {"chat_template_kwargs": {"open_thinking": True}}
assert whole(chat(max_tokens=4, extra_body=thinking).choices[0])["reasoning"]
message_of_grammar = whole(chat(tools=[forecast], tool_choice="required", parallel_tool_calls=False, extra_body=thinking).choices[0])
assert [name for name, _ in message_of_grammar["calls"]] == ["days"] and not message_of_grammar["reasoning"], message_of_grammar
message_of_grammar = whole(chat(extra_body={**thinking, "guided_choice": ["yes", "no"]}).choices[0])
assert message_of_grammar["content"] in ("yes", "no") and not message_of_grammar["reasoning"], message_of_grammar

# The same over Anthropic's API.
anthropic_client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0, timeout=600)
weather = tools[0]["function"]
own = [{"name": weather["name"], "description": weather["description"], "input_schema": weather["parameters"]}]
asking = {"model": model, "max_tokens": 300, "messages": turns, "tools": own, "extra_body": {"guided_regex": two_calls, "seed": 1}}
answer = anthropic_client.messages.create(**asking)
assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"], answer
assert answer.stop_reason == "tool_use" and all("city" in block.input for block in answer.content[2:]), answer
count = anthropic_client.messages.count_tokens(model=model, messages=turns, tools=own)
assert count.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens, (count, answer)
assert answer.content[0].thinking == message["reasoning"] and answer.content[1].text == message["content"]
with anthropic_client.messages.stream(**asking) as events:
    streamed = events.get_final_message()
assert [block.type for block in streamed.content] == [block.type for block in answer.content], streamed
assert [block.input for block in streamed.content[2:]] == [block.input for block in answer.content[2:]], streamed
results = [{"type": "tool_result", "tool_use_id": block.id, "content": "4 degrees"} for block in answer.content[2:]]
asking["messages"] = turns + [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
assert anthropic_client.messages.create(**{**asking, "max_tokens": 4, "extra_body": {}}).content
required = anthropic_client.messages.create(**{**asking, "tool_choice": {"type": "tool", "name": "weather"}, "extra_body": {"seed": 2}})
assert required.content[0].type == "tool_use", required

# The same over OpenAI's Responses API.
functions = [{"type": "function", **tool["function"]} for tool in tools]


def respond(regex=None, **more):
    body = {"seed": 1, **({"guided_regex": regex} if regex else {})}
    return client.responses.create(
        **{"model": model, "input": turns, "max_output_tokens": 300, "tools": functions, "extra_body": body, **more}
    )


def items(response):
    """The types of the items of a response with their text, or with the name and arguments of a call."""
    return [(item.type, item.name, item.arguments) if item.type == "function_call" else (item.type, item.content[0].text)
            for item in response.output]


answer = respond(two_calls)
assert answer.status == "completed" and answer.tools[0].name == "weather", answer
assert items(answer) == [("reasoning", message["reasoning"]), ("message", message["content"])] + [
    ("function_call", name, arguments) for name, arguments in message["calls"]], answer
assert len({item.id for item in answer.output}) == 4 and len({item.call_id for item in answer.output[2:]}) == 2, answer
events = list(respond(two_calls, stream=True))
assert [e.sequence_number for e in events] == list(range(len(events)))
assert items(events[-1].response) == items(answer) and events[-1].type == "response.completed", events[-1]
for index, (name, text) in enumerate([("reasoning_text", 1), ("output_text", 1)] + 2 * [("function_call_arguments", 2)]):
    deltas = [e.delta for e in events if e.type == "response.%s.delta" % name and e.output_index == index]
    assert "".join(deltas) == items(answer)[index][text], (index, deltas)
with client.responses.stream(model=model, input=turns, max_output_tokens=300, tools=functions,
                             extra_body={"seed": 1, "guided_regex": two_calls}) as stream:
    for _ in stream:
        pass
    assert items(stream.get_final_response()) == items(answer)
assert [item.type for item in respond(two_calls, parallel_tool_calls=False).output][2:] == ["function_call"]
assert [item.type for item in respond(CALL, tool_choice="none").output] == ["message"]
assert [item.type for item in respond(tool_choice={"type": "function", "name": "weather"}).output] == ["function_call"]
results = [{"type": "function_call_output", "call_id": item.call_id, "output": "4 degrees"} for item in answer.output[2:]]
again = respond(input=turns + [item.to_dict() for item in answer.output] + results, max_output_tokens=4)
chat_turns = [chat(two_calls, tools=tools).choices[0].message.to_dict()]
chat_turns += [{"role": "tool", "tool_call_id": call["id"], "content": "4 degrees"} for call in chat_turns[0]["tool_calls"]]
same = chat(tools=tools, max_tokens=4, messages=turns + chat_turns)
assert again.usage.input_tokens == same.usage.prompt_tokens, (again, same)
likely = respond(two_calls, include=["message.output_text.logprobs"]).output[1].content[0].logprobs
assert likely and "".join(l.token for l in likely).lstrip().startswith(message["content"]), likely
for more, sentence in (
    ({"tools": [{"type": "web_search"}]}, "tools: type web_search is not supported"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice: there are no tools"),
    ({"input": [{"type": "function_call_output", "output": "4"}]}, "input[0].call_id"),
):
    try:
        respond(**more)
    except openai.BadRequestError as error:
        assert sentence in str(error), error
    else:
        raise AssertionError("%s: not refused" % more)

# The results go back to the model.
calls = chat(CALL, tools=tools).choices[0].message
assert calls.content is None and len(calls.tool_calls) == 1, calls
turns += [calls, {"role": "tool", "tool_call_id": calls.tool_calls[0].id, "content": "4 degrees"}]
assert chat(tools=tools, max_tokens=4).choices[0].message is not None

for more, sentence in (
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": tools, "tool_choice": "always"}, "tool_choice: must be"),
    ({"tool_choice": "required"}, "tool_choice: there are no tools"),
    ({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice: no tool"),
    ({"tools": tools, "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}, "messages[0]"),
):
    try:
        chat(**more)
    except openai.BadRequestError as error:
        assert sentence in str(error), error
    else:
        raise AssertionError("%s: not refused" % more)
print("tool calls: ok")
