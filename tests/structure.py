#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the structure of the sources: which folder may use which, that no files call each other in a cycle except the files
of one unit (UNITS), and that every exported function has a caller in the product (CALLED_BY_TESTS, private_findings()).

Includes are read from all tracked sources, calls from the symbols of the object files of a build. docs/architecture.md draws
the same folders. Usage: tests/structure.py BUILD_FOLDER. Exit codes: 0 clean, 1 findings, each on a
line."""
import collections
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = ("lib/base", "lib/page", "lib/messages", "lib/identity", "lib/net", "lib/http", "lib/jinja", "lib/tracing", "lib/text",
             "lib/grammar")
ENGINE = ("engine", "engine/model", "kernels", *LIBRARIES, "proto")
ROUTER = ("router/front", "router/batch", "router/metrics", "router/core", "router/sched", *LIBRARIES, "proto")
# The folders that each folder may include and call, in addition to itself.
USES = {
    "proto": (),
    "lib/base": (),
    "lib/page": (),
    "lib/messages": ("lib/base", "proto"),
    "lib/identity": ("lib/base",),
    "lib/net": ("lib/base", "lib/messages", "proto"),
    "lib/http": ("lib/base",),
    "lib/jinja": ("lib/base",),
    "lib/tracing": ("lib/base", "lib/net", "lib/messages", "proto"),
    "lib/text": ("lib/base", "lib/jinja", "proto"),
    "lib/grammar": ("lib/base", "lib/text"),
    "kernels": ("lib/base",),
    "engine/model": ENGINE[2:],
    "engine": ENGINE[1:],
    "router/sched": ("lib/base", "lib/text"),
    "router/core": ("router/sched", "lib/base", "lib/text", "lib/tracing"),
    "router/metrics": ROUTER[3:],
    "router/batch": ("lib/base", "lib/text"),
    "router/front": ROUTER[1:],
    "router": ROUTER,
    "worker": ENGINE,
    "speculator": ENGINE,
    "cli": (*LIBRARIES, "proto"),
    "cli/engine": ("cli", "worker", "speculator", *ENGINE),
    "bench": ("cli/engine", "cli", "router", *ROUTER, "worker", "speculator", *ENGINE),
    "sim": ("bench", "router", *ROUTER, "worker", "speculator", *ENGINE),
}
# Files whose functions replace functions of a library when a program runs with them.
INTERPOSED = ("bench/heap_bytes.c", "lib/net/socket_libc.c", "sim/engine.c", "sim/clock.c", "sim/grammar.c")
# Files that call each other because the problem is recursive, or because one object is divided over files by subject, each
# with the reason. A unit lists all files of its cycle and no others.
UNITS = (
    (("lib/http/connection.c", "lib/http/exchange.c", "lib/http/loop.c"),
     "The loop runs connections, a connection runs exchanges, and both queue their next turn in the loop."),
    (("lib/jinja/eval.c", "lib/jinja/render.c"),
     "An expression calls macros and loops, and their bodies are statements that contain expressions."),
    (("lib/jinja/print.c", "lib/jinja/text.c", "lib/jinja/value.c"),
     "A value prints as a text, a text is a value, and the errors of both print the values that they name."),
    (("lib/net/call.c", "lib/net/health.c", "lib/net/server.c"),
     "The server begins and ends calls, a call enters itself in its server's list, and the health service answers calls."),
    (("sim/client.c", "sim/client_checks.c", "sim/crowd.c", "sim/faults.c", "sim/node.c", "sim/oracle_shadow.c",
      "sim/oracle_status.c", "sim/oracle_steps.c", "sim/oracles.c", "sim/placement.c", "sim/router.c"),
     "Simulated clients, nodes and the router send each other messages, and the oracles read all of them at each tick."),
)
# Exported functions that only tests call, each with the reason why no test could do without.
CALLED_BY_TESTS = {
    "cpu_isa_prefer": "Tests compare the kernels of all instruction set levels; a machine always uses its highest.",
    "rpc_live_objects": "Tests count calls and channels to prove that each one ends; no answer tells a client.",
}
# The emulated GPU has the interface of the CUDA toolkit, and functions for its tests.
EMULATOR = "kernels/emulator/"


def folder_of(path):
    """Returns the folder of USES that holds the file; None for tests and generated files."""
    return max((folder for folder in USES if path.startswith(folder + "/")), key=len, default=None)


def included(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return re.findall(r'^\s*#\s*include "([^"]+)"', file.read(), re.M)


def tracked(*patterns):
    """Returns the paths of the files under version control that match."""
    return subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def include_findings():
    for path in tracked("*.c", "*.h", "*.cpp", "*.cu"):
        folder = folder_of(path)
        if not folder and not path.startswith(("tests/", "deploy/")):
            yield "%s: USES in tests/structure.py does not name its folder" % path
        for name in included(path) if folder else ():
            used = "tests" if name.startswith("tests/") else folder_of(name)
            if used and used != folder and used not in USES[folder]:
                yield "%s includes %s: %s may not use %s" % (path, name, folder, used)


def symbols(build):
    """Returns which file of the product defines each function, and which names each file of the product needs. Functions that
    replace functions of a library are not defined."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = json.load(file)
    defined, needed = {}, collections.defaultdict(set)
    for entry in commands:
        path = os.path.relpath(entry["file"], ROOT)
        object_file = os.path.join(entry["directory"], entry.get("output") or
                                   re.search(r" -o (\S+)", entry["command"]).group(1))
        if not folder_of(path) or path in needed or not os.path.exists(object_file):
            continue
        needed[path] = set()
        listed = subprocess.run(["nm", "-g", "--format=posix", object_file], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                text=True, check=False).stdout
        for name, kind, *_ in (line.split() for line in listed.splitlines()):
            if kind in "Uw":
                needed[path].add(name)
            elif kind == "T" and path not in INTERPOSED:
                defined.setdefault(name, path)
    return defined, needed


