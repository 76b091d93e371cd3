#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the documents: each fenced block without a language, of a shell or of Python must exit with 0.

HTML comments directly before a block say what the block needs:

  <!-- test: skip, REASON -->      the block is not run
  <!-- test: output of COMMAND --> the block is output and no command; another test compares it
  <!-- test: for N s -->           the block is ended after N seconds
  <!-- test: pruned -->            the output must have `kept_tokens` below `prompt_tokens`
  <!-- test: status with FLAGS --> from here on, `forepack status` needs these flags to see that the programs are ready
  <!-- test: COMMAND -->           a shell command that must exit with 0; its standard input is the output of the block

The blocks of a page run in order, in a scratch folder with copies of the demo models, in a network namespace of their
own. Programs that serve (`forepack up`, router, nodes) run until other ones are started or the page ends. A page
without such a program gets `forepack up`.

Usage: tests/docs_commands.py BIN [PAGE...]. Exit codes: 0 passed, 1 failed, 77 no network namespace can be made."""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = ["README.md"] + ["docs/%s.md" % name for name in
                         ("quickstart", "http-api", "operating", "reference", "watching", "sizing", "scheduling", "speculation", "checkpoints")]
LIMIT_S = 120
SHELLS = ("", "sh", "bash", "console")
SHELL = ("bash", "-euo", "pipefail", "-c")
STATUS_WITH = "status with"
TIMED = re.compile(r"for (\d+) s$")
MARK = re.compile(r"<!-- test: (.*) -->$")
PROMPT = re.compile(r"[\w.-]*\$ +")
SERVER = re.compile(r"(\S*/)?(forepack up|forepack-router|forepack-worker|forepack-speculator|mpirun)\b")
MAIN, SPECULATOR = "deploy/demo-model/main", "deploy/demo-model/speculator"
# The documents name models and hosts of a reader.
PLACEHOLDERS = [(r"/models/Llama-3\.1-8B-Instruct|/models/main|(?<= )(DIR|MAIN)\b", MAIN),
                (r"/models/Llama-3\.2-1B-Instruct|/models/small|(?<= )(SMALL_DIR|SPECULATOR)\b", SPECULATOR),
                (r"(?<= )(HOST|router):(?=\d)", "127.0.0.1:")]
INPUTS = ("prompts.jsonl", "texts.jsonl")


class Block:
    def __init__(self, line, language, marks):
        self.line, self.language, self.marks, self.lines = line, language, marks, []

    def commands(self):
        """Returns the commands without prompts. A block with prompts also shows output, which is left out."""
        lines = textwrap.dedent("\n".join(self.lines)).split("\n")
        if PROMPT.match(lines[0]):
            lines = [PROMPT.sub("", line) for line in lines if PROMPT.match(line)]
        text = "\n".join(lines) + "\n"
        for pattern, value in PLACEHOLDERS:
            text = re.sub(pattern, value, text)
        return text


def blocks_of(page):
    blocks, marks, block = [], [], None
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        for number, line in enumerate(file.read().split("\n"), 1):
            fence = line.lstrip().startswith("```")
            if block and fence:
                block = None
            elif block:
                block.lines.append(line)
            elif fence:
                block = Block(number, line.strip()[3:], marks)
                blocks.append(block)
            mark = MARK.match(line.lstrip())
            if marks and not mark and not fence:
                sys.exit("%s:%d: a mark stands directly before a block" % (page, number))
            marks = marks + [mark.group(1)] if mark and not block else []
    return blocks


def kill(process):
    """Ends a process and its children, which share its session."""
    for number, wait_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(wait_s)
            return
        except subprocess.TimeoutExpired:
            pass


def pruned(output):
    """Returns true if a usage in the output, of any notation, has fewer kept tokens than prompt tokens."""
    kept, tokens = (re.search(r"(?<![a-z_])%s\W+(\d+)" % name, output) for name in ("kept_tokens", "prompt_tokens"))
    return bool(kept and tokens) and int(kept.group(1)) < int(tokens.group(1))


def nodes_of(command):
    """Returns how many nodes a program that serves starts."""
    if "forepack up" in command:
        return 1 if "--main" in command and "--spec" not in command else 2
    return 0 if "forepack-router" in command else 1


class Page:
    def __init__(self, bin_path, name):
        self.name, self.failed, self.servers, self.status_flags = name, 0, [], []
        self.folder = tempfile.mkdtemp(prefix="forepack-docs-")
        self.environment = dict(os.environ, HOME=self.folder, PATH=bin_path + ":" + os.environ["PATH"],
                                OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                OMPI_MCA_rmaps_base_oversubscribe="1")
        os.makedirs(os.path.join(self.folder, "build/release"))
        os.symlink(bin_path, os.path.join(self.folder, "build/release/bin"))
        os.symlink(os.path.join(ROOT, "proto"), os.path.join(self.folder, "proto"))
        os.makedirs(os.path.join(self.folder, "bench"))
        os.symlink(os.path.join(ROOT, "bench/shapes"), os.path.join(self.folder, "bench/shapes"))
        models = os.path.join(self.folder, "deploy/demo-model")
        shutil.copytree(os.path.join(ROOT, "deploy/demo-model"), models)
        shutil.copy(os.path.join(ROOT, "deploy/certificates.sh"), os.path.join(self.folder, "deploy"))
        for name in INPUTS:
            shutil.copy(os.path.join(models, "prompts.jsonl"), os.path.join(self.folder, name))

    def start(self, argv, output, errors=subprocess.STDOUT, given=subprocess.DEVNULL):
        return subprocess.Popen(argv, cwd=self.folder, env=self.environment, stdin=given, stdout=output, stderr=errors,
                                start_new_session=True)

    def run(self, argv, given="", seconds=None):
        """Returns exit code, standard output and errors of a command. One with seconds may still run when they end."""
        with contextlib.ExitStack() as stack:
            files = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(3)]
            source, output, errors = map(stack.enter_context, files)
            source.write(given)
            source.seek(0)
            process = self.start(argv, output, errors, source)
            try:
                code = process.wait(seconds or LIMIT_S)
            except subprocess.TimeoutExpired:
                code = 0 if seconds else "none after %d s" % LIMIT_S
            finally:
                kill(process)
            output.seek(0)
            errors.seek(0)
            return code, output.read(), errors.read()

    # ---- programs that serve ----

    def stop_servers(self):
        for process, log in self.servers:
            kill(process)
            log.close()
        self.servers = []

    def serve(self, commands):
        """Starts a cluster in place of the earlier one. Returns the reason if it does not become ready."""
        self.stop_servers()
        for command in commands:
            log = tempfile.TemporaryFile("w+", errors="replace")
            self.servers.append((self.start(["bash", "-c", "exec " + command], log), log))
        n_nodes = sum(map(nodes_of, commands))
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            for command, (process, log) in zip(commands, self.servers):
                if process.poll() is not None:
                    log.seek(0)
                    return "%s\nended with exit code %s\n%s" % (command, process.returncode, log.read())
            status = subprocess.run(["forepack", "status", "--json", *self.status_flags], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                                    stderr=subprocess.DEVNULL, check=False).stdout
            if status and sum(node["state"] == "ready" for node in json.loads(status)["nodes"]) >= n_nodes:
                return ""
            time.sleep(0.05)
        return "not ready after %d s: %s" % (LIMIT_S, "; ".join(commands))

    # ---- blocks ----

    def fail(self, block, text):
        self.failed += 1
        print("FAILED %s:%d: %s" % (self.name, block.line, text.rstrip()), flush=True)

    def run_block(self, block):
        text = block.commands()
        lines = text.replace("\\\n", " ").split("\n")
        servers = [re.sub(r" +#.*", "", line) for line in lines if SERVER.match(line)]
        for mark in block.marks:
            if mark.startswith(STATUS_WITH):
                self.status_flags = mark[len(STATUS_WITH):].split()
        if servers or not self.servers:
            reason = self.serve(servers or ["forepack up"])
            if reason:
                self.stop_servers()
                return self.fail(block, reason)
        if servers:
            text = "\n".join(line for line in lines if not SERVER.match(line))
        run = [sys.executable, "-c"] if block.language == "python" else SHELL
        seconds = next((int(mark[4:-2]) for mark in block.marks if TIMED.match(mark)), None)
        code, output, errors = self.run([*run, text], seconds=seconds)
        shown = "%s--- output\n%s%s" % (block.commands(), output, errors)
        if code != 0:
            return self.fail(block, "exit code %s\n%s" % (code, shown))
        for check in block.marks:
            if check == "pruned" and not pruned(output):
                return self.fail(block, "not pruned\n" + shown)
            if check != "pruned" and not TIMED.match(check) and not check.startswith(STATUS_WITH):
                code, *found = self.run([*SHELL, check], output)
                if code != 0:
                    return self.fail(block, "exit code %s of %s\n%s%s" % (code, check, "".join(found), shown))
        return None

    def run_blocks(self):
        try:
            for block in blocks_of(self.name):
                left_out = [mark for mark in block.marks if mark.startswith(("skip,", "output of "))]
                if left_out:
                    print("%s:%d: %s" % (self.name, block.line, left_out[0]), flush=True)
                elif block.language in SHELLS + ("python",):
                    before, start = self.failed, time.monotonic()
                    self.run_block(block)
                    if self.failed == before:
                        took_s = time.monotonic() - start
                        print("%s:%d: passed in %.1f s" % (self.name, block.line, took_s), flush=True)
        finally:
            self.stop_servers()
            shutil.rmtree(self.folder)
        return self.failed


def enter_namespace():
    """Runs this program again in a network namespace of its own, where the documented ports are free."""
    unshare = ["unshare", "-n" if os.geteuid() == 0 else "-rn"]
    tried = subprocess.run([*unshare, "ip", "link", "set", "lo", "up"], stderr=subprocess.DEVNULL, check=False)
    if tried.returncode != 0:
        print("skipped: no network namespace can be made (unshare -n)")
        sys.exit(77)
    os.execvpe(unshare[0], [*unshare, sys.executable, *sys.argv], dict(os.environ, FOREPACK_DOCS_NAMESPACE="1"))


def main():
    if "FOREPACK_DOCS_NAMESPACE" not in os.environ:
        enter_namespace()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM")) # started programs are ended first
    bin_path, *pages = sys.argv[1:]
    failed = sum(Page(os.path.abspath(bin_path), page).run_blocks() for page in pages or PAGES)
    print("%d blocks failed" % failed)
    sys.exit(1 if failed else 0)


main()
