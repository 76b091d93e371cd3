# SPDX-License-Identifier: Apache-2.0
"""Compares streams over several ports: proxies.py ROUNDS NAME=PORT ... The first port is the reference."""
import http.client
import json
import sys
import time

TOKENS = 16


def stream(connection):
    """Returns the times in ms from the request to each token's event."""
    body = json.dumps({"prompt": "Count to ten", "max_tokens": TOKENS, "stream": True, "ignore_eos": True})
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", body)
    times = []
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            times.append(1000 * (time.perf_counter() - start))
    return times


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main():
    rounds, ports = int(sys.argv[1]), dict(one.split("=") for one in sys.argv[2:])
    connections = {name: http.client.HTTPConnection("127.0.0.1", int(port)) for name, port in ports.items()}
    first, last, gaps = ({name: [] for name in ports} for _ in range(3))
    for number in range(rounds + 5):
        for name, connection in connections.items():
            times = stream(connection)
            if number < 5:
                continue
            first[name].append(times[0])
            last[name].append(times[-1])
            gaps[name] += [b - a for a, b in zip(times, times[1:])]
    reference = next(iter(ports))
    print("%-8s %28s %28s %28s" % ("ms", "first token", "last token", "gap between events"))
    for name in ports:
        cells = []
        for values in first, last, gaps:
            for share in 0.5, 0.99:
                value = quantile(values[name], share)
                cells.append("%6.2f (%+5.2f)" % (value, value - quantile(values[reference], share)))
        print("%-8s" % name, " ".join(cells))
    print("each cell: p50 and p99, with the difference to %s" % reference)


if __name__ == "__main__":
    main()
