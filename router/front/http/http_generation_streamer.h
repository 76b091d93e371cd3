// SPDX-License-Identifier: Apache-2.0
// Sends an answer as server-sent events. Core's thread.
//
// A stream begins with its first token, so that a request that is refused or fails before that has the status of its
// error. At the latest it begins when nothing was sent for a while (http_streams_ping()).
#pragma once

#include "router/front/http/http_generation.h"

void http_streamer_add(struct http_generation *g); // to the streams that are pinged
void http_streamer_remove(struct http_generation *g);

// Sends the events of a chunk, and begins the stream before the first one.
void http_streamer_chunk(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk);

// Sends the events of the choice's last chunk and of its end. `is_last`: no other choice runs, and the stream ends.
void http_streamer_finish(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                          bool is_last);

// Ends a stream that has begun with an error.
void http_streamer_fail(struct http_generation *g, enum status status, const char *message);

// Pings the streams on which nothing was sent for a while.
void http_streams_ping(struct http_streams *streams, int64_t now_us);
