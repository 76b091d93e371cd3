# SPDX-License-Identifier: Apache-2.0
"""Strangers at the ports of a group over several hosts: they speak the protocol of engine/join_messages.h wrongly, repeat
what others said, or lack the token. The test reads the logs of the group.

Usage: join_stranger.py garbage HOST PORT         another protocol, frames that are too long, empty or out of order
       join_stranger.py hello HOST PORT TOKEN VERSION   a follower of another version; prints what the leader answers
       join_stranger.py relay PORT HOST PORT FILE  passes one connection on and records what the follower sends
       join_stranger.py replay HOST PORT FILE     sends it again; prints what the leader answers
       join_stranger.py leader PORT FILE          a leader without the token, which starts touch FILE"""
import errno
import hashlib
import hmac
import os
import select
import socket
import struct
import sys

HELLO, PROOF, REFUSED, START = 1, 2, 3, 4


def frame(kind, payload):
    return struct.pack(">IB", 1 + len(payload), kind) + payload


def read_exactly(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the peer ended the connection after %r" % data)
        data += more
    return data


def read_frame(connection):
    size, kind = struct.unpack(">IB", read_exactly(connection, 5))
    return kind, read_exactly(connection, size - 1)


def greeting(version):
    return b"FPJ1" + os.urandom(32) + bytes([len(version)]) + version + bytes([8]) + b"stranger"


def mac(key, text):
    return hmac.new(key, text, hashlib.sha256).digest()


def part(payload):
    return struct.pack(">H", len(payload)) + payload


def dial(host, port):
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def accept(port):
    server = socket.create_server(("", int(port)))
    server.settimeout(120)
    print("listening", flush=True)
    connection, _ = server.accept()
    connection.settimeout(30)
    return connection


def garbage(host, port):
    start = frame(START, b"orted\0")
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"x" * 600, b"\xff\xff\xff\xff\x01", b"\0\0\0\0\0", b"\0\0\0\1\x09",
                 frame(HELLO, b"x"), start, frame(HELLO, greeting(b"1"))[:-1], frame(HELLO, greeting(b"1")) + start,
                 frame(HELLO, greeting(b"1")) + frame(PROOF, b"\0" * 32), frame(HELLO, greeting(b"1")) * 2, os.urandom(4000)):
        connection = dial(host, port)
        try: # the leader may end the connection at any of these calls
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
        connection.close()


def hello(host, port, token, version):
    connection = dial(host, port)
    own = greeting(version.encode())
    connection.sendall(frame(HELLO, own))
    _, leader = read_frame(connection)
    key = mac(token.encode(), part(own) + part(leader) + b"\0" * 32)
    connection.sendall(frame(PROOF, mac(key, b"forepack join follower proof")))
    kind, answer = read_frame(connection)
    right = kind == PROOF and answer == mac(key, b"forepack join leader proof")
    print("proof of the leader" if right else answer.decode(errors="replace"))
    print("ended" if connection.recv(65536) == b"" else "open")


def relay(port, host, to, path):
    follower = accept(port)
    leader = dial(host, to)
    with open(path, "wb") as record:
        while True:
            for ready in select.select([follower, leader], [], [])[0]:
                data = ready.recv(65536)
                if not data:
                    return
                if ready is follower:
                    record.write(data)
                    record.flush()
                (leader if ready is follower else follower).sendall(data)


def replay(host, port, path):
    with open(path, "rb") as record:
        data = record.read()
    connection = dial(host, port)
    connection.sendall(data)
    read_frame(connection) # a greeting
    print(read_frame(connection)[1].decode(errors="replace"))


def leader(port, path):
    connection = accept(port)
    read_frame(connection)
    connection.sendall(frame(HELLO, greeting(b"1")))
    read_frame(connection)
    connection.sendall(frame(PROOF, b"\0" * 32) + frame(START, b"touch\0" + path.encode() + b"\0"))
    while connection.recv(65536):
        pass


{"garbage": garbage, "hello": hello, "relay": relay, "replay": replay, "leader": leader}[sys.argv[1]](*sys.argv[2:])
