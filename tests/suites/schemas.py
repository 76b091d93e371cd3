# SPDX-License-Identifier: Apache-2.0
"""Runs the schemas of a suite through the product's matcher, and compares it with llguidance's own Python interface.

Usage: schemas.py maskbench|json_schema_test_suite FOLDER MODEL PROGRAM [URL]
FOLDER: checkout of the suite. MODEL: folder of the tokenizer. PROGRAM: schema_suite. URL: a cluster that gets every
100th schema as response_format. Exit code 1: an invalid instance is accepted, or the product fails where llguidance
does not, except for the schemas in KNOWN. docs/conformance.md has the results.
"""
import collections
import json
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

import llguidance


def maskbench(folder):
    """Yields (name, schema, [(valid, instance), ...]) of guidance-ai/jsonschemabench."""
    for file in sorted((folder / "maskbench/data").glob("*.json")):
        case = json.loads(file.read_text())
        yield file.stem, case["schema"], [(test["valid"], test["data"]) for test in case["tests"]]


def json_schema_test_suite(folder):
    """Yields the same of json-schema-org/JSON-Schema-Test-Suite."""
    for file in sorted((folder / "tests/draft2020-12").glob("*.json")):
        for group in json.loads(file.read_text()):
            name = "%s: %s" % (file.stem, group["description"])
            yield name, group["schema"], [(test["valid"], test["data"]) for test in group["tests"]]


SUITES = {"maskbench": maskbench, "json_schema_test_suite": json_schema_test_suite}

KNOWN = {
    "Github_easy---o21053",  # takes more work for a mask than llguidance may spend
}


def text(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def instance_text(value):
    return json.dumps(value, ensure_ascii=False)


def run_product(cases, model, program):
    lines = "".join(json.dumps({"schema": text(schema), "tests": [instance_text(data) for _, data in tests]}) + "\n"
                    for _, schema, tests in cases)
    done = subprocess.run([program, model], input=lines, stdout=subprocess.PIPE, check=True, text=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(cases), "%d results of %d schemas" % (len(results), len(cases))
    return results


class Peer:
    """llguidance by its own Python interface, with its own limits."""

    def __init__(self, model):
        self.tokenizer = llguidance.LLTokenizer((pathlib.Path(model) / "tokenizer.json").read_text())

    def refuses(self, schema):
        grammar = llguidance.LLMatcher.grammar_from_json_schema(text(schema))
        error = llguidance.LLMatcher.validate_grammar(grammar, self.tokenizer)
        return error if error and not error.startswith("WARN") else None

    def accepts(self, schema, data):
        matcher = llguidance.LLMatcher(self.tokenizer, llguidance.LLMatcher.grammar_from_json_schema(text(schema)))
        tokens = self.tokenizer.tokenize_str(instance_text(data))
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def refused_over_http(url, schema):
    """Sends the schema as response_format. Returns True if the answer is 400, and False if it is 200."""
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8, "temperature": 1, "seed": 1,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            json.load(answer)
            return False
    except urllib.error.HTTPError as error:
        assert error.code == 400, (error.code, error.read())
        return True


def check_tests(peer, case, schema, tests, result, counts):
    """Returns the failures of a schema that was accepted, each with True if the suite fails because of it."""
    failures = []
    for (valid, data), got in zip(tests, result["tests"]):
        if got is valid:
            counts["valid accepted" if valid else "invalid refused"] += 1
            continue
        kind = "valid refused" if got is False else "invalid accepted" if got is True else "error"
        counts[kind] += 1
        same = peer.accepts(schema, data) == (got is True)
        failures.append((got is True or not same, case, kind, "llguidance does %s" % ("the same" if same else "not")))
    for walk in result["walks"]:
        counts["errors in drawn answers"] += 1
        failures.append((True, case, "drawn answer", "%s after %r" % (walk[0].split("\n")[0], walk[-1][-40:])))
    return failures


def main():
    name, folder, model, program = sys.argv[1:5]
    url = sys.argv[5] if len(sys.argv) > 5 else None
    cases = list(SUITES[name](pathlib.Path(folder)))
    peer = Peer(model)
    counts, reasons, failures = collections.Counter(schemas=len(cases)), collections.Counter(), []
    for index, ((case, schema, tests), result) in enumerate(zip(cases, run_product(cases, model, program))):
        counts["instances"] += len(tests)
        if "refused" in result:
            reasons[result["refused"].split("\n")[0][:80]] += 1
            counts["schemas refused"] += 1
            counts["instances of refused schemas"] += len(tests)
            if not peer.refuses(schema):
                failures.append((True, case, "refused, and llguidance accepts it", result["refused"][:100]))
        else:
            failures += check_tests(peer, case, schema, tests, result, counts)
        if url and index % 100 == 0 and isinstance(schema, dict):
            counts["schemas over HTTP"] += 1
            if refused_over_http(url, schema) != ("refused" in result):
                failures.append((True, case, "HTTP", "differs from the matcher"))
    for key, count in counts.items():
        print("%7d %s" % (count, key))
    for reason, count in reasons.most_common():
        print("%7d refused: %s" % (count, reason))
    for failure in failures:
        print("%s: %s: %s" % failure[1:])
    wrong = [failure for failure in failures if failure[0] and failure[1] not in KNOWN]
    sys.exit("FAILED: %s" % wrong if wrong else 0)


main()
