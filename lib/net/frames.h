// SPDX-License-Identifier: Apache-2.0
// Checks the frames of one HTTP/2 connection, as the server's side sees them: C-core enforces its limits only on
// clients that acknowledge SETTINGS, and some not at all. The checker reads what C-core reads and sends, and decides
// whether C-core may have it. It does no input or output. Private to net/.
//
// Threads: the caller holds a lock around every function.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/net/header_size.h"

struct frames_limits {
    int max_calls;           // at once
    size_t max_header_bytes; // of a header block, decoded
    int max_headers;         // of a block
    // Frames that carry nothing, and resets of calls: as many as these at once, and then as many per second. Frames
    // that carry something add to the allowance of empty ones, and calls that the server ends to that of resets.
    int max_empty, empty_per_second;
    int max_resets, resets_per_second;
};

enum frames_found {
    FRAMES_OK,
    FRAMES_NOT_HTTP2,
    FRAMES_BAD,
    FRAMES_HEADERS_TOO_LARGE,
    FRAMES_TOO_MANY_HEADERS,
    FRAMES_BAD_HEADERS,
    FRAMES_TOO_MANY_CALLS,
    FRAMES_TOO_MANY_EMPTY,
    FRAMES_TOO_MANY_RESETS,
};
const char *frames_found_name(enum frames_found found); // a part of a sentence, for logs

// Memory that C-core and the server hold for a call that does not go on, and for an idle connection: measured.
enum { FRAMES_CALL_BYTES = 20 << 10, FRAMES_CONNECTION_BYTES = 16 << 10 };

// An allowance that comes back with time.
struct frames_allowance {
    int64_t left, at_us;
};

// A call: a stream that neither side has reset and the server has not ended.
struct frames_call {
    uint32_t id; // 0: a free place
    uint32_t header_bytes;
    uint32_t message_left, message_bytes; // of an unfinished message: bytes that are missing; that have come
    uint8_t prefix_size;                  // bytes of a message's 5-byte head that have come
    uint8_t prefix[5];
    bool half_closed; // the client sends no more
};

// Reads frame by frame.
struct frames_reader {
    uint8_t head[9];
    uint8_t head_size; // bytes of it that have come
    uint8_t type, flags;
    uint32_t id, size, left; // of the frame: its stream, the size of its payload, the bytes that have not come
};

struct frames {
    const struct frames_limits *limits; // borrowed
    struct frames_reader in, out;
    uint8_t preface; // bytes of the client's preface that have come
    uint32_t last_id;
    struct header_counter headers;
    uint32_t block_id;         // stream of the unfinished header block; 0: there is none
    bool block_ends;           // the block's HEADERS frame ends the client's side
    uint32_t pad, skip;        // of a frame: padding at its end; bytes at its start that are not the block's
    bool pad_pending;          // the length of the padding comes next
    bool carries;              // the frame has data
    bool greeted;              // the server has sent a frame
    int n_calls, n_places;     // of the table, a power of two
    struct frames_call *calls; // [n_places]
    struct frames_allowance empty, resets;
    size_t held_bytes;        // without the unfinished header block
    int64_t now_us, since_us; // of the last bytes; of the start of the frame or header block that they belong to
};

void frames_init(struct frames *f, const struct frames_limits *limits, int64_t now_us);
void frames_fini(struct frames *f);
// Bytes of the client. After another result than FRAMES_OK they must not reach C-core, and the connection must end.
enum frames_found frames_receive(struct frames *f, const uint8_t *bytes, size_t size, int64_t now_us);
// Bytes that the server has sent.
void frames_send(struct frames *f, const uint8_t *bytes, size_t size);
// The server's last frame, which says why it closes the connection; 0 bytes: it is in the middle of another frame.
enum { FRAMES_GOODBYE_BYTES = 128 };
size_t frames_goodbye(const struct frames *f, enum frames_found found, uint8_t bytes[FRAMES_GOODBYE_BYTES]);
// Since when a header block, a frame without data or the preface has come in part; INT64_MAX: none has.
int64_t frames_unfinished_since_us(const struct frames *f);
// Returns the memory that the server holds for the connection, its calls, their headers and unfinished messages.
size_t frames_held_bytes(const struct frames *f);
