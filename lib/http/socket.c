// SPDX-License-Identifier: Apache-2.0
// Reads and writes a connection, in plain text or with TLS.
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/http/internal.h"

static ssize_t read_plain(struct connection *c, char *bytes, size_t size)
{
    for (;;) {
        ssize_t n = recv(c->fd, bytes, size, 0);
        // A short read means that the socket is empty. More bytes or a FIN raise a new event.
        if (n >= 0) {
            c->readable = (size_t)n == size;
            return n;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return HTTP_BROKEN;
        c->readable = false;
        return HTTP_AGAIN;
    }
}

static ssize_t write_plain(struct connection *c, const char *bytes, size_t size)
{
    for (;;) {
        ssize_t n = send(c->fd, bytes, size, MSG_NOSIGNAL);
        if (n >= 0) return n;
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return HTTP_BROKEN;
        c->writable = false;
        return HTTP_AGAIN;
    }
}

// Records which socket event a failed TLS call waits for. Returns HTTP_AGAIN, HTTP_BROKEN, or 0 at the end of input.
static int tls_result(struct connection *c, int result)
{
    switch (SSL_get_error(c->ssl, result)) {
    case SSL_ERROR_WANT_READ: c->readable = false; return HTTP_AGAIN;
    case SSL_ERROR_WANT_WRITE: c->writable = false; return HTTP_AGAIN;
    case SSL_ERROR_ZERO_RETURN: return 0;
    default: return HTTP_BROKEN;
    }
}

ssize_t socket_read(struct connection *c, char *bytes, size_t size)
{
    if (!c->ssl || c->state == HTTP_LINGER) return read_plain(c, bytes, size);
    ERR_clear_error();
    int n = SSL_read(c->ssl, bytes, (int)size);
    c->read_awaits_room = SSL_want_write(c->ssl);
    if (n <= 0) {
        int result = tls_result(c, n);
        // The record had no data (SSL_MODE_AUTO_RETRY is off), but more records may follow.
        if (result == HTTP_AGAIN && !c->read_awaits_room) c->readable = !tls_bio_empty(c);
        return result;
    }
    c->readable = !tls_bio_empty(c) || SSL_has_pending(c->ssl);
    return n;
}

ssize_t socket_write(struct connection *c, const char *bytes, size_t size)
{
    if (!c->ssl) return write_plain(c, bytes, size);
    ERR_clear_error();
    int n = SSL_write(c->ssl, bytes, size > INT_MAX ? INT_MAX : (int)size);
    c->write_awaits_bytes = SSL_want_read(c->ssl);
    if (n > 0) return n;
    int result = tls_result(c, n);
    return result == 0 ? HTTP_BROKEN : result;
}

void socket_refuse_handshake(struct connection *c)
{
    log_event(LOG_DEBUG, "http_handshake_failed", LOG_FIELD("reason", handshake_reason(&c->handshake)));
    if (ERR_GET_REASON(c->handshake.error) != SSL_R_HTTP_REQUEST) return;
    static const char text[] = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 37\r\n"
                               "Connection: close\r\n\r\nthis port requires TLS: use https://\r\n";
    ssize_t sent = send(c->fd, text, sizeof text - 2, MSG_NOSIGNAL);
    (void)sent; // the connection ends either way
}

void socket_shutdown(struct connection *c)
{
    if (c->ssl) {
        ERR_clear_error();
        SSL_shutdown(c->ssl);
    }
    shutdown(c->fd, SHUT_WR);
}

void socket_close(struct connection *c, bool reset)
{
    if (c->ssl) SSL_free(c->ssl);
    c->ssl = NULL;
    // The reset keeps the kernel from sending the bytes that the client has not read yet.
    const struct linger abort_now = {.l_onoff = 1};
    if (reset) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &abort_now, sizeof abort_now);
    close(c->fd);
}
