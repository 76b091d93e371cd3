#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A gate against slower code: counts the instructions of the rows in tests/instructions under valgrind and compares them with
tests/instructions/expected.txt, which says what a row is. A row that grew by more than 3 % fails the test. So does one that
fell by more than 3 %: its old value would let the code grow again unseen.

Usage: tests/instructions.py BUILD_FOLDER [--store]     the folder of a release build; --store writes the new values
Exit codes: 0 as expected, 1 a row changed or failed, 77 valgrind, the architecture or the compiler of the values is missing.

Counts are equal on other machines because valgrind shows each program the same processor, GLIBC_TUNABLES takes from the C
library its choice by processor, and the rows draw from fixed seeds, hash keys included."""
import collections
import concurrent.futures
import glob
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXPECTED = os.path.join(ROOT, "tests/instructions/expected.txt")
TOLERANCE = 0.03
PACKAGES = ("libc6", "libjansson4", "libpcre2-8-0", "libprotobuf-c1")
# gRPC's own threads wake by chance, and its version decides what they do: it is not counted, nor what looks up its symbols.
NOT_COUNTED = re.compile(r"/(libgrpc|libgpr|libabsl_|libcares|libre2|libupb|libaddress_sorting|libstdc\+\+|ld-linux)")
TUNABLES = "glibc.cpu.hwcaps=" + ",".join("-" + name for name in (
    "AVX", "AVX2", "AVX512F", "BMI1", "BMI2", "ERMS", "FMA", "FMA4", "FSRM", "LZCNT", "MOVBE", "POPCNT", "SSE4_1", "SSE4_2", "SSSE3"))


def skip(reason):
    print("skipped: " + reason)
    sys.exit(1 if os.environ.get("CI") == "true" else 77)


# ---- counting ----


def profile_read(path):
    """Returns the instructions of each object file from a profile of callgrind; code that PCRE2 compiled is '???'."""
    names, costs, current, called = {}, collections.Counter(), "", False
    with open(path, encoding="utf-8") as file:
        for line in file:
            found = re.match(r"(c?ob)=\((\d+)\)(?: (.*))?$", line)
            if found:
                names.setdefault(found[2], found[3])
                current = found[2] if found[1] == "ob" else current
            elif line.startswith("calls="):
                called = True # the next line is the cost of the function called, which has its own lines
            elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
                costs[current] += 0 if called else int(line.split()[-1])
                called = False
    return {names[key]: cost for key, cost in costs.items()}


def row_count(program, row):
    """Returns the instructions of Forepack's code and of libraries for one unit of the row's work."""
    with tempfile.TemporaryDirectory() as folder:
        profile = os.path.join(folder, "profile")
        environment = {"FOREPACK_SOURCE": ROOT, "GLIBC_TUNABLES": TUNABLES, "LC_ALL": "C", "PATH": "/usr/bin:/bin"}
        ran = subprocess.run(["valgrind", "--tool=callgrind", "--fair-sched=yes", "--callgrind-out-file=" + profile,
                              "--dump-before=counting_begin", "--dump-before=counting_end", "--toggle-collect=not_counted",
                              "--toggle-collect=engine_forward", "--collect-atstart=yes", program, row], cwd=folder, env=environment,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if ran.returncode or not os.path.exists(profile + ".2"):
            sys.exit("%s: the program failed (%d):\n%s" % (row, ran.returncode, ran.stderr))
        costs = profile_read(profile + ".2")
    units = int(ran.stdout)
    own = costs.get(os.path.realpath(program), 0)
    libraries = sum(cost for name, cost in costs.items() if not NOT_COUNTED.search(name)) - own
    return own / units, libraries / units


def rows_count(program):
    rows = subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(rows, pool.map(lambda row: row_count(program, row), rows)))


# ---- the stored values ----


def versions(build):
    """Returns the versions that counts depend on."""
    found = {"gcc": ""}
    for path in glob.glob(os.path.join(build, "CMakeFiles/*/CMakeCCompiler.cmake")):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if 'CMAKE_C_COMPILER_ID "GNU"' in text:
            found["gcc"] = re.search(r'CMAKE_C_COMPILER_VERSION "([^"]*)"', text)[1]
    for name in PACKAGES:
        found[name] = subprocess.run(["dpkg-query", "-W", "-f=${Version}", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     text=True, check=False).stdout if shutil.which("dpkg-query") else ""
    return found


def expected_read():
    """Returns the comment, the versions and the rows of the file."""
    comment, made_with, rows = [], {}, {}
    with open(EXPECTED, encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if line.startswith("#"):
                comment.append(line)
            elif words[:1] == ["made_with"]:
                made_with = dict(word.split("=", 1) for word in words[1:])
            elif words:
                rows[words[0]] = (float(words[1]), float(words[2]), " ".join(words[3:]))
    return comment, made_with, rows


def expected_write(comment, made_with, rows):
    with open(EXPECTED, "w", encoding="utf-8") as file:
        file.writelines(comment)
        file.write("made_with %s\n" % " ".join("%s=%s" % pair for pair in made_with.items()))
        for name, (own, libraries, unit) in rows.items():
            file.write("%-15s %12.1f %12.1f   %s\n" % (name, own, libraries, unit))


def changes(expected, counted):
    """Returns a sentence for each value that left the tolerance."""
    for row in sorted(expected.keys() ^ counted.keys()):
        yield "%s: %s" % (row, "has no stored value" if row in counted else "is stored and no longer counted")
    for row in [row for row in counted if row in expected]:
        for part, old, new in zip(("Forepack's code", "libraries"), expected[row], counted[row]):
            change = new / old - 1 if old else float(new > 0)
            if abs(change) > TOLERANCE:
                yield "%s: %.1f instructions of %s, %.1f %% %s than the %.1f stored (%s)" % (
                    row, new, part, 100 * abs(change), "more" if change > 0 else "fewer", old, expected[row][2])


def main():
    build, store = os.path.abspath(sys.argv[1]), "--store" in sys.argv[2:]
    comment, made_with, expected = expected_read()
    now = versions(build)
    if platform.machine() != "x86_64":
        skip("the values are of x86-64")
    if not shutil.which("valgrind"):
        skip("valgrind is not installed (deploy/packages.sh --valgrind)")
    if not store and now["gcc"] != made_with["gcc"]:
        skip("the values are of gcc %s, the build is of %s" % (made_with["gcc"], now["gcc"] or "another compiler"))
    program = os.path.join(build, "bin/instruction_rows")
    if not os.path.exists(program):
        sys.exit("%s is missing: build the target instruction_rows of the preset release" % program)
    counted = rows_count(program)
    for row, (own, libraries) in counted.items():
        print("%-15s %12.1f %12.1f" % (row, own, libraries))
    if store:
        expected_write(comment, now, {row: (*counts, expected.get(row, (0, 0, "per ?"))[2]) for row, counts in counted.items()})
        return 0
    found = list(changes(expected, counted))
    for sentence in found:
        print(sentence)
    if not found:
        return 0
    for name in [name for name in now if now[name] != made_with.get(name)]:
        print("The values were made with %s %s, this is %s." % (name, made_with.get(name), now[name]))
    print("If the change is wanted, store the new values with `tests/instructions.py %s --store`, and commit them together with\n"
          "the change and its reason." % os.path.relpath(build, ROOT))
    return 1


sys.exit(main())
