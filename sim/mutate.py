#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the simulator: draws small faults in the scheduling code, one at a time, and counts how many it detects.

A fault is an inverted comparison, an off-by-one, a dropped statement or the like, spread evenly over the parts. A draw is
repeated when the fault does not compile, when an optimising compiler makes the same code with and without it (Papadakis
et al., "Trivial Compiler Equivalence", ICSE 2015), and when EQUIVALENT or EQUAL_CASE says why it changes nothing. The sources are copied
to a separate folder, so the working tree stays unchanged, and built with the sanitizers, as in the preset dev. Prints
one line per fault and a summary.
"""
import argparse
import filecmp
import json
import os
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = {
    "core": ["router/core/" + name + ".c" for name in
             ("admission", "availability", "core", "dispatch", "ledger", "node_reports", "nodes", "request_prompt",
              "request_selection", "request_steps", "request_table", "requests", "score_answer", "score_plan")],
    "sched": ["router/sched/" + name for name in sorted(os.listdir(os.path.join(ROOT, "router/sched")))
              if name.endswith(".c")],
    "worker": ["worker/admission.c", "worker/pace.c", "worker/pace_budget.c", "worker/pass.c", "worker/pass_builder.c",
               "worker/pass_results.c", "worker/scheduler.c", "worker/sequence.c", "worker/sequence_queue.c"],
    "kv": ["engine/block_manager.c", "engine/prefix_cache.c", "engine/batch_builder.c"],
}

# Pattern, replacement, name. Applied to one place of one line.
CHANGES = [
    (r" < ", " <= ", "< to <="), (r" <= ", " < ", "<= to <"), (r" > ", " >= ", "> to >="), (r" >= ", " > ", ">= to >"),
    (r" < ", " > ", "< to >"), (r" == ", " != ", "== to !="), (r" != ", " == ", "!= to =="),
    (r" && ", " || ", "&& to ||"), (r" \|\| ", " && ", "|| to &&"), (r"\(!", "(", "! dropped"),
    (r" \+ 1\b", "", "+ 1 dropped"), (r" - 1\b", "", "- 1 dropped"), (r" \+ ", " - ", "+ to -"), (r" - ", " + ", "- to +"),
    (r" \+= ", " -= ", "+= to -="), (r" -= ", " += ", "-= to +="), (r"\+\+", "--", "++ to --"),
    (r"return true;", "return false;", "true to false"), (r"return false;", "return true;", "false to true"),
]
STATEMENT = re.compile(r"^\s+(?!return|break|continue|case|default|goto|typedef|static|const|struct|enum|int|int64_t|int32_t|"
                       r"uint64_t|double|float|bool|size_t|char|else|TRY)[\w\*\(][^{}]*;\s*$")
LEFT_ALONE = re.compile(r"^\s*(//|#|\*)|log_event|LOG_|INVARIANT|assert|status_fail|\"|^\S|kind_case|free\(")

# Faults that change nothing that a client or a node can see, and why: (file, change, line).
EQUIVALENT = {
    ("engine/batch_builder.c", "statement dropped", "batch_builder_reset(b);"): "it is all zeros, and every pass resets it",
    ("router/core/nodes.c", "< to <=", "if (silent_us < c->silence_us) c->silence_us = silent_us;"):
        "it assigns the same value",
    ("router/core/score_answer.c", "statement dropped", "copy[n_copy - 1].last = kept[k].last;"):
        "speculators send no ranges that touch (cluster.proto)",
    ("engine/batch_builder.c", "statement dropped", "b->row_start[0] = 0;"): "it is zero from the start",
    ("worker/sequence_queue.c", "statement dropped", "s->next = NULL;"): "new sequences are all zeros",
    ("engine/block_manager.c", "< to <=", "while (manager->n_buckets < (uint32_t)n_blocks)"):
        "it may make a hash table twice as large",
    ("engine/prefix_cache.c", "&& to ||",
     "if (match->n_blocks && block_manager_chain(manager, match->last_block) != match->chain)"):
        "blocks that were found before are looked up again, with the same result",
    ("router/sched/cost.c", "<= to <", "if (!valid || gain <= best_gain) continue;"):
        "subsets with equal gains differ by terms that are zero",
    ("router/sched/prefix_chain.c", "< to <=", "for (int k = 0; k < n_kept && row < n * PREFIX_BLOCK; k++) {"):
        "the ranges have the rows of all blocks: the second condition ends the loop first",
    ("router/sched/prefix_chain.c", "&& to ||", "for (int k = 0; k < n_kept && row < n * PREFIX_BLOCK; k++) {"):
        "after the last block the body does nothing",
    ("router/sched/prefix_groups.c", "statement dropped", "if (!*blocks_p) return NULL;"):
        "no blocks pay for no request, so the next search finds none",
    ("router/sched/request_list.c", "statement dropped", "r->prev = r->next = NULL;"):
        "both are set again when it joins a list, and are not read before",
    ("router/sched/cost.c", "< to <=", "for (int subset = 1; subset < 8; subset++) {"):
        "the eighth subset is without any term and gains nothing",
    ("router/sched/cost.c", ">= to >", "valid &= isfinite(x[i]) && x[i] >= 0;"):
        "the subset without the term that is zero has the same solution",
    ("worker/scheduler.c", "!= to ==",
     "if (sequence_set_draft(q, 0, request->draft, request->n_draft, s->config) != STATUS_OK)"):
        "it decides whether a line is logged",
    ("worker/sequence.c", ">= to >", "if (known < 0 || known >= n) return STATUS_OK;"):
        "of a draft that the sequence has already nothing is left",
    ("worker/sequence.c", "statement dropped", "s->sampling.grammar.text = NULL; // the matcher will have it"):
        "nothing reads the text of a sequence's grammar",
}

# Comparisons whose equal case changes nothing: a minimum or maximum of equal values, and equal random weights of
# 64 bits in a treap.
BOUNDS = ("< to <=", "<= to <", "> to >=", ">= to >")
EQUAL_CASE = [
    re.compile(r"([\w.>\[\]-]+) [<>]=? ([\w.>\[\]-]+) \? (\1 : \2|\2 : \1)\b"),
    re.compile(r"if \((?:[^()]* && )?([\w.>\[\]-]+) [<>]=? ([\w.>\[\]-]+)\) (\1 = \2|\2 = \1);"),
    re.compile(r"tree_weight [<>]=? \w+->tree_weight|heap_weight\(\w+\) [<>]=? heap_weight\(\w+\)"),
]

# The condition says that the operands differ, so their equal case never occurs.
UNEQUAL = re.compile(r"([\w.>-]+) != ([\w.>-]+) \? \1 [<>]=? \2 :")


def candidates(path):
    """All faults that can be put into a file: (line number, changed line, name)."""
    lines = open(path).read().split("\n")
    found = []
    for number, line in enumerate(lines):
        if LEFT_ALONE.search(line) or not line.strip():
            continue
        code = line.split("//")[0]
        for pattern, replacement, name in CHANGES:
            for match in re.finditer(pattern, code):
                found.append((number, code[:match.start()] + replacement + code[match.end():], name))
        whole = number and lines[number - 1].rstrip().endswith((";", "{", "}"))
        if STATEMENT.match(code) and whole and code.count("(") == code.count(")"):
            found.append((number, re.match(r"\s*", code).group() + ";", "statement dropped"))
    return found


def draw(rng, part):
    """A fault in the part: the file, its line and the change are drawn."""
    choices = []
    while not choices:
        path = rng.choice(PARTS[part])
        choices = candidates(os.path.join(ROOT, path))
    number = rng.choice(sorted({c[0] for c in choices}))
    return (path,) + rng.choice([c for c in choices if c[0] == number])


def optimised(build, target):
    """The machine code of a source file without sanitizers and debug information; None: it does not compile."""
    with open(os.path.join(build, "compile_commands.json")) as commands:
        command = next(c for c in json.load(commands) if c["file"] == target)
    flags = [f for f in shlex.split(command["command"]) if f.startswith(("-D", "-I", "-std"))]
    done = subprocess.run(["cc", *flags, "-O2", "-w", "-S", target, "-o", "-"], cwd=command["directory"],
                          capture_output=True)
    return None if done.returncode else done.stdout


def is_equal_case(name, line, changed):
    guards = [UNEQUAL.search(text) for text in (line, changed)]
    if name in BOUNDS and all(guards) and guards[0].group() != guards[1].group():
        return True
    one = len(re.findall(r" [<>]=? ", line)) == 1
    return name in BOUNDS and one and any(pattern.search(line) for pattern in EQUAL_CASE)


def put_in(source, build, rng, part):
    """Draws a fault and builds the program with it. Returns the fault, the file, and the file's text without the fault."""
    while True:
        path, number, changed, name = draw(rng, part)
        target = os.path.join(source, path)
        original = open(target).read()
        lines = original.split("\n")
        before, lines[number] = lines[number].strip(), changed
        if (path, name, before) in EQUIVALENT or is_equal_case(name, before, changed):
            continue
        same = optimised(build, target)
        open(target, "w").write("\n".join(lines))
        code = optimised(build, target)
        if code and code != same and compile_program(build).returncode == 0:
            return f"{path}:{number + 1} {name}: {before}", target, original
        open(target, "w").write(original)


