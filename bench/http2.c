// SPDX-License-Identifier: Apache-2.0
#include "bench/http2.h"

#include <string.h>

#include "lib/base/mem.h"

enum { WINDOW_UPDATE_BYTES = 32768 }; // half of a connection's window

// --- bytes

void h2_add(struct h2_bytes *to, const void *bytes, size_t size)
{
    if (to->size + size > to->capacity) {
        to->capacity = 2 * (to->size + size);
        to->data = mem_resize(to->data, to->capacity, 1);
    }
    if (size) memcpy(to->data + to->size, bytes, size);
    to->size += size;
}

void h2_add_frame(struct h2_bytes *to, int type, int flags, uint32_t stream, const void *payload, size_t size)
{
    const uint8_t head[H2_FRAME_BYTES] = {(uint8_t)(size >> 16),   (uint8_t)(size >> 8),   (uint8_t)size,
                                          (uint8_t)type,           (uint8_t)flags,         (uint8_t)(stream >> 24),
                                          (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    h2_add(to, head, sizeof head);
    h2_add(to, payload, size);
}

// Adds a string without Huffman's code. Its size is a number that begins with 7 bits (RFC 7541, 5.1).
static void add_string(struct h2_bytes *to, const char *text, size_t size)
{
    uint8_t number[8] = {size < 127 ? (uint8_t)size : 127};
    size_t n = 1;
    if (size >= 127) {
        size_t rest = size - 127;
        for (; rest > 127; rest >>= 7)
            number[n++] = (uint8_t)(rest | 128);
        number[n++] = (uint8_t)rest;
    }
    h2_add(to, number, n);
    h2_add(to, text, size);
}

void h2_add_header(struct h2_bytes *to, const char *name, const char *value, size_t value_size)
{
    h2_add(to, "", 1); // a literal that is not indexed, with a new name
    add_string(to, name, strlen(name));
    add_string(to, value, value_size);
}

void h2_add_call_headers(struct h2_bytes *to, const char *path)
{
    const char *const headers[][2] = {{":method", "POST"}, {":scheme", "http"},
                                      {":path", path},     {":authority", "localhost"},
                                      {"te", "trailers"},  {"content-type", "application/grpc"}};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        h2_add_header(to, headers[i][0], headers[i][1], strlen(headers[i][1]));
}

void h2_add_greeting(struct h2_bytes *to)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    h2_add(to, preface, sizeof preface - 1);
    h2_add_frame(to, H2_SETTINGS, 0, 0, NULL, 0);
}

// --- reading

static void window_open(struct h2_reader *r, uint32_t size, struct h2_bytes *reply)
{
    r->unacknowledged += size;
    if (r->unacknowledged < WINDOW_UPDATE_BYTES) return;
    uint32_t n = r->unacknowledged;
    const uint8_t increment[4] = {(uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n};
    h2_add_frame(reply, H2_WINDOW_UPDATE, 0, 0, increment, sizeof increment);
    r->unacknowledged = 0;
}

// Handles a whole frame. Returns 1 if it ends a call, 0 if not, and -1 on failure.
static int frame_end(struct h2_reader *r, struct h2_bytes *reply)
{
    int type = r->head[3], flags = r->head[4];
    uint32_t size = r->read - H2_FRAME_BYTES;
    if (type == H2_GOAWAY || type == H2_RST_STREAM) return -1;
    if (type == H2_SETTINGS && !(flags & H2_ACK)) h2_add_frame(reply, H2_SETTINGS, H2_ACK, 0, NULL, 0);
    if (type == H2_PING && !(flags & H2_ACK)) h2_add_frame(reply, H2_PING, H2_ACK, 0, r->payload, sizeof r->payload);
    if (type == H2_DATA) {
        r->has_data = true;
        window_open(r, size, reply);
    }
    if (type != H2_HEADERS || !(flags & H2_END_STREAM)) return 0;
    bool answered = r->has_data;
    r->has_data = false;
    return answered ? 1 : -1;
}

static size_t take(struct h2_reader *r, const uint8_t *bytes, size_t size)
{
    if (r->read < H2_FRAME_BYTES) {
        r->head[r->read++] = *bytes;
        if (r->read == H2_FRAME_BYTES) r->left = (uint32_t)r->head[0] << 16 | (uint32_t)r->head[1] << 8 | r->head[2];
        return 1;
    }
    size_t n = size < r->left ? size : r->left, at = r->read - H2_FRAME_BYTES;
    for (size_t i = 0; i < n && at + i < sizeof r->payload; i++)
        r->payload[at + i] = bytes[i];
    r->read += (uint32_t)n;
    r->left -= (uint32_t)n;
    return n;
}

int h2_read(struct h2_reader *r, const uint8_t *bytes, size_t size, struct h2_bytes *reply)
{
    int ended = 0;
    for (size_t at = 0; at < size;) {
        at += take(r, bytes + at, size - at);
        if (r->read < H2_FRAME_BYTES || r->left) continue;
        int n = frame_end(r, reply);
        if (n < 0) return -1;
        ended += n;
        r->read = 0;
    }
    return ended;
}
