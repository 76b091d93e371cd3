// SPDX-License-Identifier: Apache-2.0
// Runs the TLS handshakes of a port on a thread of its own. A handshake takes as long as several requests, and so must
// not keep the thread of open connections busy.
//
// A handshake begins with the client's first byte. At most HANDSHAKES_MAX are in progress; one more ends the oldest,
// because OpenSSL allocates up to 128 KiB for the first message of a client. With `one_per_address`, an address has one
// handshake at a time, and further connections of the address wait. There is no limit of time: the owner cancels.
//
// Threads: handshake_start(), handshake_cancel() and handshakes_take() belong to the owner's thread.
#pragma once

#include <netinet/in.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/tls_server.h"

enum { HANDSHAKES_MAX = 512 };

struct handshakes;
struct handshake_list;

enum handshake_result { HANDSHAKE_DONE, HANDSHAKE_FAILED, HANDSHAKE_CROWDED_OUT };

// The handshake of a connection. The owner embeds this struct, zeroed, and reads the results once it has taken it.
struct handshake {
    enum handshake_result result;
    SSL *ssl;            // the result of HANDSHAKE_DONE, otherwise NULL; the owner attaches its own BIO and frees it
    unsigned long error; // of HANDSHAKE_FAILED: OpenSSL's error, or 0 if the client has closed
    struct handshake *older, *newer; // only handshakes.c uses this and the following fields
    struct handshake_list *list;     // NULL: not started, or taken
    int fd;
    struct in6_addr address;
    bool is_limited; // the limit of its address holds
    bool is_counted; // the address counts this handshake
    bool is_queued;  // waits for another handshake of its address
    bool has_begun;
};

struct handshakes_options {
    struct tls_server *tls; // borrowed
    bool one_per_address;
    void (*wake)(void *owner); // called on the handshakes' thread when the owner should take handshakes
    void *owner;
};

// Starts the thread. Returns INTERNAL if the system has no descriptor left.
enum status handshakes_open(const struct handshakes_options *options, struct handshakes **handshakes_p);
void handshakes_close(struct handshakes *h); // after each handshake was taken or cancelled; NULL is allowed
// Starts the handshake of a non-blocking socket, which stays the owner's. `address` NULL: the address has no limit.
void handshake_start(struct handshakes *h, struct handshake *x, int fd, const struct in6_addr *address);
// Ends a handshake at once, and frees a result that was not taken. No effect on a handshake that was not started or was
// taken.
void handshake_cancel(struct handshakes *h, struct handshake *x);
// Returns the next handshake that has ended, or NULL.
struct handshake *handshakes_take(struct handshakes *h);
// Returns OpenSSL's reason of a HANDSHAKE_FAILED, for logs.
const char *handshake_reason(const struct handshake *x);
