# SPDX-License-Identifier: Apache-2.0
"""Sends the requests of Http11Probe, which are read from its checkout, to a server and judges the answers as the suite does.
Usage: http11probe.py CHECKOUT PORT. Prints a line for each test that is not passed, and a line with the numbers."""
import concurrent.futures
import glob
import os
import select
import socket
import sys
import time

import csharp

READ_S, BODY_S, CLOSE_S = 5, 0.1, 0.05  # the tool's own times


class Headers(dict):
    ignore_case = True


def is_closed(connection):
    """True if the server has closed the connection and all its bytes are read."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def read(connection):
    """Returns the bytes up to the end of a head, and what arrives shortly after it; and the state of the connection."""
    data, end = b"", time.monotonic() + READ_S
    while b"\r\n\r\n" not in data:
        if not select.select([connection], [], [], max(0, end - time.monotonic()))[0]:
            return data, "TimedOut"
        try:
            part = connection.recv(65536)
        except OSError:
            return data, "ClosedByServer"
        if not part:
            return data, "ClosedByServer"
        data += part
    time.sleep(BODY_S)
    while select.select([connection], [], [], 0)[0]:
        try:
            part = connection.recv(65536)
        except OSError:
            break
        if not part:
            break
        data += part
    return data, "Open"


def parse(data):
    text = data.decode("ascii", "replace")
    line, _, rest = text.partition("\n")
    words = line.rstrip("\r").split(" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        return None
    response, headers = csharp.Object(), Headers()
    for field in rest.split("\n"):
        field = field.rstrip("\r")
        if not field:
            break
        name, colon, value = field.partition(":")
        if colon and name:
            name = name.strip()
            headers[name] = headers[name] + ", " + value.strip() if name in headers else value.strip()
    body = text.partition("\r\n\r\n")[2]
    response.StatusCode, response.ReasonPhrase, response.HttpVersion = int(words[1]), (words + [""])[2], words[0]
    response.Headers, response.Body, response.RawResponse = headers, body[:4096] or None, text[:8192]
    return response


def send(connection, parts):
    """Sends the parts; returns the state of the connection."""
    for payload, pause in parts:
        try:
            connection.sendall(bytes(payload))
        except OSError:
            return "ClosedByServer"
        if pause:
            time.sleep(pause)
            if is_closed(connection):
                return "ClosedByServer"
    return "Open"


def receive(connection):
    data, state = read(connection)
    if state == "Open":
        time.sleep(CLOSE_S)
        state = "ClosedByServer" if is_closed(connection) else "Open"
    return parse(data), state


def parts_of(step, context, results):
    if step.SendPartsFactory:
        return [(part.PayloadFactory(context), part.DelayAfter) for part in step.SendPartsFactory(context)]
    if step.DynamicPayloadFactory:
        return [(step.DynamicPayloadFactory(context, results), 0)]
    return [(step.PayloadFactory(context), 0)]


def run_steps(test, connection, context):
    results, state = [], "Open"
    for number, step in enumerate(test.Steps, 1):
        result = csharp.Object()
        result.Label, result.Executed = step.Label or "Step %d" % number, state == "Open"
        results.append(result)
        if state == "Open":
            send(connection, parts_of(step, context, results[:-1]))
            result.Response, state = receive(connection)
        result.ConnectionState = state
    return test.Validator(results), [(r.Response.StatusCode if r.Response else None, r.ConnectionState) for r in results]


def judge(expected, response, state):
    if expected.CustomValidator:
        return expected.CustomValidator(response, state)
    if expected.ExpectedConnectionState and state == expected.ExpectedConnectionState:
        return "Pass"
    if response is None:
        return "Pass" if expected.AllowConnectionClose else "Fail"
    return "Pass" if expected.ExpectedStatus and response.StatusCode in expected.ExpectedStatus else "Fail"


def run(test, port):
    context = csharp.Object()
    context.Host, context.Port, context.HostHeader = "localhost", port, "localhost:%d" % port
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if test.Steps:
            return run_steps(test, connection, context)
        send(connection, [(test.PayloadFactory(context), 0)])
        response, state = receive(connection)
        return judge(test.Expected, response, state), [(response.StatusCode if response else None, state)]


def cases(checkout):
    found = []
    for path in sorted(glob.glob(os.path.join(checkout, "src/Http11Probe/TestCases/Suites/*.cs"))):
        with open(path, encoding="utf-8-sig") as file:
            scope = csharp.Parser(file.read()).parse_class()
        for method in "GetTestCases", "GetSequenceTestCases":
            found += scope.names[method]() if method in scope.names else []
    return found


def main():
    tests, port = cases(sys.argv[1]), int(sys.argv[2])
    counts = {}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for test, (verdict, seen) in zip(tests, pool.map(lambda test: run(test, port), tests)):
            counts[verdict] = counts.get(verdict, 0) + 1
            if verdict != "Pass":
                print(verdict, test.Id, *("%s/%s" % one for one in seen), "-", test.Description)
    print("tests: %d," % len(tests), ", ".join("%s: %d" % one for one in sorted(counts.items())))


if __name__ == "__main__":
    main()
