# SPDX-License-Identifier: Apache-2.0
"""A cluster of real processes: a router, worker groups of two ranks, and speculators. Group `a` is on a host of its own, a
network namespace with a link (link.py) to the others. Runs in namespaces of its own (matrix.sh), as root."""
import json
import os
import signal
import subprocess
import sys
import time

NEAR, FAR = "10.88.0.1", "10.88.0.2"
HTTP = ("127.0.0.1", 8000)
NODES = NEAR + ":50052"
WAIT_S = 600  # an upper bound
MARK = "FOREPACK_MATRIX_NODE"


def wait_until(what, condition):
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("waited too long until %s" % what)
        time.sleep(0.05)


def environment_of(pid):
    try:
        with open("/proc/%s/environ" % pid, "rb") as file:
            return dict(word.split(b"=", 1) for word in file.read().split(b"\0") if b"=" in word)
    except OSError:
        return {}


class Cluster:
    def __init__(self, programs, source, folder, preload=None):
        self.programs, self.folder = programs, folder
        self.models = os.path.join(source, "deploy/demo-model")
        self.template = os.path.join(source, "tests/integration/tools.jinja")
        self.preload, self.children = preload, {}
        os.makedirs(folder, exist_ok=True)

    def __enter__(self):
        self.host = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        here = os.readlink("/proc/self/ns/net")
        wait_until("the host of group a is there", lambda: os.readlink("/proc/%d/ns/net" % self.host.pid) != here)
        link = [sys.executable, os.path.join(os.path.dirname(__file__), "link.py"), str(self.host.pid), NEAR, FAR]
        self.link = subprocess.Popen(link, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.link.stdout.readline() == "up\n", "no link"
        self.start_router()
        for name in ("s0", "s1"):
            self.start_speculator(name)
        for name in ("a", "b"):
            self.start_group(name)
        self.wait_ready("a", "b", "s0", "s1")
        return self

    def __exit__(self, *error):
        for name in list(self.children):
            self.kill(name)
        for process in (self.link, self.host):
            process.kill()
            process.wait()

    def start(self, name, command):
        extra = {"LD_PRELOAD": self.preload, "CLOCK_JUMP": os.path.join(self.folder, "jump")} if self.preload else {}
        with open(os.path.join(self.folder, name + ".log"), "ab") as log:
            self.children[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                   env={**os.environ, **extra, MARK: name})

    def program(self, name):
        return os.path.join(self.programs, name)

    def start_router(self):
        self.start("router", [self.program("forepack-router"), "--model", self.models + "/main", "--node-listen", NODES,
                              "--insecure", "--heartbeat-ms", "500", "--worker-grace-ms", "600000", "--score-timeout-ms", "60000",
                              "--chat-template", self.template, "--batch-dir", os.path.join(self.folder, "batches")])
        wait_until("the router answers", self.status)

    def start_group(self, name, node_id=None):
        command = ["mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                   self.program("forepack-worker"), "--model", self.models + "/main", "--router", NODES, "--threads", "1",
                   "--node-id", node_id or name, "--step-timeout-s", "5"]
        self.start(name, ["nsenter", "--net=/proc/%d/ns/net" % self.host.pid, *command] if name == "a" else command)

    def start_speculator(self, name):
        self.start(name, [self.program("forepack-speculator"), "--model", self.models + "/speculator", "--router", NODES,
                          "--threads", "1", "--node-id", name])

    def pids(self, name, rank=None):
        """Processes of a node: all, or the one of a rank."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            values = environment_of(pid)
            if values.get(MARK.encode()) == name.encode() and rank in (None, int(values.get(b"OMPI_COMM_WORLD_RANK", b"-1"))):
                found.append(int(pid))
        return found

    def signal(self, name, number, rank=None):
        for pid in self.pids(name, rank):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill(self, name):
        self.signal(name, signal.SIGKILL)
        return self.children.pop(name).wait()

    def drop(self, share):
        """The share of packets that the link to group a loses from now on."""
        self.link.stdin.write("%f\n" % share)
        self.link.stdin.flush()
        assert float(self.link.stdout.readline()) == share

    def forepack(self, *words):
        return subprocess.run([self.program("forepack"), *words], capture_output=True, text=True, check=False)

    def status(self):
        done = self.forepack("status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def node(self, name):
        """What the router says about an attached node, or None."""
        status = self.status() or {"nodes": []}
        return next((node for node in status["nodes"] if node["node_id"] == name), None)

    def is_ready(self, name):
        return (self.node(name) or {}).get("state") == "ready"

    def wait_ready(self, *names):
        for name in names:
            wait_until("%s is ready" % name, lambda name=name: self.is_ready(name))

    def wait_gone(self, name):
        wait_until("%s is gone" % name, lambda: not self.node(name))

    def log(self, name):
        with open(os.path.join(self.folder, name + ".log"), encoding="utf-8", errors="replace") as file:
            return file.read()
