# SPDX-License-Identifier: Apache-2.0
"""Renders the templates of a suite by `forepack render` and compares the results with the suite's texts.

Usage: templates.py SUITE CHECKOUT FOREPACK

This script takes templates, variables and texts from the suite's own tests, which it reads or runs. `forepack render`
has the environment of chat templates in transformers: trim_blocks, lstrip_blocks, no autoescaping, and a `tojson`
without HTML escapes. Jinja also renders each case in this environment. A case passes if `forepack render` gives the
text of the suite or of Jinja, or if Jinja and `forepack render` both refuse the template. Cases with features that chat
templates do not have (other delimiters, includes, own filters, variables that are not JSON) are counted and left out.
"""
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = "2026-03-04T05:06:07"

# Features that jinja.h lists as not supported.
LEFT_OUT = [
    (r"\{%[-+]?\s*(include|import|from|extends|block|trans|pluralize|autoescape|debug)\b", "templates of several files"),
    (r"\bself\.|\bself\(|\bsuper\(", "templates of several files"),
    (r"\|\s*(pprint|random|striptags|urlize|wordwrap)\b|filter (pprint|random|striptags|urlize|wordwrap)", "filters that are refused"),
]

# Failures by the end of their name, with the reason.
KNOWN = {
    "::test_elif_deep": "an `if` of over 250 branches is refused",
    "::test_int[12345678901234567890-12345678901234567890]": "integers have 64 bits",
    "::test_item_and_attribute": "a method that the filter `attr` names is not found",
    " / TOJSON_ENSURE_ASCII": "the JSON library refuses a NUL character in a key",
    " / TOJSON_ENSURE_ASCII_FALSE": "the JSON library refuses a NUL character in a key",
    "err_unexpected_caller_macro.txt": "a call block is ignored by a macro without `caller`",
    "dict.txt": "`loop` is no mapping",
    "literals.txt": "integers have 64 bits",
    "macro_basic.txt": "macros have no attributes but their name",
    "macro_caller.txt": "macros have no attributes but their name",
    "macro_caller_methods.txt": "macros have no attributes but their name",
}


def environment(now):
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: now.strftime(form)
    return env


# --- cases of the suites: name, template, variables, expected text (None: the suite has none)


def jinja_cases(checkout):
    """Runs the suite's tests and records the templates that they render."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "watch_templates.py"), "w") as file:
            file.write(WATCH % os.path.join(folder, "cases.jsonl"))
        names = ["core_tags", "filters", "imports", "inheritance", "lexnparse", "regression", "runtime", "tests", "api"]
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "watch_templates", "-p", "no:cacheprovider",
             *["tests/test_%s.py" % name for name in names]],
            cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": "%s:%s/src" % (folder, checkout), "PYTHONDONTWRITEBYTECODE": "1"})
        with open(os.path.join(folder, "cases.jsonl")) as file:
            return [json.loads(line) for line in file]


WATCH = """
import json, os
import jinja2
from jinja2 import Environment, Template
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_NAMESPACE, DEFAULT_TESTS

out = open(%r, "a")
from_string, render = Environment.from_string, Template.render
plain = Environment()


def watched_from_string(env, source, *args, **kwargs):
    template = from_string(env, source, *args, **kwargs)
    template.watched = (source, bool(args or kwargs))
    return template


def reason(env, more):
    for name in ("block_start_string", "variable_start_string", "comment_start_string", "line_statement_prefix",
                 "line_comment_prefix"):
        if getattr(env, name) != getattr(plain, name):
            return "other delimiters"
    if env.loader or more:
        return "templates of several files"
    if env.is_async or env.finalize or env.autoescape or env.undefined is not jinja2.Undefined or type(env) is not Environment:
        return "another environment"
    if set(env.filters) - set(DEFAULT_FILTERS) or set(env.tests) - set(DEFAULT_TESTS) or set(env.globals) - set(DEFAULT_NAMESPACE):
        return "own filters, tests or globals"
    return None


def watched_render(template, *args, **kwargs):
    source, more = getattr(template, "watched", (None, False))
    case = {"name": os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0], "template": source}
    try:
        variables = dict(*args, **kwargs)
        case["why"] = reason(template.environment, more)
        case["variables"] = json.loads(json.dumps(variables))
        if case["variables"] != variables:
            case["why"] = case["why"] or "variables that are not JSON"
    except Exception:
        case["why"] = case.get("why") or "variables that are not JSON"
    try:
        case["text"] = render(template, *args, **kwargs)
        return case["text"]
    finally:
        if source is not None:
            out.write(json.dumps(case) + "\\n")
            out.flush()