SANITIZERS = "-O1 -g1 -Wno-error -fsanitize=address,undefined -fno-sanitize-recover=undefined"


def prepare(folder, flags=SANITIZERS):
    """Copies the sources into the folder and builds the simulator there."""
    source, build = os.path.join(folder, "source"), os.path.join(folder, "build")
    os.makedirs(folder, exist_ok=True)
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, text=True,
                           capture_output=True).stdout.split("\n")
    for name in filter(None, files):
        target = os.path.join(source, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        same = os.path.isfile(target) and filecmp.cmp(os.path.join(ROOT, name), target, shallow=False)
        if os.path.isfile(os.path.join(ROOT, name)) and not same:  # an interrupted run leaves its last fault in the file
            shutil.copy(os.path.join(ROOT, name), target)
    subprocess.run(["cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_C_FLAGS={flags}",
                    "-DFOREPACK_TESTS=OFF", "-DFOREPACK_CUDA=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"], check=True,
                   stdout=subprocess.DEVNULL)
    compile_program(build)
    return source, build


def compile_program(build):
    return subprocess.run(["cmake", "--build", build, "--target", "forepack-sim", "-j", str(os.cpu_count())],
                          capture_output=True, text=True)


def run(build, options):
    """Returns None if every seed passes, else the first violation."""
    command = [os.path.join(build, "bin/forepack-sim"), "--seeds", str(options.seeds), "--events", str(options.events),
               "--jobs", str(options.jobs), "--shrink-runs", "0", "--failures-max", "1", "--log-level", "error"]
    # Each scenario runs in a process of its own. Time that other processes take from the machine does not count.
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (options.timeout, options.timeout))
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.split("\n") if line.startswith("seed ")]
    return lines[0] if lines else f"exit code {done.returncode}"


