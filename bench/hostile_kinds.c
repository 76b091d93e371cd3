// SPDX-License-Identifier: Apache-2.0
#include "bench/hostile_kinds.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

enum { FLOOD = 2000, CALLS = 100, BLOCK_BYTES = 65536, BODY_BYTES = 65536 };

static void add_text(struct h2_bytes *to, const char *text)
{
    h2_add(to, text, strlen(text));
}

static void add_letters(struct h2_bytes *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h2_add(to, "a", 1);
}

// --- gRPC

static void call_add(struct h2_bytes *to, uint32_t stream, int flags, size_t metadata_bytes)
{
    struct h2_bytes block = {0}, value = {0};
    add_letters(&value, metadata_bytes);
    h2_add_call_headers(&block, "/grpc.health.v1.Health/Watch");
    if (metadata_bytes) h2_add_header(&block, "x", (const char *)value.data, metadata_bytes);
    h2_add_frame(to, H2_HEADERS, flags, stream, block.data, block.size);
    free(block.data);
    free(value.data);
}

static void calls_add(struct h2_bytes *to, int n, size_t metadata_bytes)
{
    h2_add_greeting(to);
    for (int i = 0; i < n; i++)
        call_add(to, 2 * (uint32_t)i + 1, H2_END_HEADERS, metadata_bytes);
}

static void frames_add(struct h2_bytes *to, int type, const void *payload, size_t size)
{
    h2_add_greeting(to);
    for (int i = 0; i < FLOOD; i++)
        h2_add_frame(to, type, 0, 0, payload, size);
}

static void unfinished_headers(struct h2_bytes *to)
{
    h2_add_greeting(to);
    call_add(to, 1, 0, 0);
}

static void continuation(struct h2_bytes *to)
{
    struct h2_bytes header = {0};
    h2_add_header(&header, "x", "a", 1);
    h2_add_frame(to, H2_CONTINUATION, 0, 1, header.data, header.size);
    free(header.data);
}

static void large_headers(struct h2_bytes *to)
{
    struct h2_bytes value = {0};
    add_letters(&value, 8000);
    h2_add_greeting(to);
    call_add(to, 1, 0, 0);
    for (int i = 0; i < BLOCK_BYTES / 8000; i++) {
        struct h2_bytes header = {0};
        h2_add_header(&header, "x", (const char *)value.data, value.size);
        h2_add_frame(to, H2_CONTINUATION, 0, 1, header.data, header.size);
        free(header.data);
    }
    free(value.data);
}

static void metadata(struct h2_bytes *to)
{
    calls_add(to, CALLS, 7000);
}

static void calls(struct h2_bytes *to)
{
    calls_add(to, CALLS, 0);
}

static void resets(struct h2_bytes *to)
{
    h2_add_greeting(to);
    for (uint32_t i = 0; i < FLOOD; i++) {
        call_add(to, 2 * i + 1, H2_END_HEADERS, 0);
        h2_add_frame(to, H2_RST_STREAM, 0, 2 * i + 1, "\0\0\0\x08", 4);
    }
}

static void empty_data(struct h2_bytes *to)
{
    calls_add(to, 1, 0);
    for (int i = 0; i < FLOOD; i++)
        h2_add_frame(to, H2_DATA, 0, 1, NULL, 0);
}

static void pings(struct h2_bytes *to)
{
    frames_add(to, H2_PING, "pingpong", 8);
}

static void settings(struct h2_bytes *to)
{
    frames_add(to, H2_SETTINGS, NULL, 0);
}

static void window_updates(struct h2_bytes *to)
{
    frames_add(to, H2_WINDOW_UPDATE, "\0\0\0\1", 4);
}

static void messages(struct h2_bytes *to)
{
    static const uint8_t start[8192] = {0, 0, 1, 0, 0}; // of a message of 64 KiB
    calls_add(to, 5, 0);
    for (uint32_t i = 0; i < 5; i++)
        h2_add_frame(to, H2_DATA, 0, 2 * i + 1, start, sizeof start);
}

