# SPDX-License-Identifier: Apache-2.0
"""Clients of the HTTP API: each request has a connection of its own. A request is sent again only while the router has
answered nothing: once a stream has begun, it must end well."""
import http.client
import json
import queue
import threading
import time

import answers

WAIT_S = 600  # an upper bound


class Refused(Exception):
    """The router answered with a status that asks the client to come again."""


def events(response):
    """Yields the events of a stream; the end without [DONE] is an error."""
    for line in response:
        if line.startswith(b"data: "):
            data = line[6:].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)
    raise ValueError("the stream was cut")


def ask_once(address, path, body):
    connection = http.client.HTTPConnection(*address, timeout=WAIT_S)
    try:
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Refused("no answer: %r" % error) from error
        if response.status in (429, 503):
            raise Refused("status %d: %s" % (response.status, response.read()[:300]))
        if response.status != 200:
            raise ValueError("status %d: %s" % (response.status, response.read()[:300]))
        return answers.streamed(events(response)) if body.get("stream") else answers.whole(json.loads(response.read()))
    finally:
        connection.close()


def ask(address, path, body):
    """Returns (answer, how often it was asked again)."""
    end, again = time.monotonic() + WAIT_S, 0
    while True:
        try:
            return ask_once(address, path, body), again
        except Refused:
            if time.monotonic() > end:
                raise
            again += 1
            time.sleep(0.1)


class Crowd:
    """Clients that ask a list of requests, `width` at a time."""

    def __init__(self, address, requests, width):
        self.address, self.width = address, width
        self.waiting = queue.SimpleQueue()
        for index, request in enumerate(requests):
            self.waiting.put((index, request))
        self.results, self.again, self.n = {}, 0, len(requests)
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(width)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while True:
            try:
                index, (path, body) = self.waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self.results[index], again = ask(self.address, path, body)
                self.again += again
            except (ValueError, OSError, http.client.HTTPException, Refused) as error:
                self.results[index] = error

    def done(self):
        return len(self.results)

    def running(self):
        return any(thread.is_alive() for thread in self.threads)

    def wait(self):
        for thread in self.threads:
            thread.join()
        return [self.results[index] for index in range(self.n)]
