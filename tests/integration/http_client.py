#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Requests to the HTTP API with Python's standard library: the shapes that OpenAI documents.

Usage: http_client.py URL FOREPACK HOST:PORT PROMPTS.jsonl
"""
import http.client
import json
import socket
import subprocess
import sys
import time
import urllib.parse

url, forepack, server, prompts_file = sys.argv[1:5]
address = urllib.parse.urlparse(url)
WAIT = 600  # seconds, an upper bound
connection = http.client.HTTPConnection(address.hostname, address.port, timeout=WAIT)  # kept alive
with open(prompts_file, encoding="utf-8") as file:
    long_prompt = json.loads(file.readline())["prompt"]
HELLO = [{"role": "user", "content": "Hello there"}]


def send(method, path, body=None, headers=None):
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, headers or {})
    response = connection.getresponse()
    return response, response.read()


def post(path, body, wanted=200, headers=None):
    response, data = send("POST", path, body, headers)
    assert response.status == wanted, (response.status, body, data)
    assert response.getheader("Content-Type") == "application/json", response.getheaders()
    return json.loads(data), response


def get(path, wanted=200):
    response, data = send("GET", path)
    assert response.status == wanted, (response.status, data)
    return json.loads(data)


def server_refuses(path, fields, wanted):
    """The HTTP server itself refuses the head; the error has the shape of the path's API."""
    with socket.create_connection((address.hostname, address.port), timeout=WAIT) as raw:
        raw.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode())
        answer = raw.makefile("rb").read()
    head, body = answer.split(b"\r\n\r\n", 1)
    error = json.loads(body)
    assert head.startswith(b"HTTP/1.1 %d " % wanted), (path, head)
    assert (error.get("type") == "error") == path.startswith("/v1/messages") and error["error"]["type"], (path, error)


# No prompt within the context needs so many bytes: the answer comes before any of them is sent.
def oversized(path):
    server_refuses(path, f"Content-Length: {60 << 20}\r\n", 413)
    server_refuses(path, "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", 400)


def refused(path, body, status, param, code, words):
    answer, response = post(path, body, status)
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["param"] == param and error["code"] == code and words in error["message"], (body, error)
    return response


def stream(path, body):
    """Returns the events of a stream, except the last one, which is [DONE]."""
    response, data = send("POST", path, dict(body, stream=True))
    assert response.status == 200, data
    assert response.getheader("Content-Type").startswith("text/event-stream"), response.getheaders()
    events = data.decode().split("\n\n")
    assert events.pop() == "" and all(e.startswith("data: ") for e in events), data
    assert events.pop() == "data: [DONE]", data
    return [json.loads(e[6:]) for e in events]


def status():
    return json.loads(subprocess.run([forepack, "status", "--server", server, "--json"], check=True,
                                     capture_output=True).stdout)


