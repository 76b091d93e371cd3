// SPDX-License-Identifier: Apache-2.0
// The messages between the leader of a group over several hosts and its followers: frames, greetings, and the command
// that a follower may start. Functions only read and write bytes; they trust nothing. Any thread.
//
// A frame is the length of the rest (4 bytes, big-endian), a type (1 byte), a payload and, after the proofs, an
// HMAC-SHA256 of the frame (JOIN_MAC_BYTES). A connection begins with four frames without it:
//
//     follower: HELLO    a fresh nonce, the version of the program, the name of the host
//     leader:   HELLO    the same
//     follower: PROOF    an HMAC over both greetings, whose key is the cluster token
//     leader:   PROOF    another one, or REFUSED with a sentence
//
// Then the leader sends START once, and the follower answers STARTED or FAILED, and later ENDED.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"

enum {
    JOIN_MAC_BYTES = 32,
    JOIN_NONCE_BYTES = 32,
    JOIN_GREETING_MAX = 512,    // bytes of a frame before the proofs
    JOIN_FRAME_MAX = 64 * 1024, // bytes of a frame after the proofs
    JOIN_TEXT_MAX = 192,        // bytes of a version or a host name
    JOIN_WORDS_MAX = 512        // words of a command
};

enum join_type {
    JOIN_HELLO = 1,
    JOIN_PROOF,
    JOIN_REFUSED, // payload: a sentence
    JOIN_START,   // payload: the words of the command, each with a NUL
    JOIN_STARTED,
    JOIN_FAILED, // payload: a sentence
    JOIN_ENDED   // payload: the exit code, 1 byte
};

struct join_frame {
    enum join_type type;
    const uint8_t *payload, *mac; // inside the bytes that were read; `mac` is NULL before the proofs
    size_t n;                     // bytes of the payload
};

enum join_reading { JOIN_WHOLE, JOIN_PARTIAL, JOIN_BAD };

// Reads the first frame of `bytes`. `limit` bounds the length that the frame states. *used_p is the size of the frame.
enum join_reading join_frame_read(const uint8_t *bytes, size_t n, size_t limit, size_t mac_bytes,
                                  struct join_frame *frame_p, size_t *used_p);
// Writes what precedes the payload and returns its size.
enum { JOIN_HEAD_BYTES = 5 };
void join_head_write(uint8_t head[JOIN_HEAD_BYTES], enum join_type type, size_t payload_bytes, size_t mac_bytes);

struct join_hello {
    uint8_t nonce[JOIN_NONCE_BYTES];
    char version[JOIN_TEXT_MAX + 1], host[JOIN_TEXT_MAX + 1]; // printable ASCII
};

// Returns INVALID if the payload is no greeting.
enum status join_hello_read(const uint8_t *payload, size_t n, struct join_hello *hello_p);
// Cuts texts that are too long, and replaces characters that are not printable ASCII. Returns the size.
size_t join_hello_write(const struct join_hello *hello, uint8_t payload[JOIN_GREETING_MAX]);

// Checks the command of a START: orted with the settings that mpirun gives it. words_p gets pointers into the payload,
// and NULL at the end. Leaves out what would let orted go to the background or start daemons on other hosts. Returns
// INVALID with a sentence if the command is anything else.
enum status join_command_read(const uint8_t *payload, size_t n, const char *words_p[JOIN_WORDS_MAX + 1]);
