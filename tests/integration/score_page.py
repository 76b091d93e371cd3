# SPDX-License-Identifier: Apache-2.0
"""The page of `forepack score --html`: a prompt is text, never markup, and the marked tokens are those that --json lists
as kept. Usage: score_page.py FOLDER COMMAND..., where the command is `forepack score`, except prompt and output."""
import html.parser
import json
import os
import re
import subprocess
import sys

folder, command = sys.argv[1], sys.argv[2:]
ELEMENTS = {"html", "head", "meta", "title", "style", "body", "h1", "p", "span", "i", "div"}
MARKUP = b"""</span></div><script src="http://a.example/x.js">alert('1' + "2") && go()</script> &lt; &amp;amp; <!-- ]]> <b title='"'>\n"""
PROMPTS = {
    "markup": MARKUP * 12,
    "characters of several tokens": "Zoë — 東京 🦊 naïve ".encode() * 20,
    "replacement characters": "a\ufffd<\ufffd\ufffd>& end. ".encode() * 20,
}


def check(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


class Page(html.parser.HTMLParser):
    """The spans of tokens, [first token, kept, text], and the number of borders between chunks."""

    def __init__(self, text):
        super().__init__()
        self.spans, self.edges, self.open = [], 0, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        check(tag in ELEMENTS, "an element of the prompt's text:", tag, attrs)
        attrs = dict(attrs)
        check(not {"src", "href", "style"} & attrs.keys() and not any(name.startswith("on") for name in attrs), tag, attrs)
        kinds = attrs.get("class", "").split()
        token = "tok" in kinds
        self.edges += "edge" in kinds
        if token:
            check(re.fullmatch(r"token \d+, importance \S+", attrs["title"]), attrs)
            self.spans.append([int(re.search(r"\d+", attrs["title"])[0]), "kept" in kinds, ""])
        if tag != "meta":
            self.open.append((tag, token))

    def handle_endtag(self, tag):
        check(self.open.pop()[0] == tag, "the page closes", tag)

    def handle_comment(self, data):
        check(False, "a comment of the prompt's text:", data)

    def handle_data(self, data):
        if self.open and self.open[-1][1]:
            self.spans[-1][2] += data


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def check_prompt(name, prompt, size):
    path, output = folder + "/score.txt", folder + "/score.html"
    write(path, prompt)
    run = [*command, "--prompt-file", path, "--keep-rate", "0.4", "--chunk-tokens", size]
    score = json.loads(subprocess.run([*run, "--json"], check=True, stdout=subprocess.PIPE).stdout)
    subprocess.run([*run, "--html", output], check=True)
    with open(output, encoding="utf-8") as file:  # refuses bytes that are no UTF-8
        page = Page(file.read())

    check(not page.open, name, "elements are left open:", page.open)
    shown = "".join(s[2] for s in page.spans).removeprefix("<|begin_of_text|>")
    check(shown == prompt.decode(), name, "another text:", page.spans)
    borders = 0 if size == "auto" else (len(score["token_ids"]) - 1) // int(size)
    check(page.edges == borders, name, "borders of chunks:", page.edges)
    ends = [s[0] for s in page.spans[1:]] + [len(score["token_ids"])]
    check(page.spans[0][0] == 0 and all(s[0] < end for s, end in zip(page.spans, ends)), name, "tokens are left out")
    alone = [s for s, end in zip(page.spans, ends) if len(s[2]) < 2 or end == s[0] + 1]
    check(len(alone) == len(page.spans), name, "tokens that share no character share a span:", page.spans)
    marked = {t for s, end in zip(page.spans, ends) if s[1] for t in range(s[0], end)}
    kept = {t for first, last in score["kept"] for t in range(first, last + 1)}
    check(0 < len(kept) < len(score["token_ids"]), name, "some tokens are kept", score["kept"])
    check(marked == kept, name, "tokens that only the page or only --json says are kept:", sorted(marked ^ kept))


for item in PROMPTS.items():
    check_prompt(*item, "auto")
    check_prompt(*item, "32")
write(folder + "/broken.txt", b"cut \xe6\x9d off")
refused = subprocess.run([*command, "--prompt-file", folder + "/broken.txt", "--html", folder + "/broken.html"], stderr=subprocess.PIPE)
check(refused.returncode == 2 and b"text is not UTF-8: byte 4 is wrong" in refused.stderr, refused)
check(not os.path.exists(folder + "/broken.html"), "a page of a refused prompt")
