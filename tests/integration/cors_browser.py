# SPDX-License-Identifier: Apache-2.0
"""Pages of other origins in Chromium. Usage: cors_browser.py API ALLOWED_PAGE OTHER_PAGE."""
import sys
import urllib.request

from browser import Browser

API, ALLOWED, OTHER = sys.argv[1:4]

ASK = """(async () => {
  const answer = await fetch("%s%s", {method: "POST", headers: {"content-type": "application/json", "authorization": "Bearer none"},
    body: JSON.stringify({prompt: "Count to ten", max_tokens: 4, ignore_eos: true, stream: %s})});
  return [answer.status, answer.headers.get("x-request-id"), await answer.text()];
})().catch((error) => [0, null, String(error)])"""
BLIND = """fetch("%s/v1/completions", {method: "POST", mode: "no-cors", body: '{"prompt": "a", "max_tokens": 1}'})
  .then(() => true, () => false)"""


def generated():
    text = urllib.request.urlopen(API + "/metrics").read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("forepack:request_success_total"))


def visit(browser, page):
    browser.open(page)
    browser.wait("the page is open", "location.href === '%s' && document.readyState === 'complete'" % page)


def main():
    browser = Browser()
    try:
        visit(browser, ALLOWED)
        for stream in "false", "true":
            status, request_id, text = browser.evaluate(ASK % (API, "/v1/completions", stream))
            assert status == 200 and request_id and ("[DONE]" in text) == (stream == "true"), (status, request_id, text)
        status, request_id, text = browser.evaluate(ASK % (API, "/nowhere", "false"))
        assert status == 404 and request_id and "does not exist" in text, (status, request_id, text)

        visit(browser, OTHER)
        before = generated()
        assert before > 0
        assert browser.evaluate(ASK % (API, "/v1/completions", "false"))[0] == 0
        assert browser.evaluate(BLIND % API)
        assert generated() == before, "a page of another origin made the cluster generate"
    finally:
        browser.close()


main()
