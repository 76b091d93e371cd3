// SPDX-License-Identifier: Apache-2.0
// A cheap HTTP client for measurements: one thread, one epoll, many connections to one server on loopback, plain or
// with TLS. It understands only responses of the benchmark's own servers: HTTP/1.1 with a length, and unary gRPC.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/quantiles.h"
#include "lib/base/status.h"

struct http_load;

// Opens a client for at most `n` connections. The server's certificate is not checked. Not thread-safe.
enum status http_load_open(int port, bool tls, int n, struct http_load **load_p);
void http_load_close(struct http_load *load); // NULL is allowed

struct http_load_result {
    int64_t done; // number of complete requests or connections
    double seconds;
    struct samples ms; // latencies; the caller frees them
};

// Sends `request` on every connection again as soon as its response is there, for `seconds`.
enum status http_load_requests(struct http_load *load, const char *request, double seconds,
                               struct http_load_result *result_p);

// Closes every connection after one response and opens it again. `resume`: a new connection resumes the TLS session of
// an earlier one.
enum status http_load_connections(struct http_load *load, const char *request, bool resume, double seconds,
                                  struct http_load_result *result_p);

// From now on, http_load_paced() sends unary gRPC calls with this message.
void http_load_use_grpc(struct http_load *load, const char *path, const void *message, size_t size);

// Opens all connections. Then sends `request` (NULL with gRPC) at a fixed rate over connections that have no request. A
// latency counts from the time at which the request was due. Fails if the server closes a connection.
enum status http_load_paced(struct http_load *load, const char *request, double rate, double seconds,
                            struct http_load_result *result_p);

// Opens a stream on every connection and returns when all response heads are there.
enum status http_load_open_streams(struct http_load *load, const char *request);

// Reads events until `until_us`, or until all calls together have read `expected` events (-1: no bound). Events are
// chunks of `chunk_bytes` that contain "at=" and clock_now_us() of their sending as 16 hex digits. Adds to the result.
enum status http_load_read_events(struct http_load *load, int chunk_bytes, int64_t until_us, int64_t expected,
                                  struct http_load_result *result);
