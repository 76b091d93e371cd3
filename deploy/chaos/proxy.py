#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between nodes and router that can be cut like a network. SIGUSR1: passes nothing on and keeps connections
open, as a broken link does. SIGUSR2: goes on.

Usage: proxy.py LISTEN_PORT HOST:PORT. It listens on loopback. Exit code 2: wrong usage."""
import asyncio
import signal
import sys


def usage(text):
    sys.stderr.write("proxy.py: %s\n" % text)
    sys.exit(2)


class Proxy:
    def __init__(self, host, port):
        self.host, self.port = host, port
        self.flows = asyncio.Event()
        self.flows.set()

    async def copy(self, reader, writer):
        try:
            while data := await reader.read(65536):
                await self.flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        await self.flows.wait() # an end is not seen through a cut link either
        writer.close()

    async def serve(self, reader, writer):
        await self.flows.wait()
        try:
            out_reader, out_writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self.copy(reader, out_writer), self.copy(out_reader, writer))


async def main(listen_port, host, port):
    proxy = Proxy(host, port)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, proxy.flows.clear)
    loop.add_signal_handler(signal.SIGUSR2, proxy.flows.set)
    try:
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", listen_port)
    except OSError as error:
        usage("port %d: %s" % (listen_port, error.strerror))
    async with server:
        await server.serve_forever()


if len(sys.argv) != 3 or not sys.argv[1].isdigit() or not sys.argv[2].rpartition(":")[2].isdigit():
    usage("expected a port and HOST:PORT")
to_host, _, to_port = sys.argv[2].rpartition(":")
asyncio.run(main(int(sys.argv[1]), to_host, int(to_port)))
