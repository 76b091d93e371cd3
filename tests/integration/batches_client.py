# SPDX-License-Identifier: Apache-2.0
"""Files and batches over HTTP, for batches.sh: batches_client.py URL STEP [ARGUMENT]... The API keys are the files acme.key and
globex.key of the current folder, where files for later steps are kept, too."""
import json
import sys
import time
import urllib.error
import urllib.request

URL = sys.argv[1]
WAIT_S = 300


def key(tenant):
    with open(tenant + ".key", encoding="utf-8") as file:
        return file.read().strip()


def call(method, path, body=None, tenant="acme", content_type="application/json"):
    """Returns the status and the body, as JSON if it is JSON."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(URL + path, data=data, method=method, headers={
        "Content-Type": content_type, "Authorization": "Bearer " + key(tenant)})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode()


def must(method, path, body=None, **more):
    status, answer = call(method, path, body, **more)
    assert status == 200, (method, path, status, answer)
    return answer


def refused(expected, words, method, path, body=None, **more):
    status, answer = call(method, path, body, **more)
    assert status == expected and words in answer["error"]["message"], (method, path, status, answer)


def form(content, name="in.jsonl", **fields):
    """Returns the body and type of an upload."""
    parts = ['--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % field for field in fields.items()]
    head = '--b\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n' % name
    return ("".join(parts) + head).encode() + content + b"\r\n--b--\r\n", "multipart/form-data; boundary=b"


def upload(content, tenant="acme", **more):
    body, content_type = form(content, purpose="batch", **more)
    return must("POST", "/v1/files", body, tenant=tenant, content_type=content_type)


def lines(bodies, url):
    return b"".join(json.dumps({"custom_id": "row %d" % i, "method": "POST", "url": url, "body": body}).encode() + b"\n"
                    for i, body in enumerate(bodies))


def create(bodies, url="/v1/completions", **more):
    batch = {"input_file_id": upload(lines(bodies, url))["id"], "endpoint": url, "completion_window": "24h", **more}
    return must("POST", "/v1/batches", batch)["id"]


def wait(batch_id, condition):
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        batch = must("GET", "/v1/batches/" + batch_id)
        if condition(batch):
            return batch
        time.sleep(0.02)
    raise AssertionError("waited too long: %s" % batch)


def final(batch):
    return batch["status"] in ("completed", "failed", "expired", "cancelled")


def rows(file_id):
    """Returns the lines of a file by their custom_id, which is unique."""
    if not file_id:
        return {}
    content = must("GET", "/v1/files/%s/content" % file_id)
    content = content if isinstance(content, str) else json.dumps(content)
    objects = [json.loads(line) for line in content.splitlines()]
    by_id = {row["custom_id"]: row for row in objects}
    assert len(by_id) == len(objects), "a custom_id comes twice"
    return by_id


def results(batch, n):
    """Returns answers and errors, which together have each of the n rows once."""
    answers, errors = rows(batch["output_file_id"]), rows(batch["error_file_id"])
    assert not answers.keys() & errors.keys(), "a row has an answer and an error"
    assert answers.keys() | errors.keys() == {"row %d" % i for i in range(n)}, (len(answers), len(errors))
    counts = batch["request_counts"]
    assert (counts["total"], counts["completed"], counts["failed"]) == (n, len(answers), len(errors)), batch
    return answers, errors


def generation(i):
    return {"prompt": "Hello %d" % i, "max_tokens": 8, "ignore_eos": True, "seed": i, "temperature": 1}


ROWS = 150


def texts(answers):
    return {name: row["response"]["body"]["choices"][0]["text"] for name, row in answers.items()}


def without():
    for method, path in (("POST", "/v1/files"), ("GET", "/v1/files"), ("GET", "/v1/files/file-1/content"),
                         ("DELETE", "/v1/files/file-1"), ("POST", "/v1/batches"), ("GET", "/v1/batches"),
                         ("POST", "/v1/batches/batch_1/cancel")):
        refused(501, "--batch-dir", method, path, {} if method == "POST" else None)


def files():
    stored = upload(b"{}\n" * 10, name="../../../../tmp/evil.jsonl")
    assert stored["filename"] == "../../../../tmp/evil.jsonl" and stored["bytes"] == 30, stored
    assert stored["expires_at"] == stored["created_at"] + 30 * 24 * 3600, stored
    path = "/v1/files/" + stored["id"]
    assert must("GET", path) == stored
    assert [file["id"] for file in must("GET", "/v1/files?purpose=batch&limit=1&order=asc")["data"]] == [stored["id"]]
    assert must("GET", "/v1/files", tenant="globex")["data"] == []
    for method, more in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        refused(404, "there is no file", method, path + more, tenant="globex")
    refused(404, "there is no file", "POST", "/v1/batches", {"input_file_id": stored["id"], "endpoint": "/v1/completions",
                                                             "completion_window": "24h"}, tenant="globex")
    for escape in ("..%2f..%2flock", "../../lock", "file-..%2flock/content", "x" * 500):
        assert call("GET", "/v1/files/" + escape)[0] == 404, escape
    assert must("DELETE", path) == {"id": stored["id"], "object": "file", "deleted": True}
    refused(404, "there is no file", "GET", path)


def bad_input():
    def wrong(words, content=b"x", content_type=None, **fields):
        body, form_type = form(content, **fields)
        refused(400, words, "POST", "/v1/files", body, content_type=content_type or form_type)
    wrong("purpose: must be", purpose="images")
    wrong("purpose: must be")
    wrong("expires_after[seconds]: must be", purpose="batch", **{"expires_after[anchor]": "created_at",
                                                                 "expires_after[seconds]": "3599"})
    wrong("expires_after[anchor]: must be", purpose="batch", **{"expires_after[seconds]": "3600"})
    wrong("multipart/form-data", content_type="text/plain", purpose="batch")
    wrong("malformed", content_type="multipart/form-data; boundary=other", purpose="batch")
    for query, words in (("limit=0", "limit: must be"), ("limit=x", "limit: must be"), ("order=up", "order: must be")):
        refused(400, words, "GET", "/v1/files?" + query)
        refused(400, words, "GET", "/v1/batches?" + query)
    refused(404, "there is no batch", "GET", "/v1/batches?after=batch_1")
    right = {"input_file_id": upload(b"{}\n")["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    for change, words in (({"input_file_id": None}, "input_file_id: required"), ({"endpoint": "/v1/score"}, "endpoint: must be"),
                          ({"completion_window": "1h"}, "completion_window: must be 24h"), ({"metadata": {"a": 1}}, "metadata: "),
                          ({"metadata": {str(i): "" for i in range(17)}}, "metadata: must have at most 16"),
                          ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after: anchor"),
                          ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "seconds 1: must be")):
        refused(400, words, "POST", "/v1/batches", {**right, **change})
    batch = wait(must("POST", "/v1/batches", right)["id"], final)
    assert batch["status"] == "failed" and batch["errors"]["data"][0]["line"] == 1, batch
    refused(409, "cannot be cancelled", "POST", "/v1/batches/%s/cancel" % batch["id"])


def begin():
    """Creates a batch and returns once some, but not all rows are answered."""
    batch_id = create([generation(i) for i in range(ROWS)], metadata={"run": "killed"})
    with open("batch", "w", encoding="utf-8") as file:
        file.write(batch_id)
    batch = wait(batch_id, lambda batch: batch["request_counts"]["completed"] >= 5)
    assert batch["request_counts"]["completed"] < ROWS, "the batch ended too soon"


def end():
    """The batch that begin() created is completed, with the answers of a batch that ran without an interruption."""
    with open("batch", encoding="utf-8") as file:
        batch_id = file.read()
    batch = wait(batch_id, final)
    assert batch["status"] == "completed" and batch["metadata"] == {"run": "killed"}, batch
    answers, _ = results(batch, ROWS)
    check_usage(batch, answers)
    calm, _ = results(wait(create([generation(i) for i in range(ROWS)]), final), ROWS)
    assert texts(answers) == texts(calm), "answers differ after the interruption"
    refused(404, "there is no batch", "GET", "/v1/batches/" + batch_id, tenant="globex")
    refused(404, "there is no batch", "POST", "/v1/batches/%s/cancel" % batch_id, tenant="globex")
    assert batch_id in [one["id"] for one in must("GET", "/v1/batches")["data"]]


def endpoints():
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    for url, bodies in (("/v1/chat/completions", [chat, {**chat, "temperature": -1}]),
                        ("/v1/responses", [{"input": "Hi", "max_output_tokens": 2}, {"input": 5}])):
        answers, errors = results(wait(create(bodies, url), final), 2)
        assert answers["row 0"]["response"]["status_code"] == 200 and answers["row 0"]["error"] is None, answers
        assert errors["row 1"]["response"]["status_code"] == 400, errors


def check_usage(batch, answers):
    usages = [row["response"]["body"]["usage"] for row in answers.values()]
    usage, prompt = batch["usage"], sum(one["prompt_tokens"] for one in usages)
    output = sum(one["completion_tokens"] for one in usages)
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (prompt, output, prompt + output), usage
    assert {batch["model"]} == {row["response"]["body"]["model"] for row in answers.values()}, batch["model"]


def expired():
    """The time of the batch that begin() created is over: what is answered stays, the rest is named."""
    with open("batch", encoding="utf-8") as file:
        batch = wait(file.read(), final)
    assert batch["status"] == "expired" and batch["expired_at"] and not batch["completed_at"], batch
    answers, errors = results(batch, ROWS)
    assert answers and {row["error"]["code"] for row in errors.values()} == {"batch_expired"}, errors
    check_usage(batch, answers)


def disk_full():
    """The disk has room for some of the answers."""
    batch = wait(create([{"prompt": "word " * 500, "max_tokens": 1, "echo": True, "n": 64}] * 40), final)
    assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "storage_full", batch
    answers = rows(batch["output_file_id"])
    assert 0 < len(answers) == batch["request_counts"]["completed"] < 40, batch
    for row in answers.values():
        assert len(row["response"]["body"]["choices"]) == 64, row["custom_id"]


def cancel():
    batch_id = create([{**generation(i), "max_tokens": 200} for i in range(ROWS)])
    wait(batch_id, lambda batch: batch["request_counts"]["completed"] >= 1)
    assert must("POST", "/v1/batches/%s/cancel" % batch_id, {})["status"] in ("cancelling", "cancelled")
    batch = wait(batch_id, final)
    assert batch["status"] == "cancelled" and batch["cancelling_at"] and batch["cancelled_at"], batch
    answers, errors = results(batch, ROWS)
    assert answers and {row["error"]["code"] for row in errors.values()} == {"batch_cancelled"}


def full():
    """The router has room for 1 MiB per tenant."""
    body, content_type = form(b"x" * ((1 << 20) + 1), purpose="batch")
    refused(507, "limit of 1 MiB", "POST", "/v1/files", body, content_type=content_type)
    batch = wait(create([{"prompt": "word " * 500, "max_tokens": 1, "echo": True, "n": 64}] * 40), final)
    assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "storage_full", batch
    answers, errors = rows(batch["output_file_id"]), rows(batch["error_file_id"])
    assert answers and not errors and len(answers) == batch["request_counts"]["completed"] < 40, batch


{step.__name__: step for step in (without, files, bad_input, begin, end, expired, endpoints, cancel, full, disk_full)}[sys.argv[2]](*sys.argv[3:])
