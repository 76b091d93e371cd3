// SPDX-License-Identifier: Apache-2.0
// A connection of the leader: a stranger until it has proved that it knows the cluster token, then a follower. The
// leader's thread only.
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

#include "engine/join_link.h"

struct join_peer {
    struct join_link link;
    char address[64];    // IP address and port
    int64_t deadline_us; // of the proof
    int number;          // of a follower, from 1; 0: a stranger
    bool greeted;
    bool done; // its daemon has ended with 0, so that it may leave
    struct join_hello hello;
    struct join_keys keys;
    int agent; // launch agent that waits for an answer; -1: none
};

// Takes the socket and the TLS connection.
struct join_peer *join_peer_create(int fd, SSL *ssl, const struct sockaddr_storage *address, socklen_t size);
void join_peer_free(struct join_peer *peer); // answers a launch agent that waits
// The name that a follower gives for its host, or its address.
const char *join_peer_host(const struct join_peer *peer);

// Reads and answers what has arrived. `full`: the group needs no more followers, so that a stranger is refused. Sets
// *proved_p once the peer has proved that it knows the token. A failure ends the connection.
enum status join_peer_attend(struct join_peer *peer, const char *token_file, bool full, bool *proved_p);
// Sends the words of the command. Takes `agent`, which gets the answer.
enum status join_peer_start(struct join_peer *peer, int agent, const uint8_t *words, size_t n);