def calls(defined, needed):
    """Returns for each file the files that it calls."""
    return {path: {defined[name] for name in names if name in defined} - {path} for path, names in needed.items()
            if path not in INTERPOSED}


def words(path):
    """Returns the names in a source without its comments, as often as they occur."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return collections.Counter(re.findall(r"\w+", re.sub(r"//.*", "", file.read())))


def private_findings(defined, needed):
    """Finds exported functions that no other file of the product calls."""
    product = set().union(*needed.values())
    tests = set().union(*(words(path) for path in tracked("tests/*.c", "tests/*.h", "tests/*.cpp")))
    for name, path in sorted(defined.items()):
        if name in product or name == "main" or path.startswith(EMULATOR):
            continue
        if words(path)[name] == 1:
            if name not in CALLED_BY_TESTS:
                yield "%s: nothing in the product calls %s()" % (path, name)
        elif name not in tests and not name.startswith("__wrap_"): # the linker's --wrap calls these
            yield "%s: no other file calls %s(): make it static" % (path, name)
    for name in CALLED_BY_TESTS:
        if name not in defined or name in product:
            yield "CALLED_BY_TESTS names %s(), which the product calls or does not have" % name


def cycles(graph):
    """Returns the strongly connected components of more than one file (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(path):
        index[path] = low[path] = len(index)
        stack.append(path)
        for other in graph.get(path, ()):
            if other not in index:
                visit(other)
                low[path] = min(low[path], low[other])
            elif other in stack:
                low[path] = min(low[path], index[other])
        if low[path] == index[path]:
            at = stack.index(path)
            found.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10000)
    for path in graph:
        if path not in index:
            visit(path)
    return [component for component in found if len(component) > 1]


def call_findings(defined, needed):
    graph = calls(defined, needed)
    for path, used in sorted(graph.items()):
        for other in sorted(used):
            folder, lower = folder_of(path), folder_of(other)
            if lower != folder and lower not in USES[folder]:
                yield "%s calls %s: %s may not use %s" % (path, other, folder, lower)
    units, found = [set(unit) for unit, _ in UNITS], [set(component) for component in cycles(graph)]
    for component in found:
        if component not in units:
            yield "these files call each other in a cycle and are no unit: %s" % " ".join(sorted(component))
    for unit in units:
        if unit not in found:
            yield "these files are a unit of UNITS and no cycle of calls: %s" % " ".join(sorted(unit))


def main():
    names = symbols(os.path.abspath(sys.argv[1]))
    findings = [*include_findings(), *call_findings(*names), *private_findings(*names)]
    for finding in findings:
        print("structure: " + finding)
    sys.exit(1 if findings else 0)


main()