Environment.from_string, Template.render = watched_from_string, watched_render
"""


def minijinja_cases(checkout):
    inputs, snapshots = (os.path.join(checkout, "minijinja", "tests", name) for name in ("inputs", "snapshots"))
    for name in sorted(os.listdir(inputs)):
        path = os.path.join(inputs, name)
        snapshot = os.path.join(snapshots, "test_templates__vm@%s.snap" % name)
        if not os.path.isfile(path) or not os.path.exists(snapshot):
            continue
        with open(path) as file:
            head, _, template = file.read().partition("\n---\n")
        with open(snapshot) as file:
            text = file.read().split("\n---\n", 1)[1]
        case = {"name": name, "template": template, "text": None if text.startswith("!!!") else text}
        try:
            case["variables"] = json.loads(head)
        except ValueError:
            case["why"] = "variables that are not JSON"
        if name.endswith(".html") or "$settings" in case.get("variables", {}):
            case["why"] = "another environment"
        yield case


def huggingface_cases(checkout):
    folder = os.path.join(checkout, "packages", "jinja", "test")
    for name in ("interpreter", "templates", "e2e"):
        with open(os.path.join(folder, name + ".test.js")) as file:
            source = re.sub(r"^import .*$", "", file.read(), flags=re.M)
        source = source.replace("const ast = parse(text);", "const ast = parse(TEST_STRINGS[name]);")
        run = subprocess.run(["node", "-"], input=STUBS + source, capture_output=True, text=True, timeout=120)
        for line in run.stdout.split("\n")[:-1]:
            case = json.loads(line)
            yield {**case, "name": name + ": " + case["name"]}


# Stands in for the test framework and for the library: an expected text becomes a line of the output.
STUBS = r"""
const names = [], later = [];
const describe = (name, run) => { names.push(name); run(); names.pop(); };
const it = (name, run) => { const path = [...names.slice(1), name].join(" / "); current = path; try { run(); } catch (e) {} };
it.skip = describe.skip = () => {};
let current = "", now;
const beforeEach = () => {}, afterEach = () => {}, vi = { useFakeTimers() {}, setSystemTime(t) { now = new Date(t).toISOString().slice(0, 19); }, useRealTimers() {} };
const plain = (v) => JSON.parse(JSON.stringify(v, (k, x) => { if (typeof x === "function" || x === undefined) throw 1; return x; }));
const record = (made, text) => {
    if (!made || typeof made.template !== "string") return;
    const out = { name: current, template: made.template, text, now };
    try { out.variables = plain(made.data ?? {}); } catch (e) { out.why = "variables that are not JSON"; }
    console.log(JSON.stringify(out));
};
const expect = (value) => ({ toEqual: (text) => { if (typeof text === "string") record(value, text); }, toMatchObject() {},
    toThrowError() { try { record(value(), null); } catch (e) {} }, toThrow() { try { record(value(), null); } catch (e) {} },
    toBe: (text) => { if (typeof text === "string") record(value, text); } });
class Template { constructor(t) { this.t = t; } render(data) { return { template: this.t, data }; } format() { return this.t; } }
class Environment { constructor() { this.data = {}; } set(key, value) { this.data[key] = value; } }
class Interpreter { constructor(env) { this.env = env; }
    run(template) { const made = { template, data: this.env.data }; made.value = made; return made; } }
