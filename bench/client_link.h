// SPDX-License-Identifier: Apache-2.0
// One connection of a benchmark's client to a server on loopback, plain or with TLS. Nothing blocks: the owner waits on
// an epoll and passes events on. Events are edge-triggered.
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/status.h"

struct client_link {
    int fd; // -1: closed
    SSL *ssl;
    bool up; // connected, including the TLS handshake
};

// Starts to connect, from 127.0.0.`host`. `data` is the data of the connection's events in `epoll_fd`. Does not check
// the server's certificate. `tls` is NULL for a plain connection. Resumes `session` unless it is NULL.
enum status client_link_open(struct client_link *link, int host, int port, SSL_CTX *tls, SSL_SESSION *session,
                             int epoll_fd, void *data);
void client_link_close(struct client_link *link); // resets the connection, so that ports do not run out
// Continues to connect. Sets `up` when the connection is ready.
enum status client_link_rise(struct client_link *link, uint32_t events);
// Returns the number of bytes, 0 if there are none for now, or -1 if the connection has ended.
int client_link_read(struct client_link *link, void *bytes, int size);
// Returns the number of bytes taken, 0 if none are taken for now, or -1 if the connection has ended.
int client_link_write(struct client_link *link, const void *bytes, int size);

enum status client_link_fail(const char *what); // STATUS_UNAVAILABLE with the sentence of errno
