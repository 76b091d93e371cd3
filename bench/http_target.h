// SPDX-License-Identifier: Apache-2.0
// The server of `forepack bench http`, in a separate process: only the HTTP layer, with handlers that cost nothing.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/status.h"

struct http_target;

struct http_target_options {
    bool tls; // with a self-signed certificate of the server
    int threads;
    int streams; // maximum number of open streams
    int event_bytes;
    double events_per_s; // of each stream
    double tick_ms;      // due events are sent together every tick
};

// Starts the server. Call it while this process has no threads, since it forks. POST /echo answers with the body; GET
// /events opens a stream.
enum status http_target_open(const struct http_target_options *options, struct http_target **target_p);
int http_target_port(const struct http_target *target);
void http_target_close(struct http_target *target); // NULL is allowed

// Starts and stops sending events to all streams, spread evenly over time. stop returns the number of sent events.
void http_target_start_events(struct http_target *target);
int64_t http_target_stop_events(struct http_target *target);
int http_target_chunk_bytes(const struct http_target *target); // bytes of one event, including the frame of its chunk

// Returns the CPU time of the server's threads, except the thread that makes the events.
double http_target_cpu_s(const struct http_target *target);
// Returns the CPU time of the thread that makes the events.
double http_target_sender_cpu_s(const struct http_target *target);
double http_target_rss_kb(const struct http_target *target);
