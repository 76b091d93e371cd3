# SPDX-License-Identifier: Apache-2.0
"""One form of an answer, whether it came whole, as a stream or as a line of a batch: everything that a client can read,
without the names and times that differ between two runs."""
import json

WORDS = {"role", "id", "type", "name", "finish_reason", "object"}  # strings that are not sent in pieces


def add(total, part):
    """Adds the next piece of a stream: texts and lists become longer, other values are replaced."""
    for key, value in part.items():
        if value is None:
            continue
        old = total.get(key)
        if key == "tool_calls":
            calls = total.setdefault(key, [])
            for call in value:
                while len(calls) <= call["index"]:
                    calls.append({})
                add(calls[call["index"]], call)
        elif isinstance(value, dict) and old:
            add(old, value)
        elif isinstance(value, list) or isinstance(value, str) and key not in WORDS:
            total[key] = (old or type(value)()) + value
        else:
            total[key] = value


def plain(value):
    """Returns the value without ids and without empty members."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    kept = {k: plain(v) for k, v in value.items() if k not in ("id", "index", "role", "type")}
    return {k: v for k, v in kept.items() if v not in (None, "", [], {})}


def canonical(choices, usage):
    """Returns (bytes that must not differ, usage). `choices` are in the order of their index."""
    for choice in choices:
        if "delta" in choice:
            choice["message"] = choice.pop("delta")
    counts = {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}
    return json.dumps([plain(choices), counts], sort_keys=True), usage


def whole(answer):
    return canonical(sorted(answer["choices"], key=lambda choice: choice["index"]), answer["usage"])


def streamed(events):
    """Returns the answer of a complete stream. Raises ValueError for one that ends early or with an error."""
    choices, usage = {}, None
    for event in events:
        if "error" in event:
            raise ValueError("the stream has an error: %s" % event["error"])
        usage = event.get("usage") or usage
        for part in event["choices"]:
            add(choices.setdefault(part["index"], {}), part)
    if usage is None or not choices or any("finish_reason" not in choice for choice in choices.values()):
        raise ValueError("the stream ended early, with %d choices" % len(choices))
    return canonical([choices[index] for index in sorted(choices)], usage)
