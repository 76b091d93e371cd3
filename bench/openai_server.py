# SPDX-License-Identifier: Apache-2.0
"""A client of any OpenAI-compatible server, for bench/ruler.py and bench/longbench.py: options, requests and rows of results."""
import argparse
import concurrent.futures
import json
import ssl
import statistics
import sys
import time
import urllib.error
import urllib.request

RETRIES, RETRY_SECONDS = 5, 2
BUSY = (429, 503)


class Refused(Exception):
    """The server, or the input, cannot be used; the text says why."""


def rates(text):
    values = [float(part) for part in text.split(",")]
    if not all(0 < value <= 1 for value in values):
        raise ValueError
    return values


def parser(description):
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--server-url", required=True, metavar="URL", help="base of the API, such as http://127.0.0.1:8000/v1")
    p.add_argument("--model", default="main", help="name of the model in requests (default main)")
    p.add_argument("--api-key-file", metavar="FILE", help="file with the API key")
    p.add_argument("--tls-ca", metavar="FILE", help="https: certificates to trust, in place of the system's")
    p.add_argument("--endpoint", choices=("chat", "completions"), default="chat",
                   help="chat (default) uses the model's template, completions the bare prompt")
    p.add_argument("--keep-rates", type=rates, default=[], metavar="R,R",
                   help="Forepack servers: also measure these keep rates")
    p.add_argument("--qualities", type=rates, default=[], metavar="Q,Q",
                   help="Forepack servers: also measure these qualities")
    p.add_argument("--concurrency", type=int, default=4, help="requests at a time (default 4); 1 gives a TTFT without waiting")
    p.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds without a byte after which a request fails")
    p.add_argument("--json", action="store_true", help="print a JSON list")
    return p


class Server:
    def __init__(self, options):
        self.base, self.model, self.timeout = options.server_url.rstrip("/"), options.model, options.timeout
        if not self.base.startswith(("http://", "https://")):
            raise Refused("--server-url %s: must begin with http:// or https://" % options.server_url)
        self.chat = options.endpoint == "chat"
        self.headers = {"content-type": "application/json"}
        try:
            if options.api_key_file:
                with open(options.api_key_file, encoding="ascii") as file:
                    self.headers["authorization"] = "Bearer " + file.read().strip()
            self.tls = ssl.create_default_context(cafile=options.tls_ca) if self.base.startswith("https") else None
        except (OSError, ValueError) as error:
            raise Refused("%s: %s" % (options.api_key_file or options.tls_ca, error)) from error

    def ask(self, document, fields):
        """Returns (text, usage, seconds to the first token). A chat leaves out answer_prefix, the beginning of the answer. A
        document with `bare` is no chat."""
        chat = self.chat and not document.get("bare")
        body = {"model": self.model, "max_tokens": document["max_tokens"], "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}} | fields
        if chat:
            body["messages"] = [{"role": "user", "content": document["prompt"].rstrip()}]
        else:
            body["prompt"] = document["prompt"] + document["answer_prefix"]
        path = "/chat/completions" if chat else "/completions"
        request = urllib.request.Request(self.base + path, json.dumps(body).encode(), self.headers)
        for attempt in range(RETRIES + 1):
            try:
                return self.read(request)
            except urllib.error.HTTPError as error:
                text = error.read(2000).decode(errors="replace")
                if error.code not in BUSY or attempt == RETRIES:
                    raise Refused("%s answered %d: %s" % (request.full_url, error.code, text)) from error
                time.sleep(RETRY_SECONDS * (attempt + 1))
            except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
                raise Refused("%s: %s" % (request.full_url, error)) from error

    def read(self, request):
        text, usage, first, start = "", {}, None, time.perf_counter()
        with urllib.request.urlopen(request, timeout=self.timeout, context=self.tls) as response:
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise Refused("%s: %s" % (request.full_url, event["error"]))
                usage = event.get("usage") or usage
                for choice in event.get("choices", []):
                    piece = choice["delta"].get("content") if "delta" in choice else choice.get("text")
                    if piece and first is None:
                        first = time.perf_counter() - start
                    text += piece or ""
        return text, usage, first if first is not None else time.perf_counter() - start


def ways(options):
    """Returns (policy, keep rate or quality, fields of the request) of each measured way."""
    pruned = [("importance", rate, {"prefill": "on", "keep_rate": rate}) for rate in options.keep_rates]
    pruned += [("quality", quality, {"prefill": "on", "quality": quality}) for quality in options.qualities]
    return [("everything", 1, {"prefill": "off"} if pruned else {})] + pruned


def measure(server, options, task, documents, score):
    """Asks all documents in all ways. A document is a dict with prompt, answer_prefix and max_tokens;
    score(document, text) returns 0 to 1. Returns one row for each way."""
    rows = []
    for policy, value, fields in ways(options):
        with concurrent.futures.ThreadPoolExecutor(options.concurrency) as pool:
            answers = list(pool.map(server.ask, documents, [fields] * len(documents)))
        kept = [usage["kept_tokens"] / usage["prompt_tokens"] for _, usage, _ in answers
                if usage.get("kept_tokens") and usage.get("prompt_tokens")]
        tokens = [usage["prompt_tokens"] for _, usage, _ in answers if usage.get("prompt_tokens")]
        row = {"task": task, "policy": policy, "keep_rate": value if policy != "quality" else None}
        if policy == "quality":
            row["quality"] = value
        rows.append(row | {
            "kept_ratio": round(statistics.mean(kept), 4) if kept else 1 if policy == "everything" else None,
            "score": round(statistics.mean(score(d, text) for d, (text, _, _) in zip(documents, answers)), 4),
            "documents": len(documents), "prompt_tokens": round(statistics.mean(tokens), 1) if tokens else None,
            "ttft_ms": round(1e3 * statistics.median(first for _, _, first in answers), 1)})
    return rows


def mean_row(rows, task):
    """Returns the row of several tasks, which all measured the same way."""
    kept = [row["kept_ratio"] for row in rows if row["kept_ratio"] is not None]
    return rows[0] | {
        "task": task, "score": round(statistics.mean(row["score"] for row in rows), 4),
        "documents": sum(row["documents"] for row in rows), "prompt_tokens": None,
        "kept_ratio": round(statistics.mean(kept), 4) if kept else None,
        "ttft_ms": round(statistics.mean(row["ttft_ms"] for row in rows), 1)}


def show(rows, options):
    """Prints rows as they come, or later as JSON."""
    if options.json:
        return
    for row in rows:
        kept = "   -" if row["kept_ratio"] is None else "%4.0f" % (100 * row["kept_ratio"])
        rate = "quality %g" % row["quality"] if "quality" in row else "%g" % row["keep_rate"]
        print("%-18s %7s tokens | %-10s %-12s | kept %s %% | score %5.1f | TTFT %8.1f ms | %d documents" % (
            row["task"], row.get("tokens", "-"), row["policy"], rate, kept, 100 * row["score"], row["ttft_ms"],
            row["documents"]), flush=True)


def run(main):
    """Runs main(); a failure is one sentence and exit code 1."""
    try:
        main()
    except Refused as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
