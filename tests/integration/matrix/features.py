# SPDX-License-Identifier: Apache-2.0
"""Requests of the nine features that the fault matrix covers. A request is (path, body); request i of a feature is always
the same, and no two have the same prompt."""
import json

TOOLS = [{"type": "function", "function": {
    "name": name, "parameters": {"type": "object", "properties": {field: kind}, "required": [field], "additionalProperties": False}}}
    for name, field, kind in (("weather", "city", {"enum": ["Oslo", "Bergen", "Tromso", "Bodo"]}),
                              ("days", "n", {"type": "integer", "minimum": 1, "maximum": 9}))]
SCHEMA = {"type": "object", "required": ["name", "age"], "additionalProperties": False, "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}}}


def completion(prompt, seed, **fields):
    return "/v1/completions", {"prompt": prompt, "seed": seed, "max_tokens": 40, "ignore_eos": True, "return_token_ids": True,
                               "temperature": 0.8, "prefill": "off", "drafts": "off", **fields}


def chat(messages, seed, **fields):
    return "/v1/chat/completions", {"messages": messages, "seed": seed, "max_tokens": 80, "return_token_ids": True,
                                    "temperature": 0.8, "prefill": "off", "drafts": "off", **fields}


def user(text):
    return [{"role": "user", "content": text}]


class Features:
    """Makes requests from the documents of a file of prompts."""

    def __init__(self, prompts):
        self.prompts = prompts

    def document(self, i):
        return "Document %d. %s" % (i, self.prompts[i % len(self.prompts)])

    def conversation(self, i):
        """Two answered turns about a document, and a third question."""
        turns = []
        for t in range(3):
            text, question = self.prompts[(i + t) % len(self.prompts)].rsplit("Question: ", 1)
            turns += user("Talk %d. %s Question: %s" % (i, text[:1200], question)) + [{"role": "assistant", "content": str(1000 + i + t)}]
        return chat(turns[:-1], i, prefill="on", keep_rate=0.4, max_tokens=24, ignore_eos=True)

    def request(self, feature, i):
        named = {
            "n > 1": lambda: completion("Choices %d: the keeper of the" % i, i, n=3),
            "tools": lambda: chat(user("Call %d: how warm is it?" % i), i, tools=TOOLS, tool_choice="required", parallel_tool_calls=False),
            "schema": lambda: chat(user("Form %d: who is it?" % i), i, response_format={
                "type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}),
            "log-probabilities": lambda: completion("Likely %d: the house is" % i, i, logprobs=5),
            "penalties": lambda: completion("Penalty %d: one two one two" % i, i, repetition_penalty=1.3, presence_penalty=0.5,
                                            frequency_penalty=0.5, logit_bias={"72": 3, "344": -100}),
            "drafts": lambda: completion("Draft %d: red blue green red blue green red blue" % i, i, drafts="auto",
                                         temperature=0.2, max_tokens=80),
            "pruned": lambda: completion(self.document(i), i, prefill="on", keep_rate=0.3, drafts="auto"),
            "conversation": lambda: self.conversation(i),
            "prompt log-probabilities": lambda: completion("Rated %d. %s" % (i, self.prompts[i % len(self.prompts)][:600]), i,
                                                           prompt_logprobs=2, max_tokens=16),
        }
        return named[feature]()


FEATURES = ("n > 1", "tools", "schema", "log-probabilities", "penalties", "drafts", "pruned", "conversation",
            "prompt log-probabilities")
STREAMED = set(FEATURES) - {"prompt log-probabilities"}  # these are refused with `stream`
PRUNING = {"pruned", "conversation"}


def load(prompts_file, per_feature):
    """Returns requests of all features in turn, so that all run at the same time."""
    with open(prompts_file, encoding="utf-8") as file:
        made = Features([json.loads(line)["prompt"] for line in file])
    requests = []
    for i in range(per_feature):
        for feature in FEATURES:
            path, body = made.request(feature, i)
            stream = {"stream": True, "stream_options": {"include_usage": True}} if feature in STREAMED else {}
            requests.append((path, {**body, **stream}))
    return requests
