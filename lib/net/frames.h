// SPDX-License-Identifier: Apache-2.0
// Checks the frames of one HTTP/2 connection on the server's side. C-core enforces some limits only on clients that
// acknowledge SETTINGS, and some limits not at all. The checker reads the bytes of both directions and decides if the
// client's bytes may reach C-core. It does no input or output. Private to net/.
//
// Threads: the caller holds a lock around every function.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/net/header_size.h"

struct frames_limits {
    int max_calls;           // limit of open calls
    size_t max_header_bytes; // decoded bytes of a header block
    int max_headers;         // headers of a header block
    // Token buckets (burst, refill per second). Empty frames (PING, SETTINGS, WINDOW_UPDATE, CONTINUATION and others)
    // neither open a call nor bring or end its data; large ones cost more. Useful frames of either side refill the
    // bucket of empty frames. Each call that the server ends refills the bucket of resets of new calls.
    int max_empty, empty_per_second;
    int max_resets, resets_per_second;
    // A new call costs 1, plus 1 for each whole KiB of its headers. The server's first message of the call returns the
    // cost.
    int max_unanswered, unanswered_per_second;
    int free_calls; // cost of the calls that a client may open before one is answered, without paying (turns.h)
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
    FRAMES_TOO_MANY_UNANSWERED,
};
enum { FRAMES_NEW_CALL_US = 1000000 };                  // resets of older calls are not limited
const char *frames_found_name(enum frames_found found); // a phrase for logs

// Measured memory that C-core and the server hold for a call that makes no progress, and for an idle connection.
enum { FRAMES_CALL_BYTES = 20 << 10, FRAMES_CONNECTION_BYTES = 16 << 10 };

// A token bucket: an allowance that refills with time.
struct frames_allowance {
    int64_t left, at_us;
};

// A call: a stream that neither side has reset and the server has not ended.
struct frames_call {
    uint32_t id; // 0: a free place
    uint32_t header_bytes;
    int64_t opened_us;
    uint32_t message_left, message_bytes; // bytes still missing, and bytes received, of an unfinished message
    uint8_t prefix_size;                  // bytes received of a message's 5-byte head
    uint8_t prefix[5];
    bool half_closed; // the client sends no more
    bool answered;    // the server has sent a part of a message
};

// Parses the byte stream of one direction into frames.
struct frames_reader {
    uint8_t head[9];
    uint8_t head_size; // bytes of the head that have been read
    uint8_t type, flags;
    uint32_t id, size, left; // the frame's stream, its payload's size, and payload bytes not yet read
};

struct frames {
    const struct frames_limits *limits; // borrowed
    struct frames_reader in, out;
    uint8_t preface; // bytes received of the client's preface
    uint32_t last_id;
    uint32_t goaway_id; // last stream id of the GOAWAY frame that is being sent
    uint32_t served_id; // lowest last stream id of all GOAWAY frames sent; UINT32_MAX: none was sent
    struct header_counter headers;
    uint32_t block_id;         // stream of the unfinished header block; 0: there is none
    bool block_ends;           // the block's HEADERS frame ends the client's side
    uint32_t pad, skip;        // padding at the frame's end; bytes at its start that precede the header block
    bool pad_pending;          // the length of the padding comes next
    bool carries;              // the current frame has data
    bool greeted;              // the server has sent a frame
    bool settled;              // the client's first SETTINGS frame is complete
    int n_calls, n_places;     // calls in the table; size of the table, a power of two
    struct frames_call *calls; // [n_places]
    struct frames_allowance empty, resets, unanswered;
    int64_t credit, unpaid;   // cost of further calls that are free; cost of calls that were opened above the credit
    size_t held_bytes;        // memory held for the connection, without the unfinished header block
    int64_t now_us, since_us; // time of the last bytes; start of the frame or header block that contains them
};

void frames_init(struct frames *f, const struct frames_limits *limits, int64_t now_us);
void frames_fini(struct frames *f);
// Checks bytes of the client. On any result other than FRAMES_OK the bytes must not reach C-core, and the connection
// must end.
enum frames_found frames_receive(struct frames *f, const uint8_t *bytes, size_t size, int64_t now_us);
// Records bytes that the server has sent.
void frames_send(struct frames *f, const uint8_t *bytes, size_t size);
// Writes the server's last bytes: GOAWAY, which says why the server closes the connection, after SETTINGS if the server
// has sent no frame yet. Returns their size, or 0 if the server is in the middle of another frame.
enum { FRAMES_GOODBYE_BYTES = 128 };
size_t frames_goodbye(const struct frames *f, enum frames_found found, uint8_t bytes[FRAMES_GOODBYE_BYTES]);
// Returns the time at which the client began what it has not finished: the preface, a header block, or a frame other
// than DATA, which may come slowly. INT64_MAX: nothing is unfinished.
int64_t frames_unfinished_since_us(const struct frames *f);
// Returns true if the client has sent its preface and SETTINGS, and nothing is unfinished as above.
bool frames_may_pass(const struct frames *f);
// Returns the cost of calls that were opened above the credit since the last time.
int64_t frames_take_unpaid(struct frames *f);
// Returns the memory that the server holds for the connection, its calls, their headers and unfinished messages.
size_t frames_held_bytes(const struct frames *f);
