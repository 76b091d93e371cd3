// SPDX-License-Identifier: Apache-2.0
// Connects OpenSSL to a connection by functions of the caller, in place of OpenSSL's own socket functions, which raise
// SIGPIPE. Any thread may call.
#pragma once

#include <openssl/ssl.h>
#include <stdbool.h>

// The functions of one kind of connection. They read and write as BIO_meth_set_read() and BIO_meth_set_write() say, and
// find the connection with BIO_get_data(). `read` sets BIO_FLAGS_IN_EOF when the peer has ended.
struct ssl_bio_kind {
    int (*read)(BIO *bio, char *to, int size);
    int (*write)(BIO *bio, const char *bytes, int size);
    BIO_METHOD *method; // made by the first ssl_bio_attach(); lives as long as the process
};

// Makes `ssl` read and write over `connection`, in place of an earlier connection. Returns false if there is no memory.
bool ssl_bio_attach(struct ssl_bio_kind *kind, SSL *ssl, void *connection);

// Returns the result of a `read` or `write` whose system call returned `n`. `retry` is BIO_FLAGS_READ or
// BIO_FLAGS_WRITE.
int ssl_bio_result(BIO *bio, ssize_t n, int retry);
