#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends streams of requests to a router while a fault is planted, and reports what the clients saw.

First it asks each prompt once, in calm. Then it prints `calm` and keeps N streams running. After SIGTERM it waits for the
running streams and prints the report. Answers are greedy and prompts whole, so each answer must equal the calm one.

Exit codes: 0 reported, 1 the calm answers failed, 2 wrong usage."""
import argparse
import http.client
import json
import signal
import ssl
import sys
import threading
import time
import urllib.parse

N_PROMPTS = 8
TIMEOUT_S = 300      # of a socket without data: such a stream is lost
REFUSED_PAUSE_S = 0.2


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="HTTP address of the router")
    parser.add_argument("--streams", type=int, default=8, help="streams at the same time")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each answer")
    parser.add_argument("--api-key-file", help="file with an API key")
    parser.add_argument("--tls-ca", help="certificate of the router's authority")
    parser.add_argument("--json", help="file that gets the report as JSON")
    arguments = parser.parse_args()
    url = urllib.parse.urlsplit(arguments.url)
    try:
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError:
        port = 0
    if url.scheme not in ("http", "https") or not url.hostname or not port:
        parser.error("--url '%s': must be http://HOST:PORT or https://HOST:PORT" % arguments.url)
    if arguments.streams < 1 or arguments.tokens < 1:
        parser.error("--streams and --tokens: must be at least 1")
    arguments.address = (url.scheme, url.hostname, port)
    try:
        arguments.key = open(arguments.api_key_file, encoding="ascii").read().strip() if arguments.api_key_file else None
        arguments.tls = ssl.create_default_context(cafile=arguments.tls_ca) if url.scheme == "https" else None
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return arguments


class Lost(Exception):
    """The stream broke off."""


class Refused(Exception):
    """The router refused the request before its first token."""


def connect(arguments):
    scheme, host, port = arguments.address
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=arguments.tls)
    return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)


def events(response):
    """Yields the events of a stream until [DONE]."""
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            return
        yield json.loads(line[6:])
    raise Lost("the stream ended early")


def ask(arguments, number):
    """Sends a request. Returns the tokens, the wait for the first one, and the longest wait for another one."""
    body = {"prompt": "The badge number of visitor %d is" % number, "max_tokens": arguments.tokens, "temperature": 0,
            "ignore_eos": True, "prefill": "off", "stream": True, "return_token_ids": True}
    headers = {"content-type": "application/json"}
    if arguments.key:
        headers["authorization"] = "Bearer " + arguments.key
    connection = connect(arguments)
    tokens, begun, first, gap = [], time.monotonic(), 0.0, 0.0
    last = begun
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise Refused("%d: %s" % (response.status, response.read().decode(errors="replace")[:300]))
        for event in events(response):
            if "error" in event:
                raise Lost(str(event["error"])[:300])
            now = time.monotonic()
            for choice in event.get("choices", []):
                if not choice.get("token_ids"):
                    continue
                if tokens:
                    gap = max(gap, now - last)
                else:
                    first = now - begun
                tokens += choice["token_ids"]
                last = now
    except ConnectionRefusedError as error:
        raise Refused(str(error)) from error
    except ssl.SSLCertVerificationError as error:
        raise Refused("the router's certificate: " + error.verify_message) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Lost("%s: %s" % (type(error).__name__, error)) from error
    finally:
        connection.close()
    return tokens, first, gap


def is_repeated(tokens, expected):
    """Returns true if the answer is the expected one with a piece of it twice."""
    more = len(tokens) - len(expected)
    return more > 0 and any(tokens[:i] + tokens[i + more:] == expected for i in range(len(expected) + 1))


class Load:
    def __init__(self, arguments):
        self.arguments = arguments
        self.over = threading.Event()
        self.lock = threading.Lock() # guards the report
        self.expected = []
        self.report = {"requests": 0, "same": 0, "refused": 0, "lost": 0, "repeated": 0, "different": 0,
                       "longest_first_token_s": 0.0, "longest_gap_s": 0.0, "reasons": {}}

    def count(self, outcome, reason=None):
        self.report["requests"] += 1
        self.report[outcome] += 1
        if reason:
            self.report["reasons"][reason] = self.report["reasons"].get(reason, 0) + 1

    def run_one(self, number):
        try:
            tokens, first, gap = ask(self.arguments, number)
        except (Refused, Lost) as error:
            with self.lock:
                self.count("refused" if isinstance(error, Refused) else "lost", str(error))
            self.over.wait(REFUSED_PAUSE_S)
            return
        expected = self.expected[number]
        with self.lock:
            if tokens == expected:
                self.count("same")
            else:
                self.count("repeated" if is_repeated(tokens, expected) else "different")
            self.report["longest_first_token_s"] = max(self.report["longest_first_token_s"], first)
            self.report["longest_gap_s"] = max(self.report["longest_gap_s"], gap)

    def stream(self, number):
        while not self.over.is_set():
            self.run_one(number % N_PROMPTS)
            number += 1

    def run(self):
        self.expected = [ask(self.arguments, number)[0] for number in range(N_PROMPTS)]
        threads = [threading.Thread(target=self.stream, args=(i,)) for i in range(self.arguments.streams)]
        for thread in threads:
            thread.start()
        print("calm", flush=True)
        for thread in threads:
            thread.join()


def print_report(report):
    print("%(requests)d requests: %(same)d answered as in calm, %(refused)d refused, %(lost)d lost, %(repeated)d with repeated "
          "tokens, %(different)d different" % report)
    print("longest wait for the first token %(longest_first_token_s).1f s, longest gap in a stream %(longest_gap_s).1f s"
          % report)
    for reason, times in sorted(report["reasons"].items(), key=lambda item: -item[1])[:5]:
        print("  %d times: %s" % (times, reason))


def main():
    arguments = parse_arguments()
    load = Load(arguments)
    signal.signal(signal.SIGTERM, lambda *_: load.over.set())
    try:
        load.run()
    except (Refused, Lost) as error:
        sys.exit("load.py: no calm answer: %s" % error)
    print_report(load.report)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(load.report, file)


main()