const tokenize = (t) => t, parse = (t) => t, setupGlobals = () => {}, downloadFile = async () => { throw 1; };
"""


def minja_cases(checkout):
    with open(os.path.join(checkout, "tests", "test-syntax.cpp")) as file:
        source = file.read()
    for number, match in enumerate(re.finditer(r"\b(EXPECT_EQ|EXPECT_THAT|EXPECT_THROW)\s*\(", source)):
        arguments, _ = split(source, match.end())
        line = source.count("\n", 0, match.start()) + 1
        calls = [a for a in arguments if re.search(r"\brender\s*\(", a)]
        if not calls:
            continue
        case = {"name": "test-syntax.cpp:%d" % line}
        try:
            inner, _ = split(calls[0], re.search(r"\brender\s*\(", calls[0]).end())
            case["template"] = literal(inner[0])
            case["variables"] = json_of(inner[1])
            case["text"] = literal(arguments[0]) if match.group(1) == "EXPECT_EQ" else None
        except (ValueError, IndexError):
            case.setdefault("template", "")
            case["why"] = "variables that are not JSON"
        yield case


LITERAL = re.compile(r'R"(\w*)\((.*?)\)\1"|"((?:\\.|[^"\\])*)"|//[^\n]*|/\*.*?\*/', re.S)


def split(source, at):
    """Returns the arguments of a call and the position after the call. `at` follows the opening bracket."""
    arguments, depth, start = [], 0, at
    while True:
        match = LITERAL.match(source, at)
        if match:
            at = match.end()
            continue
        c = source[at]
        if c in ")}]" and depth == 0 or c == "," and depth == 0:
            arguments.append(source[start:at])
            start = at + 1
            if c != ",":
                return [a for a in arguments if a.strip()], at + 1
        depth += (c in "({[") - (c in ")}]")
        at += 1


def literal(text):
    pieces = [m for m in LITERAL.finditer(text) if m.group(2) is not None or m.group(3) is not None]
    if not pieces or LITERAL.sub("", text).strip():
        raise ValueError(text)
    return "".join(m.group(2) if m.group(2) is not None else
                   m.group(3).encode().decode("unicode_escape").encode("latin-1").decode() for m in pieces)


def json_of(text):
    text = text.strip()
    match = re.match(r"json::(parse|array|object)\s*\(|json\s*\(", text)
    if match:
        inner, _ = split(text, match.end())
        return json.loads(literal(inner[0])) if match.group(1) == "parse" else json_of(inner[0] if inner else
                                                                                     "[]" if match.group(1) == "array" else "{}")
    if text.startswith("{"):
        items = [json_of(item) for item in split(text, 1)[0]]
        pairs = all(isinstance(i, list) and len(i) == 2 and isinstance(i[0], str) for i in items)
        return dict(map(tuple, items)) if pairs else items
    if text.startswith(('"', "R\"")):
        return literal(text)
    return json.loads({"nullptr": "null", "json()": "{}"}.get(text, text))


# --- comparison


def forepack_text(program, case):
    with tempfile.TemporaryDirectory() as folder:
        def write(name, value):
            path = os.path.join(folder, name)
            with open(path, "w") as file:
                file.write(value)
            return path

        variables = dict(case["variables"])
        messages = variables.pop("messages", [])
        arguments = ["--template", write("t.jinja", case["template"]), "--messages", write("m", json.dumps(messages)), "--json",
                     "--now", case.get("now", NOW)]
        if variables.pop("add_generation_prompt", False):
            arguments.append("--add-generation-prompt")
        for name in ("tools", "documents"):
            if variables.get(name) is not None and isinstance(variables[name], list):
                arguments += ["--" + name, write(name, json.dumps(variables.pop(name)))]
        run = subprocess.run([program, "render", *arguments, "--variables", write("v", json.dumps(variables))],
                             capture_output=True, text=True, timeout=60)
        if run.returncode == 0:
            return json.loads(run.stdout)["prompt"], None
        return None, run.stderr.strip()


def jinja_text(case):
    try:
        variables = {"messages": [], "add_generation_prompt": False, "tools": None, "documents": None, **case["variables"]}
        now = datetime.datetime.fromisoformat(case.get("now", NOW))
        text = environment(now).from_string(case["template"]).render(**variables)
    except Exception:
        return None
    return re.sub(r"<generator object \w+ at 0x[0-9a-f]+>", "<generator object>", text)


def judge(program, case):
    text, error = forepack_text(program, case)
    reference = jinja_text(case)
    expected = case.get("text")  # None: the suite expects an error
    if (text is None) == (expected is None) and (text or "").rstrip() == (expected or "").rstrip():
        return "suite", None
    if text == reference:
        return "environment", None
    return "failed", "%s\n    template %r\n    suite    %r\n    Jinja    %r\n    forepack %r %s" % (
        case["name"], case["template"][:300], case.get("text"), reference, text, error or "")


def main():
    suite, checkout, program = sys.argv[1:4]
    cases = {"jinja": jinja_cases, "minijinja": minijinja_cases, "huggingface.js": huggingface_cases,
             "minja": minja_cases}[suite](checkout)
    left_out, chosen, seen = {}, [], set()
    for case in cases:
        why = case.get("why") or next((w for pattern, w in LEFT_OUT if re.search(pattern, case["template"])), None)
        key = json.dumps([case["template"], case.get("variables"), why], sort_keys=True)
        if key in seen:
            continue
        seen.add(key)
        if why:
            left_out[why] = left_out.get(why, 0) + 1
        else:
            chosen.append(case)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda case: judge(program, case), chosen))
    unknown = 0
    for result, text in results:
        if text:
            known = next((why for name, why in KNOWN.items() if text.split("\n")[0].endswith(name)), None)
            unknown += not known
            print("FAILED", text, "\n    reason  ", known or "not known")
    count = lambda wanted: sum(result == wanted for result, _ in results)
    print("%s: %d cases: %d with the suite's text, %d with Jinja's text in the environment of chat templates, %d failed" % (
        suite, len(results), count("suite"), count("environment"), count("failed")))
    for why, n in sorted(left_out.items()):
        print("left out: %d: %s" % (n, why))
    sys.exit(unknown > 0 or not results)


if __name__ == "__main__":
    main()
