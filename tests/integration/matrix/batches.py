# SPDX-License-Identifier: Apache-2.0
"""The two faults of the matrix that concern files: the router restarts during a batch, and the disk of its files is full."""
import http.client
import json
import os
import signal
import time

import answers
from cluster import HTTP, wait_until

TYPE = 'Content-Disposition: form-data; name="%s"'


def call(method, path, body=None, kind="application/json"):
    """Returns the status and the content of an answer."""
    connection = http.client.HTTPConnection(*HTTP, timeout=600)
    try:
        connection.request(method, path, body, {"Content-Type": kind})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def upload(content):
    parts = [(TYPE % "purpose", b"batch"), (TYPE % "file" + '; filename="in.jsonl"', content)]
    body = b"".join(b"--b\r\n%s\r\n\r\n%s\r\n" % (head.encode(), data) for head, data in parts) + b"--b--\r\n"
    return call("POST", "/v1/files", body, "multipart/form-data; boundary=b")


def must(method, path, body=None):
    status, data = call(method, path, body and json.dumps(body).encode())
    assert status == 200, (status, data)
    return json.loads(data)


class Batches:
    """Sends the requests as batches, one for each path. `results` has the form of clients.py."""

    def __init__(self, requests):
        self.n, self.ids = len(requests), []
        for endpoint in sorted({path for path, _ in requests}):
            lines = [{"custom_id": str(i), "method": "POST", "url": path, "body": {k: v for k, v in body.items() if k not in (
                "stream", "stream_options")}} for i, (path, body) in enumerate(requests) if path == endpoint]
            status, data = upload("\n".join(map(json.dumps, lines)).encode())
            assert status == 200, (status, data)
            self.ids.append(must("POST", "/v1/batches", {"input_file_id": json.loads(data)["id"], "endpoint": endpoint,
                                                         "completion_window": "24h"})["id"])

    def states(self):
        return [must("GET", "/v1/batches/" + name) for name in self.ids]

    def done(self):
        return sum(batch["request_counts"]["completed"] for batch in self.states())

    def running(self):
        return any(batch["status"] not in ("completed", "failed", "expired", "cancelled") for batch in self.states())

    def wait(self):
        """Returns the answers, errors, and "twice" for requests that have two lines."""
        while self.running():
            time.sleep(0.2)
        results = {}
        for batch in self.states():
            for name in filter(None, (batch["output_file_id"], batch["error_file_id"])):
                for line in call("GET", "/v1/files/%s/content" % name)[1].splitlines():
                    row = json.loads(line)
                    fine = (row["response"] or {}).get("status_code") == 200
                    answer = answers.whole(row["response"]["body"]) if fine else ValueError(str(row))
                    results[int(row["custom_id"])] = "twice" if int(row["custom_id"]) in results else answer
        return [results.get(i, ValueError("no line")) for i in range(self.n)]


def router_restarted(cluster):
    """Kills the router while a batch runs; the nodes and the batch go on with the next router. It has answered and stored a
    part of the batch before, so that the batch ends."""
    at = cluster.crowd.done() + cluster.crowd.n // 12
    wait_until("the batch goes on", lambda: cluster.crowd.done() >= at or not cluster.crowd.running())
    cluster.signal("router", signal.SIGKILL)
    cluster.children.pop("router").wait()
    cluster.start_router()
    cluster.wait_ready("a", "b")


def disk_full(cluster):
    """Fills the file system of all logs and files; uploads are refused, and work again when there is room."""
    with open(os.path.join(cluster.folder, "filler"), "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            pass
        status, data = upload(bytes(65536))
        assert status == 507, (status, data)
    cluster.forepack("generate", "--prompt", "Hello", "--max-tokens", "2")
    os.remove(filler.name)
    status, data = upload(b"{}\n")
    assert status == 200, (status, data)