# --- faults of a list

def read_list(path):
    """Faults of a file: `FILE: OLD => NEW` in each line. OLD occurs once in FILE; \\n stands for a line break."""
    faults = []
    for line in open(path):
        if line.startswith("#") or not line.strip():
            continue
        name, change = line.rstrip("\n").split(": ", 1)
        old, new = (text.replace("\\n", "\n") for text in change.split(" =>", 1))
        count = open(os.path.join(ROOT, name)).read().count(old)
        if count != 1:
            sys.exit(f"{path}: {line.strip()}: {name} has {count} places that match, must be 1")
        faults.append((name, old, new.removeprefix(" ")))
    return faults


def listed(source, build, faults, index):
    """Builds the program with fault `index`, from 1. Returns the same as put_in()."""
    name, old, new = faults[index - 1]
    target = os.path.join(source, name)
    original = open(target).read()
    open(target, "w").write(original.replace(old, new))
    built = compile_program(build)
    if built.returncode:
        open(target, "w").write(original)
        sys.exit(f"fault {index} does not compile: {built.stdout[-2000:]}")
    return f"{name}: {old.strip()} => {new.strip()}".replace("\n", " "), target, original


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="faults to draw")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw")
    parser.add_argument("--seeds", type=int, default=500, help="scenarios that run with each fault")
    parser.add_argument("--events", type=int, default=5000, help="rough size of a scenario")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=int, default=20, help="CPU seconds for one scenario; more: it hangs")
    parser.add_argument("--folder", default=os.path.join(ROOT, "build/mutants"))
    parser.add_argument("--list", help="file of faults, such as sim/mutants.txt, instead of drawn ones")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the faults to try; skips the check that the scenarios "
                        "pass with no fault")
    options = parser.parse_args()
    faults = read_list(options.list) if options.list else []
    source, build = prepare(options.folder)
    problem = None if options.only else run(build, options)
    if problem:
        sys.exit(f"without any fault: {problem}")
    detected, numbers = 0, options.only or range(1, (len(faults) or options.count) + 1)
    for index in numbers:  # each fault has its own seed, so that --only draws the same fault
        if faults:
            fault, target, original = listed(source, build, faults, index)
        else:
            rng, part = random.Random(f"{options.seed}.{index}"), list(PARTS)[index % len(PARTS)]
            fault, target, original = put_in(source, build, rng, part)
        problem = run(build, options)
        open(target, "w").write(original)
        detected += problem is not None
        print(f"{index:3} {'detected' if problem else 'NOT DETECTED':13} {fault}", flush=True)
        if problem:
            print(f"    {problem[:160]}", flush=True)
    print(f"{detected} of {len(numbers)} faults detected")


if __name__ == "__main__":
    main()
