# SPDX-License-Identifier: Apache-2.0
"""The live page as a browser gets it. Usage: live_client.py URL KEY_FOLDER STATUS_COMMAND... where KEY_FOLDER has
operator.key and tenant.key, and the command prints `forepack status --json`."""
import http.client
import json
import re
import socket
import subprocess
import sys
import time
import urllib.parse

address = urllib.parse.urlsplit(sys.argv[1]).netloc
status_command = sys.argv[3:]
PAGES_MAX = 32


def check(condition, *what):
    if not condition:
        sys.exit("FAILED: " + " ".join(str(w) for w in what))


def key(name):
    with open(sys.argv[2] + "/" + name + ".key", encoding="ascii") as file:
        return {"Authorization": "Bearer " + file.read().strip()}


def ask(path, method="GET", headers=None):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


class Events:
    def __init__(self, headers):
        self.connection = http.client.HTTPConnection(address, timeout=60)
        self.connection.request("GET", "/live/events", headers=headers)
        self.answer = self.connection.getresponse()

    def next(self):
        lines = []
        while True:
            line = self.answer.readline().decode()
            if not line:
                return None
            if line == "\n":
                break
            lines.append(line.rstrip("\n"))
        check(len(lines) == 2 and lines[0].startswith("event: ") and lines[1].startswith("data: "), "event", lines)
        return lines[0][7:], json.loads(lines[1][6:])

    def close(self):
        self.answer.close()
        self.connection.close()


def page_is_closed_to_others():
    for path, kind in (("/", "text/html"), ("/live/style.css", "text/css"), ("/live/page.js", "text/javascript")):
        answer, body = ask(path)
        check(answer.status == 200 and answer.getheader("content-type").startswith(kind), path, answer.status)
        policy = answer.getheader("content-security-policy")
        for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"):
            check(part in policy, policy)
        check("unsafe" not in policy and "http" not in policy, policy)
        check(answer.getheader("x-content-type-options") == "nosniff", path)
        head, nothing = ask(path, "HEAD")
        check(head.status == 200 and not nothing and int(head.getheader("content-length")) == len(body), "HEAD", path)
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        check(not re.search(r"https?:|//[a-z]+\.|@import|innerHTML|document\.write|\beval\b", text), "reaches out", path)
    page = ask("/")[1].decode()
    check(not re.search(r"<script(?! src=\"live/page\.js\")|<style|\son[a-z]+=|\sstyle=", page), "inline script or style")
    check(ask("/", "POST")[0].status == 405, "POST /")
    check(ask("/favicon.ico")[0].status == 404, "other paths")


def events_are_for_operators():
    answer, body = ask("/live/events")
    check(answer.status == 401 and answer.getheader("www-authenticate") == "Bearer", answer.status)
    answer, body = ask("/live/events", headers=key("tenant"))
    check(answer.status == 403 and b"operator" in body, answer.status, body)
    answer, body = ask("/live/events", headers={"Authorization": "Bearer fpk_0000000000000000000000000000000000000000000"})
    check(answer.status == 401, answer.status)
    answer, body = ask("/live/events?key=" + key("operator")["Authorization"][7:])
    check(answer.status == 401, "a key in the address, which logs keep, is no key")
    answer, body = ask("/live/events", "HEAD", key("operator"))
    check(answer.status == 200 and not body, answer.status)


def numbers_are_those_of_status():
    events = Events(key("operator"))
    check(events.answer.getheader("content-type") == "text/event-stream" and events.answer.getheader("cache-control") == "no-store",
          events.answer.getheaders())
    name, history = events.next()
    check(name == "history" and history["fields"][0] == "unix_s" and history["points"], history)
    seconds = []
    for _ in range(3):
        name, snapshot = events.next()
        check(name == "snapshot", name)
        seconds.append(snapshot["uptime_s"])
    check(seconds[0] < seconds[-1], "snapshots of different seconds", seconds)
    status = json.loads(subprocess.check_output(status_command))
    for field in ("ready", "draining", "version"):
        check(snapshot[field] == status[field], field, snapshot[field], status[field])
    check(snapshot["queue"] == status["queue"], snapshot["queue"], status["queue"])
    for field, value in snapshot["totals"].items():
        check(value == status["totals"][field], field, value, status["totals"][field])
    for pool in ("score_bins", "prefill_bins"):
        for field in ("bins", "items", "tokens", "capacity_tokens"):
            check(snapshot[pool][field] == status[pool][field], pool, field)
    check(snapshot["totals"]["done"] > 0 and snapshot["prefill_bins"]["recent"], "there was work", snapshot)
    check(len(snapshot["nodes"]) == snapshot["n_nodes"] == len(status["nodes"]), "nodes")
    for node, known in zip(snapshot["nodes"], status["nodes"]):
        for field in ("node_id", "role", "state", "host", "ranks", "stages", "kv_blocks", "kv_blocks_free", "running", "tokens_in", "tokens_out"):
            check(node[field] == known[field], field, node[field], known[field])
    check("<b>&\"'" in [node["node_id"] for node in snapshot["nodes"]], "node with markup", snapshot["nodes"])
    point = history["points"][-1]
    check(len(point) == len(history["fields"]) == len(snapshot["point"]), "fields")
    events.close()


def a_revoked_key_ends_its_pages():
    events = Events(key("former"))
    check(events.next()[0] == "history", "a page before its key is revoked")
    subprocess.check_call([status_command[0], "keys", "revoke", "--file", sys.argv[2] + "/keys", "former"], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 30
    while events.next():
        check(time.monotonic() < end, "a page whose key was revoked goes on")
    events.close()


def pages_are_bounded_and_slow_ones_delay_nothing():
    host, port = address.rsplit(":", 1)
    request = "GET /live/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\n\r\n" % key("operator")["Authorization"]
    slow = []
    while len(slow) < PAGES_MAX - 1:  # pages that read nothing
        slow.append(socket.create_connection((host, int(port))))
        slow[-1].sendall(request.encode())
    events = Events(key("operator"))
    check(events.answer.status == 200, "the last page", events.answer.status)
    answer, body = ask("/live/events", headers=key("operator"))
    check(answer.status == 503 and b"live pages are open" in body and answer.getheader("retry-after"), answer.status, body)
    check([events.next()[0] for _ in range(4)] == ["history"] + 3 * ["snapshot"], "events beside slow pages")
    slow.pop().close()
    end = time.monotonic() + 60
    while True:  # the router notices that the page is gone
        more = Events(key("operator"))
        if more.answer.status == 200 or time.monotonic() > end:
            break
        more.close()
        time.sleep(0.05)
    check(more.answer.status == 200 and more.next()[0] == "history", "a page after one has closed")
    more.close()
    for page in slow:
        page.close()
    return events


page_is_closed_to_others()
events_are_for_operators()
numbers_are_those_of_status()
a_revoked_key_ends_its_pages()
last = pages_are_bounded_and_slow_ones_delay_nothing()
print("open", flush=True)
while last.next():  # until the router stops
    pass
