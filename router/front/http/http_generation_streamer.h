// SPDX-License-Identifier: Apache-2.0
// Sends an answer as server-sent events. Core's thread.
//
// A stream begins with its first token. A request that fails earlier is answered with the HTTP status of its error. If
// no token comes for a while, http_streams_ping() begins the stream.
#pragma once

#include "router/front/http/http_generation.h"

void http_streamer_add(struct http_generation *g); // adds the generation to the streams that are pinged
void http_streamer_remove(struct http_generation *g);

// Sends the events of a chunk of the answer, and begins the stream before the first one.
void http_streamer_chunk(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                         const struct answer *a);
// Formats a chunk that the client has, without sending it, so that the next events continue after it.
void http_streamer_resume(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk);

// Sends the events of the choice's last chunk and of its end. If `is_last` is true, no other choice runs, and the
// stream ends.
void http_streamer_finish(struct http_generation *g, struct http_choice *choice, const struct answer_chunk *chunk,
                          bool is_last);

// Sends an error on a stream that has begun, and ends the stream.
void http_streamer_fail(struct http_generation *g, enum status status, const char *message);

// Pings the streams on which nothing was sent for a while.
void http_streams_ping(struct http_streams *streams, int64_t now_us);