def wait_for(what, condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "waited too long until " + what
        time.sleep(0.05)


def check_information():
    models = get("/v1/models")
    assert models["object"] == "list" and [m["id"] for m in models["data"]] == ["demo", "demo-b"], models
    model = models["data"][0]
    assert model["object"] == "model" and model["max_model_len"] > 0, model
    assert get("/v1/models/" + model["id"]) == model
    assert model["type"] == "model" and model["display_name"] == "demo" and model["created_at"].endswith("Z"), model
    assert models["first_id"] == "demo" and models["last_id"] == "demo-b" and models["has_more"] is False, models
    assert get("/v1/models/demo-b")["id"] == "demo-b"
    assert get("/v1/models/other", 404)["error"]["code"] == "model_not_found"
    assert get("/health")["status"] == "alive" and get("/ready")["status"] == "ready"
    assert get("/version")["version"]
    assert get("/nowhere", 404)["error"]["message"]
    assert get("/v1/completions", 405)["error"]["message"]
    return model["id"]


def check_tokens():
    tokens, _ = post("/tokenize", {"prompt": "Hello there", "add_special_tokens": False})
    assert tokens["count"] == len(tokens["tokens"]) and tokens["token_strs"] is None, tokens
    assert post("/detokenize", {"tokens": tokens["tokens"]})[0] == {"prompt": "Hello there"}
    chat, _ = post("/tokenize", {"messages": HELLO, "return_token_strs": True})
    assert len(chat["token_strs"]) == chat["count"] > tokens["count"], chat
    special = {"tokens": [1449] + tokens["tokens"]}
    assert post("/detokenize", special)[0] == {"prompt": "Hello there"}
    kept = post("/detokenize", dict(special, skip_special_tokens=False))[0]["prompt"]
    assert kept == "<|begin_of_text|>Hello there", kept
    info = get("/tokenizer_info")
    assert info["bos_token"] == "<|begin_of_text|>" and info["eos_token"] == "<|endoftext|>", info
    assert "<|im_start|>" in info["chat_template"] and info["model_max_length"] == 4096 and info["pad_token"] is None, info
    refused("/tokenize", {}, 400, "prompt", None, "either prompt or messages")
    refused("/detokenize", {"tokens": ["a"]}, 400, "tokens", None, "a list of token ids")


def check_chat():
    body = {"messages": HELLO, "max_completion_tokens": 8, "seed": 3, "ignore_eos": True}
    answer, response = post("/v1/chat/completions", body)
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-"), answer
    assert abs(answer["created"] - time.time()) < WAIT and answer["model"], answer
    assert choice["index"] == 0 and choice["finish_reason"] == "length" and choice["logprobs"] is None, choice
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"], choice
    usage = answer["usage"]
    assert usage["completion_tokens"] == 8 and usage["total_tokens"] == usage["prompt_tokens"] + 8, usage
    assert response.getheader("x-forepack-prompt-tokens") == str(usage["prompt_tokens"]), response.getheaders()
    assert response.getheader("x-forepack-kept-tokens") == str(usage["kept_tokens"]), response.getheaders()
    assert response.getheader("x-forepack-prefill") == usage["prefill"] == "whole:off", usage
    assert response.getheader("x-request-id"), response.getheaders()

    # The stream has the same text, in events of OpenAI's order.
    events = stream("/v1/chat/completions", body)
    assert all(e["object"] == "chat.completion.chunk" and "usage" not in e for e in events), events
    assert len({e["id"] for e in events}) == 1, events
    deltas = [e["choices"][0] for e in events]
    assert deltas[0]["delta"] == {"role": "assistant", "content": ""}, deltas[0]
    assert "".join(d["delta"].get("content", "") for d in deltas) == choice["message"]["content"]
    assert deltas[-1]["delta"] == {} and deltas[-1]["finish_reason"] == "length", deltas[-1]
    assert all(d["finish_reason"] is None for d in deltas[:-1]), deltas

    events = stream("/v1/chat/completions", dict(body, stream_options={"include_usage": True}))
    assert all(e["usage"] is None for e in events[:-1]), events
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 8, events[-1]

    # Text parts, system messages and the names of roles.
    parts = [{"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
             {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "!"}]
    text = [{"role": "system", "content": "Be\nbrief"}] + parts[1:]
    ids = [post("/tokenize", {"messages": m})[0]["tokens"] for m in (parts, text)]
    assert ids[0] == ids[1], ids
    answered = post("/tokenize", {"messages": text, "add_generation_prompt": False})[0]["tokens"]
    assert ids[0][:len(answered)] == answered and len(answered) < len(ids[0]), (ids, answered)


def check_choices():
    """Choice i has the seed plus i; prompts count once in the usage."""
    body = {"prompt": ["The keeper", [1449, 72, 344]], "n": 2, "seed": 40, "max_tokens": 6, "temperature": 2,
            "ignore_eos": True, "return_token_ids": True}
    answer, _ = post("/v1/completions", body)
    choices = answer["choices"]
    assert [c["index"] for c in choices] == [0, 1, 2, 3] and answer["usage"]["completion_tokens"] == 24, answer
    singles = []
    for i, choice in enumerate(choices):
        single, _ = post("/v1/completions", dict(body, prompt=body["prompt"][i // 2], n=1, seed=40 + i % 2))
        assert single["choices"][0]["token_ids"] == choice["token_ids"], (i, single, choice)
        assert single["choices"][0]["text"] == choice["text"], (i, single, choice)
        singles.append(single["usage"]["prompt_tokens"])
    assert answer["usage"]["prompt_tokens"] == singles[0] + singles[2], (answer["usage"], singles)

    events = stream("/v1/completions", dict(body, stream_options={"include_usage": True}))
    for choice in choices:
        parts = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
        assert "".join(p["text"] for p in parts) == choice["text"], (choice, parts)
        assert sum((p.get("token_ids", []) for p in parts), []) == choice["token_ids"], (choice, parts)
        assert [p["finish_reason"] for p in parts if p["finish_reason"]] == ["length"], parts
    assert events[-1]["usage"]["total_tokens"] == answer["usage"]["total_tokens"], events[-1]


def check_logprobs():
    body = {"messages": HELLO, "max_tokens": 5, "logprobs": True, "top_logprobs": 2, "temperature": 0, "ignore_eos": True}
    choice = post("/v1/chat/completions", body)[0]["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 5, content
    for token in content:
        assert bytes(token["bytes"]).decode(errors="replace") == token["token"] and token["logprob"] <= 0, token
        assert len(token["top_logprobs"]) == 2 and token["top_logprobs"][0]["token"] == token["token"], token
    visible = [t for t in content if not t["token"].startswith("<|")]
    assert b"".join(bytes(t["bytes"]) for t in visible).decode() == choice["message"]["content"], choice
    parts = [c["logprobs"]["content"] for e in stream("/v1/chat/completions", body) for c in e["choices"] if c["logprobs"]]
    assert sum(parts, []) == content, parts

    body = {"prompt": "The keeper", "max_tokens": 5, "logprobs": 2, "temperature": 0, "ignore_eos": True}
    choice = post("/v1/completions", body)[0]["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(t for t in logprobs["tokens"] if not t.startswith("<|")) == choice["text"] and logprobs["text_offset"][0] == 0, choice
    assert [len(logprobs[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [5] * 4, choice
    assert logprobs["top_logprobs"][0][logprobs["tokens"][0]] == logprobs["token_logprobs"][0], choice
    events = [c["logprobs"] for e in stream("/v1/completions", body) for c in e["choices"] if c["logprobs"]]
    for key, values in logprobs.items():
        assert sum((e[key] for e in events), []) == values, (key, events)


def check_reduced():
    """max_tokens beyond the context is reduced to what fits, and the answer says so."""
    body = {"prompt": [1449] + [72] * 4090, "max_tokens": 10 ** 9, "ignore_eos": True}
    answer, response = post("/v1/completions", body)
    usage = answer["usage"]
    assert usage["max_tokens"] == usage["completion_tokens"] == 4096 - usage["prompt_tokens"], usage
    assert response.getheader("x-forepack-max-tokens") == str(usage["max_tokens"]), response.getheaders()
    events = stream("/v1/completions", dict(body, stream_options={"include_usage": True}))
    assert events[-1]["usage"]["max_tokens"] == usage["max_tokens"], events[-1]
    answer, response = post("/v1/completions", dict(body, max_tokens=5))
    assert "max_tokens" not in answer["usage"] and not response.getheader("x-forepack-max-tokens"), answer


def check_stop_and_echo():
    body = {"prompt": "The keeper", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    text = post("/v1/completions", body)[0]["choices"][0]["text"]
    echoed = post("/v1/completions", dict(body, echo=True))[0]["choices"][0]["text"]
    assert echoed == "The keeper" + text, (echoed, text)
    events = stream("/v1/completions", dict(body, echo=True, prompt=[1449, 72, 344], max_tokens=2))
    assert events[0]["choices"][0]["text"].startswith("Hell"), events
    stop = text[4:6]
    for stops in (stop, ["never appears", stop]):
        choice = post("/v1/completions", dict(body, stop=stops))[0]["choices"][0]
        assert choice["text"] == text[:text.index(stop)] and choice["finish_reason"] == "stop", (choice, text)


def check_grpc_gives_the_same():
    out = subprocess.run([forepack, "generate", "--server", server, "--prompt", "The keeper", "--seed", "7",
                          "--temperature", "1", "--max-tokens", "12", "--ignore-eos", "--json"], check=True,
                         capture_output=True).stdout
    body = {"prompt": "The keeper", "seed": 7, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    choice = post("/v1/completions", body)[0]["choices"][0]
    assert choice["token_ids"] == json.loads(out)["token_ids"], (choice, out)
    assert choice["text"] == json.loads(out)["text"], (choice, out)


def check_prefill():
    body = {"prompt": long_prompt, "max_tokens": 4, "prefill": "required", "keep_rate": 0.3, "return_kept": True}
    answer, response = post("/v1/completions", body)
    usage, kept = answer["usage"], answer["choices"][0]["kept"]
    assert usage["prefill"] == "speculated" == response.getheader("x-forepack-prefill"), answer
    assert sum(last - first + 1 for first, last in kept) == usage["kept_tokens"] < usage["prompt_tokens"], answer
    assert usage["scored_tokens"] > 0, usage
    events = stream("/v1/completions", dict(body, stream_options={"include_usage": True}))
    assert events[-1]["usage"]["prefill"] == "speculated", events[-1]
    whole, _ = post("/v1/completions", dict(body, prefill="off"))
    assert whole["usage"]["prefill"] == "whole:off" and whole["choices"][0]["kept"] == [[0, usage["prompt_tokens"] - 1]]
    score, _ = post("/v1/score", {"prompt": long_prompt, "keep_rate": 0.3})
    assert len(score["importance"]) == len(score["token_ids"]) == usage["prompt_tokens"], score
    assert score["kept"] and score["score_ms"] > 0, score
    refused("/v1/score", {"text_1": "a", "text_2": "b"}, 400, "text_1", "unsupported_parameter", "give the prompt")


def check_predicted_times():
    """Keep rate 0.999 saves nothing. Some prompts teach the costs; they differ because a known selection is reused."""
    for attempt in range(100):
        body = {"prompt": "%d %s" % (attempt, long_prompt), "max_tokens": 1, "keep_rate": 0.999}
        usage = post("/v1/completions", body)[0]["usage"]
        if "predicted_whole_ms" in usage:
            break
    assert usage["prefill"] == "whole:cost" and usage["kept_tokens"] == usage["prompt_tokens"], usage
    assert 0 < usage["predicted_whole_ms"] <= usage["predicted_pruned_ms"], usage
    usage = post("/v1/completions", dict(body, prefill="off"))[0]["usage"]
    assert "predicted_whole_ms" not in usage and "predicted_pruned_ms" not in usage, usage


# Whole answers of over 1 MiB are bounded together, here to 1 MiB; streams and smaller answers are not.
def check_collected():
    chat = "/v1/chat/completions"
    body = {"messages": HELLO, "n": 20, "max_tokens": 48, "logprobs": True, "top_logprobs": 20, "ignore_eos": True}
    response, _ = send("POST", chat, body)
    assert response.status == 429 and response.getheader("Retry-After"), response.status
    assert len(post(chat, {**body, "n": 2})[0]["choices"]) == 2
    # Each choice repeats the log-probabilities of the prompt, of which one copy is small.
    rated = {"prompt": [5] * 300, "max_tokens": 1, "prompt_logprobs": 20}
    assert len(post("/v1/completions", rated)[0]["choices"][0]["prompt_logprobs"]) == 300
    assert send("POST", "/v1/completions", {**rated, "n": 20})[0].status == 429
    stream, data = send("POST", chat, {**body, "stream": True})
    assert stream.status == 200 and data.endswith(b"data: [DONE]\n\n") and len(data) > 1 << 20, len(data)


def check_errors(model):
    chat, completions = "/v1/chat/completions", "/v1/completions"
    unsupported, length = "unsupported_parameter", "context_length_exceeded"
    refused(chat, b"{", 400, None, None, "the body is not valid JSON")
    refused(chat, b"[]", 400, None, None, "must be a JSON object")
    refused(chat, b'{"n":1,"n":2}', 400, None, None, "duplicate")
    refused(chat, {}, 400, "messages", None, "at least one is required")
    refused(chat, {"messages": "Hello"}, 400, "messages", None, "must be a list")
    refused(chat, {"messages": [{"role": "user"}]}, 400, "messages", None, "content must be")
    refused(chat, {"messages": [{"role": 3, "content": "x"}]}, 400, "messages", None, "role must be a string")
    refused(chat, {"messages": HELLO, "chat_template_kwargs": []}, 400, "chat_template_kwargs", None, "an object")
    refused(chat, {"messages": HELLO, "chat_template": "x"}, 400, "chat_template", unsupported, "--chat-template")
    refused(chat, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages", unsupported, "image_url")
    refused(chat, {"messages": HELLO, "tools": [{}]}, 400, "tools", None, "must be")
    refused(chat, {"messages": HELLO, "tool_choice": "required"}, 400, "tool_choice", None, "no tools")
    refused(chat, {"messages": HELLO, "top_logprobs": 2}, 400, "top_logprobs", None, "only with logprobs")
    refused(chat, {"messages": HELLO, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", None, "from 0 to 20")
    refused(chat, {"messages": HELLO, "temperature": "hot"}, 400, "temperature", None, "must be a number")
    refused(chat, {"messages": HELLO, "temperature": -1}, 400, "temperature", None, "from 0 to 2")
    refused(chat, {"messages": HELLO, "stop": ["x"] * 17}, 400, "stop", None, "at most 16")
    refused(chat, {"messages": HELLO, "model": "other"}, 404, "model", "model_not_found", "is not served here")
    refused(chat, {"messages": HELLO, "min_tokens": 10 ** 8, "max_tokens": 10 ** 9}, 400, "max_tokens", length, "over the context")
    for path in (chat, "/v1/responses", "/v1/messages", "/tokenize", "/v1/score"):
        oversized(path)
    for path, body, field in ((chat, {"messages": HELLO}, "max_tokens"), (completions, {"prompt": "x"}, "max_tokens"),
                              ("/v1/responses", {"input": "x"}, "max_output_tokens"), ("/v1/score", {"prompt": "x"}, "look_ahead")):
        refused(path, {**body, field: 3 * 10 ** 9}, 400, field, None, f"{field} 3000000000: must be")
        refused(path, {**body, field: 10 ** 30}, 400, field, None, f"{field}: the number is out of range")
    for path, field in (("/tokenize", "prompt"), ("/detokenize", "tokens"), (completions, "prompt"), ("/v1/score", "prompt")):
        refused(path, {field: [10 ** 30]}, 400, field, None, "the number is out of range")
        refused(path, {field: [3 * 10 ** 9]}, 400, field, None, "must be")
    for number, words in ((3 * 10 ** 9, "max_tokens 3000000000: must be"), (10 ** 30, "max_tokens: the number is out of range")):
        answer, _ = post("/v1/messages", {"messages": HELLO, "max_tokens": number}, 400)
        error = answer["error"]
        assert error["type"] == "invalid_request_error" and error["message"].startswith(words), answer
    refused(completions, {}, 400, "prompt", None, "at least one is required")
    assert post(completions, {"prompt": "", "max_tokens": 1})[0]["usage"]["prompt_tokens"] == 1  # the tokenizer adds BOS
    refused(completions, {"prompt": [[]]}, 400, "prompt", None, "empty")
    refused(completions, {"prompt": [1, "a"]}, 400, "prompt", None, "a list of token ids")
    refused(completions, {"prompt": [10 ** 9]}, 400, "prompt", None, "outside the vocabulary")
    refused(completions, {"prompt": "x", "n": 2, "best_of": 3}, 400, "best_of", unsupported, "not supported")
    refused(completions, {"prompt": long_prompt, "ttft_deadline_ms": 1}, 504, None, "deadline_exceeded", "ttft_deadline_ms")
    refused(completions, {"prompt": "x" * 300000}, 400, None, length, "shorten it")
    too_long = "maximum context length is 4096 tokens. However, the prompt is too long (over 16384 tokens"
    refused(completions, {"prompt": "x" * 300000, "model": model, "stream": True}, 400, None, length, too_long)
    assert post(completions, {"prompt": "x", "max_tokens": 1, "unknown": 1, "temperature": None, "store": True})


def check_request_ids():
    answer, response = post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"X-Request-Id": "mine-1"})
    assert response.getheader("x-request-id") == "mine-1", response.getheaders()
    response = refused("/v1/completions", {}, 400, "prompt", None, "")
    assert response.getheader("x-request-id").startswith("req-"), response.getheaders()


def check_disconnect():
    """A client that closes its connection cancels its requests: of a stream, of a whole answer, and all its choices."""
    for body in ({"stream": True}, {"stream": True, "n": 2}, {}):
        before = status()["totals"]
        data = json.dumps(dict(body, prompt="The keeper", max_tokens=3000, ignore_eos=True)).encode()
        sock = socket.create_connection((address.hostname, address.port))
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
        if body.get("stream"):
            received = b""
            while received.count(b"data: ") < 3:
                received += sock.recv(65536)
        else:
            wait_for("the request runs", lambda: status()["queue"]["running"] == 1)
        sock.close()
        n = body.get("n", 1)
        wait_for("the requests are cancelled", lambda: status()["totals"]["cancelled"] == before["cancelled"] + n)
        after = status()
        assert after["queue"]["running"] == 0, after
        assert after["totals"]["completion_tokens"] - before["completion_tokens"] < 3000 * n, after


model = check_information()
check_tokens()
check_chat()
check_choices()
check_logprobs()
check_reduced()
check_stop_and_echo()
check_grpc_gives_the_same()
check_prefill()
check_predicted_times()
check_errors(model)
check_collected()
check_request_ids()
check_disconnect()
print("ok")
