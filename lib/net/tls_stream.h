// SPDX-License-Identifier: Apache-2.0
// A server's TLS connection over a non-blocking socket, after its handshake: name of the client, and functions that
// read and write like recvmsg() and sendmsg(). Private to net/. One thread at a time.
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>
#include <sys/uio.h>

// Returns the SPIFFE id of the client's verified certificate, or else its common name. The caller frees it. NULL: the
// client showed no certificate.
char *net_tls_peer_name(const SSL *ssl);

struct net_tls_stream {
    SSL *ssl;       // owned; NULL: plain text
    int fd;         // the socket
    bool paused;    // reads take nothing from the socket, only records that OpenSSL has already
    bool drained;   // the last read emptied the socket; further bytes raise a new event
    int n_records;  // records received since the client's last data bytes
    bool half_sent; // OpenSSL keeps a record that the socket has not taken whole
};

// Takes ownership of `ssl`, which must have finished its handshake; NULL means a connection without TLS. The stream
// must not move in memory afterwards. Returns false, without effect, if there is no memory.
bool net_tls_stream_init(struct net_tls_stream *stream, SSL *ssl, int fd);
void net_tls_stream_fini(struct net_tls_stream *stream);
// From now on, reads one or more whole records per system call. Earlier, OpenSSL keeps no bytes of a record that it has
// not returned, so every byte that is left raises an event of the socket.
void net_tls_stream_read_ahead(struct net_tls_stream *stream);
// Returns the number of bytes read, 0 if the client sends no more, or -1 with errno set.
ssize_t net_tls_stream_read(struct net_tls_stream *stream, const struct iovec *parts, size_t n_parts);
// Returns true if, after a read, no bytes are left until the socket's next event.
bool net_tls_stream_is_drained(const struct net_tls_stream *stream);
ssize_t net_tls_stream_write(struct net_tls_stream *stream, const struct iovec *parts, size_t n_parts);
// Writes the last bytes of the connection. Writes nothing if a record is half sent, because OpenSSL would take the
// bytes for the rest of that record.
void net_tls_stream_write_last(struct net_tls_stream *stream, const void *bytes, size_t size);
