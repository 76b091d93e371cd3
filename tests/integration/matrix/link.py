# SPDX-License-Identifier: Apache-2.0
"""A link between this network namespace and that of another process, which drops a share of its packets. The kernel may
lack netem, so the packets pass through this program.

Usage: link.py PID NEAR FAR: addresses of the two ends. Each line of standard input is a new share, such as 0.1.
"""
import fcntl
import os
import random
import select
import struct
import subprocess
import sys

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def tun(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd


def ip(*words, inside=()):
    subprocess.run([*inside, "ip", *words], check=True)


def connect(pid, near, far):
    fds = tun("near"), tun("far")
    ip("link", "set", "far", "netns", pid)
    inside = ("nsenter", "--net=/proc/%s/ns/net" % pid)
    for name, address, peer, where in (("near", near, far, ()), ("far", far, near, inside)):
        ip("addr", "add", address, "peer", peer, "dev", name, inside=where)
        ip("link", "set", name, "up", inside=where)
    ip("link", "set", "lo", "up", inside=inside)
    return fds


def forward(fds, share=0.0):
    other = {fds[0]: fds[1], fds[1]: fds[0]}
    commands = sys.stdin.fileno()
    random.seed(1)
    while True:
        for fd in select.select([*fds, commands], [], [])[0]:
            if fd == commands:
                line = sys.stdin.readline()
                if not line:
                    return
                share = float(line)
                print(share, flush=True)
                continue
            packet = os.read(fd, 65536)
            if random.random() >= share:
                try:
                    os.write(other[fd], packet)
                except OSError:
                    pass  # the other end takes no packets now: one more is lost


if __name__ == "__main__":
    ends = connect(*sys.argv[1:4])
    print("up", flush=True)
    forward(ends)
