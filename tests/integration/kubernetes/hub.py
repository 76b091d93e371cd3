# SPDX-License-Identifier: Apache-2.0
"""A hub of one model for the test of fill_models.sh. It wants the token "secret-token", and lies about the content of
config.json once the file PORT_FILE.lie is there.

Usage: hub.py FOLDER REPOSITORY COMMIT PORT_FILE"""
import hashlib
import http.server
import json
import os
import sys

folder, repository, commit, port_file = sys.argv[1:]
LARGE = 1 << 20


def read(name):
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def entry(name):
    data = read(name)
    git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    found = {"type": "file", "path": name, "size": len(data), "oid": git}
    if len(data) > LARGE:
        found["oid"] = hashlib.sha1(b"pointer").hexdigest()
        found["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
    return found


class Hub(http.server.BaseHTTPRequestHandler):
    def answer(self, status, data=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.headers.get("Authorization") != "Bearer secret-token":
            return self.answer(401)
        path = self.path.split("?")[0]
        if path == "/api/models/%s/tree/%s" % (repository, commit):
            files = [entry(name) for name in sorted(os.listdir(folder))]
            files += [{"type": "file", "path": "../escape.json", "size": 1, "oid": "0" * 40}, {"type": "directory", "path": "x"}]
            return self.answer(200, json.dumps(files).encode())
        prefix = "/%s/resolve/%s/" % (repository, commit)
        if not path.startswith(prefix):
            return self.answer(404)
        data = read(path[len(prefix):])
        if path.endswith("config.json") and os.path.exists(port_file + ".lie"):
            data = data.replace(b"384", b"385")
        start = self.headers.get("Range", "").removeprefix("bytes=").removesuffix("-")
        if not start:
            return self.answer(200, data)
        print("range=%s" % start, flush=True)
        if int(start) >= len(data):
            return self.answer(416)
        self.send_response(206)
        self.send_header("Content-Range", "bytes %s-%d/%d" % (start, len(data) - 1, len(data)))
        self.send_header("Content-Length", str(len(data) - int(start)))
        self.end_headers()
        self.wfile.write(data[int(start):])


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
with open(port_file + ".new", "w", encoding="utf-8") as file:
    file.write("%d\n" % server.server_port)
os.rename(port_file + ".new", port_file)
server.serve_forever()
