# SPDX-License-Identifier: Apache-2.0
"""Clients of proxies.sh: `requests PORT ROUTER_PORT`, `stream PORT`, `limits PORT SOURCE OTHER_SOURCE` and
`grpc_limits PORT`."""
import gzip
import http.client
import json
import sys
import urllib.request

import grpc

LONG = json.dumps({"prompt": "The lighthouse keeper. " * 220000, "max_tokens": 1}).encode()  # 5 MB


def connect(port, source="127.0.0.1"):
    return http.client.HTTPConnection("127.0.0.1", int(port), timeout=300, source_address=(source, 0))


def ask(connection, body, headers=None, path="/v1/completions"):
    connection.request("POST" if body else "GET", path, body, headers or {})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def accepted(router_port):
    text = urllib.request.urlopen("http://127.0.0.1:%s/metrics" % router_port).read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines()
               if line.startswith("forepack:http_connections_accepted_total"))


def requests(port, router_port):
    assert len(LONG) > 5e6
    expected = ask(connect(router_port), LONG)
    assert expected[0] == 400 and b"context_length_exceeded" in expected[2], expected
    connection = connect(port)
    for body, headers in (LONG, {}), (gzip.compress(LONG), {"Content-Encoding": "gzip"}):
        answer = ask(connection, body, headers)
        assert (answer[0], answer[2]) == (expected[0], expected[2]), answer

    small = json.dumps({"prompt": "Count to ten", "max_tokens": 4}).encode()
    before = accepted(router_port)
    for _ in range(20):
        status, headers, body = ask(connection, small)
        assert status == 200 and headers.get("x-request-id"), (status, body)
    new = accepted(router_port) - before
    assert new <= 5, "20 requests took %d connections" % new

    status, headers, _ = ask(connection, small, {"Host": "llm.example.org", "Origin": "http://chat.example.org"})
    assert status == 200 and headers["Access-Control-Allow-Origin"] == "http://chat.example.org", headers
    assert ask(connect(port), small, {"Host": "evil.example.org"})[0] == 421
    assert ask(connect(port), small, {"Origin": "http://evil.example.org"})[0] == 403
    connection.request("OPTIONS", "/v1/completions", headers={
        "Origin": "http://chat.example.org", "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization"})
    answer = connection.getresponse()
    assert answer.status == 204 and answer.headers["Access-Control-Allow-Headers"] == "authorization", answer.headers


def send_stream(port, source="127.0.0.1", headers=None):
    connection = connect(port, source)
    body = json.dumps({"prompt": "Count to ten", "max_tokens": 4, "stream": True, "ignore_eos": True})
    connection.request("POST", "/v1/completions", body, headers or {})
    return connection


def stream(port):
    answer = send_stream(port).getresponse()
    assert answer.status == 200, answer.status
    comments, events = 0, []
    for line in answer:
        comments += line.startswith(b":")
        if line.startswith(b":") and comments == 2:
            assert not events
            print("waited for two comments", flush=True)
        if line.startswith(b"data:"):
            events.append(line)
    assert comments >= 2 and events[-1] == b"data: [DONE]\n", (comments, events)


def limits(port, source, other):
    """Eight streams of one address wait; a ninth is refused whatever it claims, and another address is not."""
    held = [send_stream(port, source) for _ in range(8)]
    answers = [connection.getresponse() for connection in held]
    assert [answer.status for answer in answers] == [200] * 8
    for headers in {}, {"X-Forwarded-For": "192.0.2.1"}, {"Forwarded": "for=192.0.2.1"}:
        answer = send_stream(port, source, headers).getresponse()
        assert answer.status == 429, answer.status
    answer = send_stream(port, other).getresponse()
    assert answer.status == 200, answer.status
    print("waited for an answer of another address", flush=True)
    for answer in answers:
        assert answer.read().endswith(b"data: [DONE]\n\n")


def grpc_limits(port):
    """Eight calls for one address are open; a ninth is refused, and another address is not. The proxy appends its peer's
    address, 127.0.0.1, which is trusted, so the address that the client claims counts."""
    channel = grpc.insecure_channel("127.0.0.1:" + port, options=[("grpc.enable_http_proxy", 0)])

    def watch(address, **more):
        call = channel.unary_stream("/grpc.health.v1.Health/Watch")(
            b"", metadata=[(name.replace("_", "-"), value) for name, value in {"x_forwarded_for": address, **more}.items()],
            timeout=300)
        next(call)
        return call

    held = [watch("192.0.2.7") for _ in range(8)]
    for more in {}, {"forwarded": "for=192.0.2.1"}:
        try:
            watch("192.0.2.1, 192.0.2.7", **more)
            raise AssertionError("not refused")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "maximum of calls" in error.details(), error
    watch("192.0.2.8").cancel()
    for call in held:
        call.cancel()


globals()[sys.argv[1]](*sys.argv[2:])
