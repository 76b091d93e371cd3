#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures calls of polite clients on a gRPC port, without and with hostile connections that break the limits of HTTP/2.

Usage: hostile.py PORT [--pid PID] [--polite 200] [--hostile 1000] [--seconds 10] [--rate 1000] [--breaks 300]
  PORT     of a router on 127.0.0.1, without TLS and API keys
  --pid    of the router: also prints its resident memory
  --rate   calls of all polite connections together, per second
  --breaks attempts of all hostile connections together, per second; each attempt opens a new connection

Prints JSON: p50 and p99 of the polite calls in ms, alone and next to the hostile connections, and the ratio of the p99.
The two cases alternate; three runs each, the median counts.
"""
import argparse
import json
import multiprocessing
import selectors
import socket
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    size = bytes([len(value)]) if len(value) < 127 else bytes([127, (len(value) - 127) & 127 | 128, (len(value) - 127) >> 7])
    return b"\0" + bytes([len(name)]) + name + size + value


CALL = b"".join(literal(*pair) for pair in [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/grpc.health.v1.Health/Check"),
                                            (b":authority", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc")])
WATCH = CALL.replace(literal(b":path", b"/grpc.health.v1.Health/Check"), literal(b":path", b"/grpc.health.v1.Health/Watch"))
GREETING = PREFACE + frame(4, 0, 0)
BREAKS = [
    GREETING + frame(1, 0, 1, CALL) + b"".join(frame(9, 0, 1, literal(b"x", b"a" * 8000)) for _ in range(4)),  # no end of headers
    GREETING + frame(1, 0, 1, CALL),  # headers that stay unfinished
    GREETING + b"".join(frame(1, 4, 2 * i + 1, CALL) + frame(3, 0, 2 * i + 1, b"\0\0\0\x08") for i in range(300)),  # resets
    GREETING + frame(6, 0, 0, b"pingpong") * 1100,
    GREETING + b"".join(frame(1, 4, 2 * i + 1, WATCH) for i in range(100)),  # calls without progress
    b"\0" * 4096,  # another protocol
]


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


def hostile(port, connections, breaks, stop):
    """Opens connections that send one of BREAKS each and read nothing. Replaces the oldest connection in each turn."""
    held, turn, start = [None] * connections, 0, time.monotonic()
    while not stop.is_set():
        due = start + turn / breaks
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(min(0.01, wait))
            continue
        place = turn % connections
        if held[place]:
            held[place].close()
        try:
            held[place] = connect(port)
            held[place].send(BREAKS[turn % len(BREAKS)])
        except OSError:
            held[place] = None
        turn += 1


class Polite:
    """A connection with one call at a time."""

    def __init__(self, port):
        self.socket, self.stream, self.bytes, self.due = connect(port), -1, b"", None
        self.socket.send(GREETING)

    def ask(self, due):
        self.stream, self.due = self.stream + 2, due
        self.socket.send(frame(1, 4, self.stream, CALL) + frame(0, 1, self.stream, b"\0\0\0\0\0"))

    def read(self):
        """Returns True once the call has its answer."""
        self.bytes += self.socket.recv(65536)
        ended = False
        while len(self.bytes) >= 9:
            size = int.from_bytes(self.bytes[:3], "big")
            if len(self.bytes) < 9 + size:
                break
            kind, flags = self.bytes[3], self.bytes[4]
            if kind == 4 and not flags & 1:
                self.socket.send(frame(4, 1, 0))
            if kind == 6 and not flags & 1:
                self.socket.send(frame(6, 1, 0, self.bytes[9:17]))
            if kind == 7:
                raise ConnectionError("a polite connection was closed")
            ended |= kind in (0, 1) and bool(flags & 1) and int.from_bytes(self.bytes[5:9], "big") == self.stream
            self.bytes = self.bytes[9 + size:]
        return ended


def measure(port, connections, rate, seconds):
    """Returns sorted latencies in ms. Each counts from the time at which the call was due."""

    selector, free, latencies = selectors.EpollSelector(), [], []
    for _ in range(connections):
        client = Polite(port)
        selector.register(client.socket, selectors.EVENT_READ, client)
        free.append(client)
    start, sent = time.monotonic(), 0
    while len(latencies) < rate * seconds:
        now = time.monotonic()
        while free and sent < rate * seconds and start + sent / rate <= now:
            free.pop(0).ask(start + sent / rate)
            sent += 1
        for key, _ in selector.select(max(0, min(0.005, start + sent / rate - now))):
            if key.data.read():
                latencies.append(1000 * (time.monotonic() - key.data.due))
                free.append(key.data)
        if now - start > 10 * seconds + 60:
            raise TimeoutError(f"{len(latencies)} of {rate * seconds} calls were answered")
    for key in list(selector.get_map().values()):
        key.fileobj.close()
    return sorted(latencies)


def resident_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("port", type=int)
    for name, default in [("pid", 0), ("polite", 200), ("hostile", 1000), ("seconds", 10), ("rate", 1000), ("breaks", 300)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    o = parser.parse_args()
    rows = {"alone": [], "hostile": []}
    for _ in range(3):
        for name, latencies in rows.items():
            stop = multiprocessing.Event()
            attacker = multiprocessing.Process(target=hostile, args=(o.port, o.hostile, o.breaks, stop))
            if name == "hostile":
                attacker.start()
                time.sleep(o.hostile / o.breaks + 1)
            latencies.append(measure(o.port, o.polite, o.rate, o.seconds))
            if name == "hostile":
                stop.set()
                attacker.join()
    result = {}
    for name, latencies in rows.items():
        for part in (50, 99):
            result[f"{name}_p{part}_ms"] = round(sorted(row[len(row) * part // 100] for row in latencies)[1], 3)
    result["p99_ratio"] = round(result["hostile_p99_ms"] / result["alone_p99_ms"], 2)
    if o.pid:
        result["resident_mib"] = round(resident_mib(o.pid))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
