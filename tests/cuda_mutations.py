#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Leaves out one barrier, fence or wait of the CUDA kernels at a time, and reports which of these mutants the emulated GPU notices.

A mutant is a copy of a .cu file without one statement that synchronises. It is compiled and linked as the build in BUILD does
it, and runs the tests of its file: with the threads of a block in the usual order, then in a random order for each seed. A
mutant is caught if a run fails or hangs. Prints a table. Fails if a statement is missed that the emulator models.

Usage: cuda_mutations.py BUILD [FILE.cu ...]      the tests must have been built
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERNELS = os.path.join(SOURCE, "kernels", "cuda")
TESTS = {"gemm_stream.cu": ["stream"], "gemv.cu": ["gemv", "fused"], "importance.cu": ["importance"], "rows.cu": ["rows", "fused"],
         "sample.cu": ["sample"], "decode.cu": ["attention"], "attention.cu": ["attention"], "attention_wgmma.cu": ["attention"]}
STATEMENT = re.compile(r"^(\s+(?:if \([^;{}]*\) )?)((__syncthreads|__syncwarp|__threadfence|named_sync|named_arrive|barrier_wait|"
                       r"barrier_arrive|barrier_init_fence|writes_fence|wgmma_fence|wgmma_commit|wgmma_wait|copy_async_wait|"
                       r"copy_async_commit|dependency_wait)\b[^;{}]*);", re.M)
# Statements that change nothing on the emulated GPU: it runs one block at a time, memory has one order, and copies happen when
# all threads wait. Without turns the products of two warp groups still are right, only slower.
NOT_MODELLED = ("__threadfence", "writes_fence", "__syncwarp", "TURN_BARRIER")
SEEDS = ("", "1", "2")
LIMIT_S = 180


def commands(build, target):
    told = subprocess.run(["ninja", "-C", build, "-t", "commands", target], capture_output=True, text=True, check=True)
    return told.stdout.splitlines()


def with_output(words, output):
    """The command with another output, and without a file of dependencies."""
    at = words.index("-o")
    words = words[:at + 1] + [output] + words[at + 2:]
    for option in ("-MT", "-MF"):
        if option in words:
            del words[words.index(option):words.index(option) + 2]
    return [word for word in words if word not in ("-MD", "-Werror")]


class Mutants:
    """Builds and runs the mutants of one file."""

    def __init__(self, build, name, folder):
        self.build, self.name, self.folder = build, name, folder
        self.path = os.path.join(KERNELS, name)
        with open(self.path) as file:
            self.text = file.read()
        own = "/cuda/" + name + ".o"
        self.links = []
        for test in ("check_cuda_" + test for test in TESTS[name]):
            lines = commands(build, "bin/" + test)
            self.compile = next(shlex.split(line) for line in lines if own in line and " -c " in line)
            self.links.append(next(shlex.split(line.split("&&")[1]) for line in reversed(lines) if "-o bin/" + test in line))
        self.object = next(word for word in self.links[0] if word.endswith(own))

    def sites(self):
        return list(STATEMENT.finditer(self.text))

    def run_test(self, link, made, seed):
        """Returns how the test noticed the mutant, or None."""
        program = os.path.join(self.folder, "test")
        if not seed:
            words = [made if word == self.object else word for word in with_output(link, program)]
            subprocess.run(words, cwd=self.build, check=True, capture_output=True)
        try:
            ran = subprocess.run([program, "cuda"], capture_output=True, timeout=LIMIT_S,
                                 env=dict(os.environ, FOREPACK_EMULATOR_SEED=seed))
        except subprocess.TimeoutExpired:
            return "hangs"
        return None if ran.returncode == 0 else "random order" if seed else "usual order"

    def run(self, site):
        """Returns how the mutant without this statement was caught, or None."""
        source = os.path.join(self.folder, self.name)
        with open(source, "w") as file:
            file.write(self.text[:site.start(2)] + "(void)0" + self.text[site.end(2):])
        made = source + ".o"
        words = [source if word == self.path else word for word in with_output(self.compile, made)]
        built = subprocess.run(words, cwd=self.build, capture_output=True, text=True)
        if built.returncode:
            return "does not compile"
        for link in self.links:
            for seed in SEEDS:
                caught = self.run_test(link, made, seed)
                if caught:
                    return caught
        return None


def main():
    build, names = os.path.abspath(sys.argv[1]), sys.argv[2:] or list(TESTS)
    counts, unexpected = {}, []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            mutants = Mutants(build, name, folder)
            for site in mutants.sites():
                kind, line = site.group(3), mutants.text.count("\n", 0, site.start(2)) + 1
                caught = mutants.run(site)
                print("%s:%d: %s: %s" % (name, line, site.group(2), caught or "MISSED"), flush=True)
                row = counts.setdefault(kind, {})
                row[caught or "missed"] = row.get(caught or "missed", 0) + 1
                if not caught and not any(part in site.group(2) for part in NOT_MODELLED):
                    unexpected.append("%s:%d" % (name, line))
    columns = ("usual order", "random order", "hangs", "does not compile", "missed")
    print("\n| left out | " + " | ".join(columns) + " |\n| --- |" + " ---: |" * len(columns))
    for kind in sorted(counts):
        print("| `%s` | " % kind + " | ".join(str(counts[kind].get(column, "")) for column in columns) + " |")
    print("\nmissed though modelled: " + (", ".join(unexpected) or "none"))
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
