# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible server for the test server_tasks: it answers from the prompt, by the sentence forms of the tasks, and
refuses the first request as busy. Prints its port.

Usage: reading_server.py CERTIFICATE_AND_KEY API_KEY"""
import http.server
import json
import re
import ssl
import sys

certificate, api_key = sys.argv[1:]
busy_answers = [429]


def read_answer(prompt):
    said = re.search(r"The answer is <(.*?)>", prompt, re.S)
    if said:
        return said.group(1)
    question = re.search(r"Which hidden (?:numbers|codes) for (.*) does the text mention", prompt)
    if question:
        keys = re.split(r", | and ", question.group(1))
        return " and ".join(value for key in keys for value in re.findall(r"for %s is: (\S+)\." % re.escape(key), prompt))
    value = re.findall(r"have the value (\d+)", prompt)
    if value:
        chain = re.findall(r"VAR (\S+) = %s$" % value[-1], prompt, re.M)
        for new, old in re.findall(r"VAR (\S+) = VAR (\S+)$", prompt, re.M):
            if old in chain:
                chain.append(new)
        return ", ".join(chain)
    return "I do not know"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def refuse(self, code):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(b'{"error": "refused"}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["authorization"] != "Bearer " + api_key:
            return self.refuse(401)
        if busy_answers:
            return self.refuse(busy_answers.pop())
        chat = self.path == "/v1/chat/completions"
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        text, pruned = read_answer(prompt), body.get("prefill") == "on"
        usage = {"prompt_tokens": len(prompt) // 4}
        if "prefill" in body:
            usage["kept_tokens"] = int(usage["prompt_tokens"] * (body.get("keep_rate", 0.5) if pruned else 1))
        pieces = [text[:len(text) // 2], text[len(text) // 2:]]
        events = [{"choices": [{"delta": {"content": piece}} if chat else {"text": piece}]} for piece in pieces]
        self.send_response(200)
        self.end_headers()
        for event in events + [{"choices": [], "usage": usage}]:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")
        return None


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
