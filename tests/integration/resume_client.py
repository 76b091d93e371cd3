#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""resume_client.py PORT_A PORT_B: broken streams of events, resumed at another router with Last-Event-ID.

The events before the break and those after it are together the events of a whole stream."""
import http.client
import json
import sys

PORTS = [int(port) for port in sys.argv[1:3]]
CHAT = {"messages": [{"role": "user", "content": "The permit number of Nena Morik is 4892. What is it?"}]}
TEXT = {"prompt": "The permit number of Nena Morik is"}
SHARED = {"stream": True, "resumable": True, "max_tokens": 60, "ignore_eos": True, "temperature": 1}


def post(port, path, body, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
    return connection, connection.getresponse()


def events(port, path, body, headers=None, most=None):
    """The events of a stream as (id, data); after `most` events the connection is closed."""
    connection, answer = post(port, path, body, headers)
    assert answer.status == 200, (answer.status, answer.read())
    found, event_id, data = [], None, None
    for line in answer:
        line = line.decode().rstrip("\n")
        if line.startswith("data: "):
            data = line[6:]
        elif line.startswith("id: "):
            event_id = line[4:]
        elif not line and data is not None:
            found.append((event_id, data))
            event_id = data = None
            if len(found) == most:
                break
    connection.close()
    return found


def joined(found):
    """What the events say together. Draft tokens make the groups of tokens differ from run to run."""
    text, ids, lists, reasons, tokens = "", [], {}, [], 0
    for _, data in found:
        if data == "[DONE]":
            continue
        value = json.loads(data)
        tokens = (value.get("usage") or {}).get("completion_tokens", tokens)
        for choice in value["choices"]:
            text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
            ids += choice.get("token_ids", [])
            for name, items in (choice["logprobs"] or {}).items():
                lists.setdefault(name, []).extend(items or [])
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    return {"text": text, "ids": ids, "logprobs": lists, "reasons": reasons, "tokens": tokens}


def same(one, other, what):
    for name, value in one.items():
        assert value == other[name], (what, name, value, other[name])


def refused(path, body, word, status=400, headers=None):
    connection, answer = post(PORTS[1], path, body, headers)
    message = json.loads(answer.read())["error"]["message"]
    assert answer.status == status and word in message, (answer.status, message)
    connection.close()


def check(path, body, most):
    whole = events(PORTS[0], path, body, {"X-Request-Id": "resume"})
    assert whole[-1][1] == "[DONE]"
    begin = events(PORTS[0], path, body, {"X-Request-Id": "resume"}, most)
    assert joined(whole)["text"].startswith(joined(begin)["text"]), "a retry with the same id differs"
    while begin and begin[-1][0] is None:  # events after the last id come again
        begin.pop()
    last, ids = begin[-1][0], joined(begin)["ids"]
    rest = events(PORTS[1], path, body, {"Last-Event-ID": last})  # no header with the request's name: the id has the seed
    same(joined(begin + rest), joined(whole), "resumed by the header")
    by_field = events(PORTS[1], path, {**body, "last_event_id": last})
    same(joined(by_field), joined(rest), "resumed by the field")
    if "return_token_ids" in body:
        by_ids = events(PORTS[1], path, {**body, "last_event_id": last, "resume_token_ids": ids})
        same(joined(by_ids), joined(rest), "resumed by token ids")
        refused(path, {**body, "last_event_id": last, "resume_token_ids": ids[1:]}, "resume_token_ids: ")
    print(f"{path}: {len(begin)} events before the break, {len(rest)} after it")
    return last


def main():
    usage = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    for most in (2, 7, 40):
        check("/v1/completions", {**SHARED, **TEXT, "return_token_ids": True, "logprobs": 1, **usage}, most)
        check("/v1/chat/completions", {**SHARED, **CHAT, "return_token_ids": True, "logprobs": True, **usage}, most)
        check("/v1/completions", {**SHARED, **TEXT, "stop": ["zqx"], "frequency_penalty": 0.5}, most)
    last = check("/v1/completions", {**SHARED, **TEXT, "prefill": "required", "keep_rate": 0.5}, 5)
    refused("/v1/completions", {**SHARED, **TEXT, "prompt": "Another prompt", "last_event_id": last, "prefill": "off"},
            "resume: the prompt", 409)
    refused("/v1/completions", {**SHARED, **TEXT, "last_event_id": "x"}, "last_event_id: must be")
    refused("/v1/completions", {**SHARED, **TEXT, "last_event_id": last, "n": 2}, "resumable: only with one prompt")
    refused("/v1/completions", {**TEXT, "resumable": True}, "resumable: only with stream")
    refused("/v1/completions", {**SHARED, **TEXT, "resume_token_ids": [1]}, "only with last_event_id")
    refused("/v1/completions", {**SHARED, **TEXT, "last_event_id": last.replace(last.split("-")[0], "61", 1)}, "resume: 61 tokens")


main()
