// SPDX-License-Identifier: Apache-2.0
// The few parts of HTTP/2 (RFC 9113) that a benchmark's client needs: bytes of frames, and a reader of the frames that
// answer unary gRPC calls. Both follow the protocol only as far as a server checks.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    H2_DATA,
    H2_HEADERS,
    H2_PRIORITY,
    H2_RST_STREAM,
    H2_SETTINGS,
    H2_PING = 6,
    H2_GOAWAY,
    H2_WINDOW_UPDATE,
    H2_CONTINUATION
};
enum { H2_END_STREAM = 1, H2_ACK = 1, H2_END_HEADERS = 4, H2_PADDED = 8, H2_FRAME_BYTES = 9 };

struct h2_bytes { // starts as zero; the owner frees `data`
    uint8_t *data;
    size_t size, capacity;
};

void h2_add(struct h2_bytes *to, const void *bytes, size_t size);
void h2_add_frame(struct h2_bytes *to, int type, int flags, uint32_t stream, const void *payload, size_t size);
void h2_add_header(struct h2_bytes *to, const char *name, const char *value, size_t value_size); // a literal
void h2_add_call_headers(struct h2_bytes *to, const char *path); // the header block of a gRPC call
void h2_add_greeting(struct h2_bytes *to);                       // the client's preface and SETTINGS

// Reads frames that a server sends.
struct h2_reader {
    uint8_t head[H2_FRAME_BYTES], payload[8]; // the frame; the start of its payload
    uint32_t read, left;                      // bytes read of head and payload; bytes missing of the payload
    uint32_t unacknowledged;                  // bytes of DATA since the last WINDOW_UPDATE
    bool has_data;                            // DATA has come since the last call ended
};

// Reads bytes and appends what the client must answer to `reply`. Returns the number of calls that ended with a
// message, or -1 if a call failed or the server closes the connection.
int h2_read(struct h2_reader *reader, const uint8_t *bytes, size_t size, struct h2_bytes *reply);
