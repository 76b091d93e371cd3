# SPDX-License-Identifier: Apache-2.0
"""The faults of the matrix that live streams must survive. Each function plants its fault once, sees that it took effect, and
heals the cluster. The router's restart and the full disk need a batch; they are in batches.py."""
import os
import resource
import signal
import socket
import time

from cluster import HTTP, wait_until


def let_generate(cluster):
    """Waits until as many streams as run at a time have ended since the last fault, and group a generates. The router ends a
    request that loses three groups in a row without a token between, and it serves requests that lost a group first."""
    at, before = cluster.crowd.done() + cluster.crowd.width, (cluster.node("a") or {}).get("tokens_out", 0)
    wait_until("streams have ended and group a generates", lambda: not cluster.crowd.running() or (
        cluster.crowd.done() >= at and (cluster.node("a") or {}).get("tokens_out", 0) > before + 200))


def again(cluster, name="a"):
    """Starts a node whose process has ended or is killed here."""
    cluster.kill(name)
    cluster.wait_gone(name)
    cluster.start_speculator(name) if name.startswith("s") else cluster.start_group(name)
    cluster.wait_ready(name)


def rank_killed(cluster):
    let_generate(cluster)
    cluster.signal("a", signal.SIGKILL, rank=1)
    cluster.wait_gone("a")
    again(cluster)


def leader_stopped(cluster):
    let_generate(cluster)
    cluster.signal("a", signal.SIGSTOP, rank=0)
    cluster.wait_gone("a")
    again(cluster)


def link_cut(cluster):
    let_generate(cluster)
    cluster.drop(1)
    cluster.wait_gone("a")
    cluster.drop(0)
    cluster.wait_ready("a")  # the same process attaches again


def packet_loss(cluster):
    let_generate(cluster)
    cluster.drop(0.1)
    let_generate(cluster)
    cluster.drop(0)
    cluster.wait_ready("a")


def speculator_killed(cluster):
    """Kills a speculator that has prompts to score."""
    def scoring():
        nodes = (cluster.status() or {"nodes": []})["nodes"]
        return [node["node_id"] for node in nodes if node["role"] == "speculator" and node["running"] > 0]

    names = []
    wait_until("a speculator scores", lambda: names.extend(scoring()) or names or not cluster.crowd.running())
    again(cluster, (names or ["s0"])[0])


def drain(cluster):
    let_generate(cluster)
    done = cluster.forepack("drain", "--timeout-s", "120", "a")
    assert done.returncode == 0, done.stderr
    code = cluster.children["a"].wait()
    assert code == 0, "the drained group ended with %d" % code
    again(cluster)


def clock_jump(cluster):
    let_generate(cluster)
    for jump in (90 * 86400, -90 * 86400, 0):
        with open(os.path.join(cluster.folder, "jump.new"), "w", encoding="ascii") as file:
            file.write(str(jump))
        os.replace(file.name, os.path.join(cluster.folder, "jump"))
        cluster.forepack("generate", "--prompt", "Hello", "--max-tokens", "2")
        assert cluster.is_ready("a") and cluster.is_ready("b"), "a node was lost when the clock jumped by %d s" % jump


def descriptors_exhausted(cluster):
    """No process can open another descriptor, while clients open connections."""
    pids = [pid for name in ("router", "a", "b", "s0", "s1") for pid in cluster.pids(name)]
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids}
    for pid, (_, hard) in limits.items():
        used = max(map(int, os.listdir("/proc/%d/fd" % pid)))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 1, hard))
    idle = []
    for _ in range(60):
        try:
            idle.append(socket.create_connection(HTTP, timeout=1))
        except OSError:
            break
    time.sleep(1)
    for connection in idle:
        connection.close()
    for pid, limit in limits.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    wait_until("the router answers again", cluster.status)
    cluster.wait_ready("a", "b")


def slow_node(cluster):
    """Group a runs a tenth of the time."""
    let_generate(cluster)
    pids = cluster.pids("a")
    for _ in range(30):
        for number, seconds in ((signal.SIGSTOP, 0.09), (signal.SIGCONT, 0.01)):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(seconds)


def duplicate_id(cluster):
    """Another group of the same id is refused while the first is there, and serves after that is gone."""
    refused = cluster.log("router").count("node_refused node=a ")
    cluster.start_group("twin", node_id="a")
    wait_until("the twin is refused", lambda: cluster.log("router").count("node_refused node=a ") > refused)
    assert cluster.is_ready("a"), "the twin evicted the group"
    let_generate(cluster)
    cluster.kill("a")
    attached = cluster.log("router").count("node_attached node=a ")
    wait_until("the twin serves", lambda: cluster.log("router").count("node_attached node=a ") > attached)
    cluster.wait_ready("a")
    let_generate(cluster)
    cluster.kill("twin")
    cluster.wait_gone("a")
    cluster.start_group("a")
    cluster.wait_ready("a")


FAULTS = {
    "rank killed": rank_killed,
    "leader stopped": leader_stopped,
    "link cut": link_cut,
    "packet loss": packet_loss,
    "speculator killed": speculator_killed,
    "drain": drain,
    "clock jump": clock_jump,
    "descriptors exhausted": descriptors_exhausted,
    "slow node": slow_node,
    "duplicate node id": duplicate_id,
}
