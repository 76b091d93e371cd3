// SPDX-License-Identifier: Apache-2.0
// One connection between leader and follower: a socket that does not block, over TLS if the group has it, and the
// frames on it (join_messages.h). One thread uses a link. SIGPIPE must be ignored.
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>

#include "engine/join_proof.h"

struct join_link {
    int fd;   // owned
    SSL *ssl; // owned; NULL: plain text
    uint8_t *in;
    size_t n_in, used_in; // bytes read, and the size of the frame that join_link_next() returned last
    short events;         // for poll()
    bool has_keys;
    uint8_t send_key[JOIN_MAC_BYTES], receive_key[JOIN_MAC_BYTES];
    uint64_t n_sent, n_received; // frames with a MAC
};

// Takes the socket and the TLS connection, whose role is set. Turns on keepalives that notice a lost host in seconds.
void join_link_open(struct join_link *link, int fd, SSL *ssl);
void join_link_close(struct join_link *link);

// Reads what has arrived, after poll(). Returns UNAVAILABLE with a reason when the connection has ended or TLS fails.
enum status join_link_read(struct join_link *link);
// Returns the next frame, or sets *whole_p to false if it has not arrived. The frame is valid until the next call.
// Returns INVALID if the bytes are no frame, or UNAUTHENTICATED if its MAC is wrong.
enum status join_link_next(struct join_link *link, struct join_frame *frame_p, bool *whole_p);
// Sends a frame. Waits up to five seconds for the peer to take it.
enum status join_link_send(struct join_link *link, enum join_type type, struct join_bytes payload);

// Derives the keys. `leads`: this side is the leader.
enum status join_link_keys(const struct join_link *link, const char *token, struct join_bytes follower_hello,
                           struct join_bytes leader_hello, struct join_keys *keys_p);
// From now on frames have a MAC.
void join_link_use_keys(struct join_link *link, const uint8_t send_key[JOIN_MAC_BYTES],
                        const uint8_t receive_key[JOIN_MAC_BYTES]);
