#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the failures of a pytest run with the known ones.

Usage: sdk_report.py TESTS.xml FAILURES
FAILURES has lines of the form `PATTERN: REASON`. The pattern is a regular expression that is searched in
`FILE::CLASS::TEST MESSAGE`. The first line that matches explains a failure. Ends with 1 if a failure is not explained,
or if a line explains none.
"""
import collections
import re
import sys
import xml.etree.ElementTree


def read_known(path):
    known = []
    for line in open(path, encoding="utf-8"):
        if line.strip() and not line.startswith("#"):
            pattern, reason = line.rstrip("\n").split(": ", 1)
            known.append((pattern, reason))
    return known


def main():
    known = read_known(sys.argv[2])
    counts, explained, unexplained = collections.Counter(), collections.Counter(), []
    for case in xml.etree.ElementTree.parse(sys.argv[1]).iter("testcase"):
        failure = case.find("failure")
        failure = case.find("error") if failure is None else failure
        outcome = "passed" if failure is None else "failed"
        counts["skipped" if case.find("skipped") is not None else outcome] += 1
        if failure is None:
            continue
        text = f"{case.get('classname')}::{case.get('name')} {failure.get('message')}"
        reason = next((known_line for known_line in known if re.search(known_line[0], text)), None)
        if reason:
            explained[reason] += 1
        else:
            unexplained.append(text)
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    for line, number in explained.most_common():
        print(f"  {number} failed: {line[1]}")
    for text in unexplained:
        print(f"  not explained: {text[:600]}")
    unused = [line for line in known if line not in explained]
    for pattern, _ in unused:
        print(f"  explains no failure: {pattern}")
    sys.exit(bool(unexplained or unused))


main()
