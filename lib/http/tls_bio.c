// SPDX-License-Identifier: Apache-2.0
// Connects OpenSSL to the socket of a TLS connection. OpenSSL asks for the 5 bytes of a record's head, then for its
// body, then for the next head. That would take one recv(2) for each part, and a last recv(2) that finds no bytes. Here
// a single recv(2) reads all bytes of the socket.
//
// The bytes go to the loop's buffer, because a turn of a connection usually uses all of them. Bytes left at the end
// of the turn are kept with the connection.
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/base/ssl_bio.h"
#include "lib/http/internal.h"

// Fills the loop's buffer. Returns the number of bytes, 0 if the client has closed its sending side, or -1 if there are
// no bytes or the socket is broken.
static ssize_t fill(struct connection *c)
{
    struct http_loop *loop = c->loop;
    ssize_t n;
    do {
        n = recv(c->fd, loop->tls_in, HTTP_IN_BYTES, 0);
    } while (n < 0 && errno == EINTR);
    // A short read means that the socket is empty. More bytes or a FIN raise a new event.

    c->drained = (n > 0 && n < HTTP_IN_BYTES) || (n < 0 && errno == EAGAIN);
    loop->tls_from = 0;
    loop->tls_to = n > 0 ? (size_t)n : 0;
    return n;
}

static int take_kept(struct connection *c, char *to, size_t size)
{
    size_t kept = http_buffer_size(&c->tls_in), n = size < kept ? size : kept;
    memcpy(to, http_buffer_start(&c->tls_in), n);
    http_buffer_consume(&c->tls_in, n);
    return (int)n;
}

static int take_new(struct http_loop *loop, char *to, size_t size)
{
    size_t left = loop->tls_to - loop->tls_from, n = size < left ? size : left;
    memcpy(to, loop->tls_in + loop->tls_from, n);
    loop->tls_from += n;
    return (int)n;
}

static int bio_read(BIO *bio, char *to, int size)
{
    struct connection *c = BIO_get_data(bio);
    struct http_loop *loop = c->loop;
    BIO_clear_retry_flags(bio);
    if (size <= 0) return 0;
    if (http_buffer_size(&c->tls_in)) return take_kept(c, to, (size_t)size);
    if (loop->tls_from == loop->tls_to && !c->drained) {
        ssize_t n = fill(c);
        if (n == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
        if (n == 0 || (n < 0 && !c->drained)) return (int)n;
    }
    if (loop->tls_from < loop->tls_to) return take_new(loop, to, (size_t)size);
    BIO_set_retry_read(bio);
    return -1;
}

static int bio_write(BIO *bio, const char *bytes, int size)
{
    struct connection *c = BIO_get_data(bio);
    ssize_t n;
    BIO_clear_retry_flags(bio);
    do {
        n = send(c->fd, bytes, (size_t)size, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) BIO_set_retry_write(bio);
    return (int)n;
}

static struct ssl_bio_kind kind = {.read = bio_read, .write = bio_write};

bool tls_bio_attach(struct connection *c)
{
    SSL_clear_mode(c->ssl, SSL_MODE_AUTO_RETRY); // see read_input() in connection.c
    return ssl_bio_attach(&kind, c->ssl, c);
}

bool tls_bio_empty(const struct connection *c)
{
    return c->drained && c->loop->tls_from == c->loop->tls_to && !http_buffer_size(&c->tls_in);
}

void tls_bio_end_turn(struct connection *c)
{
    struct http_loop *loop = c->loop;
    if (c->state != HTTP_CLOSED && c->state != HTTP_LINGER)
        http_buffer_append(&c->tls_in, loop->tls_in + loop->tls_from, loop->tls_to - loop->tls_from);
    loop->tls_from = loop->tls_to = 0;
}
