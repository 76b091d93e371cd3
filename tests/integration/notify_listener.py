#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A made-up service manager: prints each message that comes to the datagram socket SOCKET on one line, with its fields
separated by blanks. Usage: notify_listener.py SOCKET"""
import socket
import sys

manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.bind(sys.argv[1])
while True:
    print(manager.recv(4096).decode().replace("\n", " "), flush=True)
