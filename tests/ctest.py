#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs CTest for tests/run.sh, which lists the commands:

  run BUILD NAME [--changed] [CTest options]   runs tests of a build folder and writes BUILD/NAME.xml; with --changed only those
                                               that have not passed with the same programs, scripts and test data. Exit
                                               code 2: no test matches the options
  summary FILE.xml...                          prints skipped tests with their reasons, labels over their budget, and the totals"""
import collections
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Seconds of test time, all tests of a kind added, on two cores.
BUDGET_S = {"dev unit": 1500, "release unit": 700, "dev integration": 400, "release integration": 1500, "release docs": 90,
            "release kit": 900, "release instructions": 120, "fuzz fuzz": 700}


# ---- which tests have to run ----


def digest(paths):
    """Returns a hash of the contents of files, by name."""
    total = hashlib.sha256()
    for path in sorted(set(paths)):
        with open(path, "rb") as file:
            total.update(path.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return total.hexdigest()


def tracked(*folders):
    """Returns a hash of the files that git tracks in these folders, or everywhere."""
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return digest(path for path in (os.path.join(ROOT, name) for name in listed.split("\0") if name) if os.path.isfile(path))


def tests_of(build, options):
    """Returns for each test that the options select a hash of what it runs."""
    listed = json.loads(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", *options], stdout=subprocess.PIPE,
                                       check=True).stdout)
    programs = digest(path for path in glob.glob(os.path.join(build, "bin", "*forepack*")) if os.path.isfile(path))
    sources = tracked()
    data = tracked("tests/data", "deploy/demo-model")
    found = {}
    for test in listed["tests"]:
        command = test.get("command", [])
        own = digest(word for word in command if os.path.isfile(word))
        labels = next((p["value"] for p in test["properties"] if p["name"] == "LABELS"), [])
        script = os.path.basename(command[0] if command else "") in ("bash", "python3")
        used = programs + sources if script or "integration" in labels else data
        found[test["name"]] = own + hashlib.sha256((used + "\0".join(command)).encode()).hexdigest()
    return found


def run(build, name, changed, options):
    results, passed_path = os.path.join(build, name + ".xml"), os.path.join(build, "passed.json")
    passed = {}
    if os.path.exists(passed_path):
        with open(passed_path, encoding="utf-8") as file:
            passed = json.load(file)
    if os.path.exists(results):
        os.remove(results)
    tests = tests_of(build, options)
    if not tests:
        print("%s: no test matches" % build, flush=True)
        return 2
    chosen = [test for test, key in tests.items() if not changed or passed.get(test) != key]
    if len(chosen) < len(tests):
        print("%d of %d tests passed before with the same programs" % (len(tests) - len(chosen), len(tests)), flush=True)
    if not chosen:
        return 0
    only = ["-R", "^(%s)$" % "|".join(map(re.escape, chosen))] if len(chosen) < len(tests) else []
    plain = [option for i, option in enumerate(options) if not only or "-R" not in (option, options[i - 1] if i else "")]
    code = subprocess.run(["ctest", "--test-dir", build, "--output-on-failure", "--output-junit", results, *plain, *only],
                          check=False).returncode
    for case in cases(results):
        if case.get("status") == "run":
            passed[case.get("name")] = tests.get(case.get("name"))
        else:
            passed.pop(case.get("name"), None)
    with open(passed_path, "w", encoding="utf-8") as file:
        json.dump(passed, file)
    return code


# ---- results ----


def cases(path):
    return xml.etree.ElementTree.parse(path).getroot().iter("testcase") if os.path.exists(path) else ()


def kind_of(path, case):
    """Returns the build and label that a test's time counts for."""
    labels = case.findtext("properties/property[@name='cmake_labels']") or ""
    for found in case.iter("property"):
        if found.get("name") == "cmake_labels":
            labels = found.get("value", "")
    label = next((label for label in ("kit", "docs", "instructions", "integration", "fuzz", "unit") if label in labels.split(";")), "other")
    return "%s %s" % (os.path.basename(os.path.dirname(path)), label)


def reason(case):
    lines = [line.strip() for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "skip" in line), lines[-1] if lines else "no reason given")[:160]


def summary(paths):
    counts, seconds = collections.Counter(), collections.Counter()
    for path in paths:
        for case in cases(path):
            status = case.get("status")
            state = {"run": "passed", "fail": "failed", "disabled": "skipped"}.get(status)
            if not state: # CTest's "notrun": skipped by its exit code, or without a program
                skipped = case.find("skipped")
                state = "skipped" if skipped is not None and (skipped.get("message") or "").startswith("SKIP_") else "failed"
            counts[state] += 1
            seconds[kind_of(path, case)] += float(case.get("time") or 0)
            if state == "skipped":
                print("skipped: %s: %s" % (case.get("name"), reason(case)))
    for kind, took in sorted(seconds.items()):
        if took > BUDGET_S.get(kind, took):
            print("over budget: %s tests took %d s, at most %d s are planned" % (kind, took, BUDGET_S[kind]))
    print("%d passed, %d failed, %d skipped" % (counts["passed"], counts["failed"], counts["skipped"]))
    return 1 if counts["failed"] else 0


def main():
    command, *rest = sys.argv[1:]
    if command == "summary":
        sys.exit(summary(rest))
    build, name, *options = rest
    changed = "--changed" in options
    sys.exit(run(os.path.abspath(build), name, changed, [option for option in options if option != "--changed"]))


main()
