// SPDX-License-Identifier: Apache-2.0
// The keys of a connection between leader and follower (join_messages.h). They depend on the cluster token, both
// greetings with their fresh nonces, and the TLS session if there is one. So a recorded connection proves nothing to a
// later one, and a proof cannot be passed on over another TLS session. Any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/join_messages.h"

struct join_keys {
    uint8_t follower_proof[JOIN_MAC_BYTES], leader_proof[JOIN_MAC_BYTES];   // payloads of the PROOF frames
    uint8_t follower_frames[JOIN_MAC_BYTES], leader_frames[JOIN_MAC_BYTES]; // keys of later frames, by sender
};

struct join_bytes {
    const uint8_t *bytes;
    size_t n;
};

// `session`: the TLS session, or all zeros. Returns INTERNAL if OpenSSL fails.
enum status join_keys_derive(const char *token, struct join_bytes follower_hello, struct join_bytes leader_hello,
                             const uint8_t session[JOIN_MAC_BYTES], struct join_keys *keys_p);

// Computes the MAC of the sender's frame number `number`: of its type and payload.
enum status join_frame_mac(const uint8_t key[JOIN_MAC_BYTES], uint64_t number, enum join_type type,
                           struct join_bytes payload, uint8_t mac_p[JOIN_MAC_BYTES]);

// Compares in constant time.
bool join_mac_equal(const uint8_t a[JOIN_MAC_BYTES], const uint8_t b[JOIN_MAC_BYTES]);