static void padded_headers(struct h2_bytes *to)
{
    struct h2_bytes block = {0};
    h2_add(&block, "\4", 1);
    h2_add_call_headers(&block, "/grpc.health.v1.Health/Watch");
    h2_add(&block, "\0\0\0\0", 4);
    h2_add_greeting(to);
    h2_add_frame(to, H2_HEADERS, H2_END_HEADERS | H2_PADDED, 1, block.data, block.size);
    free(block.data);
}

static void wrong_index(struct h2_bytes *to)
{
    h2_add_greeting(to);
    h2_add_frame(to, H2_HEADERS, H2_END_HEADERS, 1, "\xff\x7f", 2);
}

static void slow_headers(struct h2_bytes *to)
{
    h2_add_greeting(to);
    h2_add(to, "\0\1\0\1\0\0\0\0\1\0\1x\x7f\xff\1", 15); // the start of a header of 254 bytes in a frame of 256
}

// --- both

static void nothing(struct h2_bytes *to)
{
}

static void letter(struct h2_bytes *to)
{
    h2_add(to, "a", 1);
}

static void half_handshake(struct h2_bytes *to)
{
    h2_add(to, "\x16\x03\x01\x02\0\1\0\1", 8); // the start of a record of 512 bytes
}

static void zeros(struct h2_bytes *to)
{
    static const uint8_t bytes[4096];
    h2_add(to, bytes, sizeof bytes);
}

// --- HTTP/1.1

static void half_head(struct h2_bytes *to)
{
    add_text(to, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ");
}

static void large_head(struct h2_bytes *to)
{
    half_head(to);
    add_letters(to, BLOCK_BYTES);
}

static void many_fields(struct h2_bytes *to)
{
    add_text(to, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < FLOOD; i++)
        add_text(to, "X: a\r\n");
}

static void half_body(struct h2_bytes *to)
{
    add_text(to, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{\"prompt\":\"");
    add_letters(to, BODY_BYTES);
}

static void slow_body(struct h2_bytes *to)
{
    add_text(to, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{\"prompt\":\"");
}

static void chunks(struct h2_bytes *to)
{
    add_text(to, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < FLOOD; i++)
        add_text(to, "1;extension=a\r\na\r\n");
}

static void unread(struct h2_bytes *to)
{
    for (int i = 0; i < CALLS; i++)
        add_text(to, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

static void refused(struct h2_bytes *to)
{
    add_text(to, "GET /\1 HTTP/1.1\r\n\r\n");
}

// --- the lists

static const struct hostile_kind grpc_kinds[] = {
    {.name = "unfinished headers", .first = unfinished_headers},
    {.name = "headers without end", .first = unfinished_headers, .more = continuation, .more_ms = 20},
    {.name = "large headers", .first = large_headers},
    {.name = "slow headers", .first = slow_headers, .more = letter, .more_ms = 100},
    {.name = "metadata of unfinished calls", .first = metadata},
    {.name = "unfinished calls", .first = calls},
    {.name = "unfinished messages", .first = messages},
    {.name = "resets", .first = resets},
    {.name = "empty frames", .first = empty_data},
    {.name = "pings", .first = pings},
    {.name = "settings", .first = settings},
    {.name = "window updates", .first = window_updates},
    {.name = "padded headers", .first = padded_headers},
    {.name = "malformed headers", .first = wrong_index},
    {.name = "another protocol", .first = zeros},
    {.name = "silence", .first = nothing, .raw = true},
    {.name = "half a handshake", .first = half_handshake, .raw = true},
    {0},
};

static const struct hostile_kind http_kinds[] = {
    {.name = "half a head", .first = half_head},
    {.name = "slow head", .first = half_head, .more = letter, .more_ms = 100},
    {.name = "large head", .first = large_head},
    {.name = "many fields", .first = many_fields},
    {.name = "half a body", .first = half_body},
    {.name = "slow body", .first = slow_body, .more = letter, .more_ms = 100},
    {.name = "small chunks", .first = chunks},
    {.name = "unread answers", .first = unread},
    {.name = "malformed head", .first = refused},
    {.name = "another protocol", .first = zeros},
    {.name = "silence", .first = nothing, .raw = true},
    {.name = "half a handshake", .first = half_handshake, .raw = true},
    {0},
};

const struct hostile_kind *hostile_kinds(bool grpc)
{
    return grpc ? grpc_kinds : http_kinds;
}
