#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the documents (all tracked *.md files):

  links      each link to a file of the repository, with its heading, leads somewhere;
  paths      each file or folder that is named in backticks exists;
  lines      no line is longer than 120 characters;
  functions  CONTRIBUTING.md follows a request function by function: each item names a file and functions that the file
             defines.

Usage: tests/docs.py. Exit codes: 0 clean, 1 findings, each on a line."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAX_COLUMNS = 120
# Rows that METRICS_RECORD=1 writes from the help texts of router/metrics/table.c.
GENERATED_ROW = re.compile(r"\| `(forepack:|process_)")
LONG_TABLES = ("docs/metrics.md",)
FOLDERS = "bench|cli|deploy|docs|engine|kernels|lib|proto|router|sim|speculator|tests|worker"
# A file or folder of the repository. A name with a placeholder in capitals, such as tests/fuzz_NAME.c, is no match.
PATH = re.compile(r"`((?:%s)/[a-z0-9_./-]*[a-z0-9_/])`" % FOLDERS)
TRACE = "A request, function by function"
TRACE_ITEM = re.compile(r"\d+\. `([^`]+)`: ")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def without_code(text):
    """Returns the text with empty lines in place of its code blocks."""
    lines, code = [], False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        code = code != fence
        lines.append("" if code or fence else line)
    return "\n".join(lines)


def anchor(heading):
    """Returns the anchor that GitHub gives a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(path):
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", without_code(read(path)), re.M)}


def link_findings(path, text):
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        name, _, heading = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if not os.path.exists(os.path.join(ROOT, target)):
            yield "%s: the link %s leads nowhere" % (path, link)
        elif heading and target.endswith(".md") and heading not in anchors(target):
            yield "%s: the link %s names no heading of %s" % (path, link, target)


def path_findings(path, text):
    for name in PATH.findall(text):
        if not any(os.path.exists(os.path.join(ROOT, folder, name)) for folder in ("", os.path.dirname(path))):
            yield "%s: there is no %s" % (path, name)


def line_findings(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        exempt = path in LONG_TABLES and GENERATED_ROW.match(line)
        if len(line) > MAX_COLUMNS and not exempt:
            yield "%s:%d: %d characters, at most %d are allowed" % (path, number, len(line), MAX_COLUMNS)


def section(text, heading):
    """Returns the text between a heading of the second level and the next one."""
    found = re.search(r"^## %s\n(.*?)(?=^## )" % re.escape(heading), text, re.M | re.S)
    return found.group(1) if found else ""


def defines(source, function):
    """Returns true if C source defines the function: type and name start a line, and a line with a brace follows."""
    return re.search(r"^\w[\w \*]*\b%s\([^;{]*\)\n\{" % function, source, re.M) is not None


def trace_findings(path):
    items = re.split(r"\n(?=\d+\. )", section(read(path), TRACE))
    n_functions = 0
    for item in items:
        found = TRACE_ITEM.match(item)
        if not found:
            continue
        name = found.group(1)
        if not os.path.exists(os.path.join(ROOT, name)):
            yield "%s: there is no %s" % (path, name)
            continue
        source = read(name)
        for function in re.findall(r"`(\w+)\(\)`", item):
            n_functions += 1
            if not defines(source, function):
                yield "%s: %s does not define %s()" % (path, name, function)
    if n_functions < 30:
        yield "%s: the section \"%s\" names %d functions only" % (path, TRACE, n_functions)


def main():
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    findings = list(trace_findings("CONTRIBUTING.md"))
    for path in listed.stdout.split():
        text = read(path)
        prose = without_code(text)
        findings += [*link_findings(path, prose), *path_findings(path, prose), *line_findings(path, text)]
    for finding in findings:
        print("docs: " + finding)
    sys.exit(1 if findings else 0)


main()
