// SPDX-License-Identifier: Apache-2.0
#include "engine/join_link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509_vfy.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum { SEND_LIMIT_US = 5000000, IN_BYTES = 4 + JOIN_FRAME_MAX };

void join_link_open(struct join_link *link, int fd, SSL *ssl)
{
    const int on = 1, idle_s = 2, interval_s = 1, probes = 4;
    *link = (struct join_link){.fd = fd, .ssl = ssl, .events = POLLIN};
    link->in = mem_alloc(IN_BYTES);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    if (ssl) SSL_set_fd(ssl, fd);
}

void join_link_close(struct join_link *link)
{
    SSL_free(link->ssl);
    if (link->fd >= 0) close(link->fd);
    free(link->in);
    explicit_bzero(link, sizeof *link);
    link->fd = -1;
}

static enum status tls_failure(const struct join_link *link)
{
    const unsigned long error = ERR_peek_last_error();
    const long verified = SSL_get_verify_result(link->ssl);
    const char *reason =
        verified != X509_V_OK ? X509_verify_cert_error_string(verified) : ERR_reason_error_string(error);
    enum status status = reason ? status_fail(STATUS_UNAVAILABLE, "TLS failed: %s", reason)
                                : status_fail(STATUS_UNAVAILABLE, "the peer ended the connection");
    ERR_clear_error();
    return status;
}

// Judges a call of OpenSSL that returned `result`. Returns OK if the call is to be repeated after poll().
static enum status tls_judge(struct join_link *link, int result)
{
    switch (SSL_get_error(link->ssl, result)) {
    case SSL_ERROR_WANT_READ: link->events = POLLIN; return STATUS_OK;
    case SSL_ERROR_WANT_WRITE: link->events = POLLOUT; return STATUS_OK;
    default: return tls_failure(link);
    }
}

// Reads once. *n_p is 0 if nothing has arrived.
static enum status read_once(struct join_link *link, size_t *n_p)
{
    uint8_t *to = link->in + link->n_in;
    const size_t room = IN_BYTES - link->n_in;
    *n_p = 0;
    if (link->ssl) {
        ERR_clear_error();
        const int n = SSL_read(link->ssl, to, (int)room);
        if (n <= 0) return tls_judge(link, n);
        *n_p = (size_t)n;
        return STATUS_OK;
    }
    const ssize_t n = recv(link->fd, to, room, MSG_DONTWAIT);
    if (n == 0) return status_fail(STATUS_UNAVAILABLE, "the peer ended the connection");
    if (n > 0) *n_p = (size_t)n;
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        return status_fail(STATUS_UNAVAILABLE, "the connection is lost: %s", strerror(errno));
    return STATUS_OK;
}

enum status join_link_read(struct join_link *link)
{
    size_t n = 1;
    link->events = POLLIN;
    while (n && link->n_in < IN_BYTES) {
        TRY(read_once(link, &n));
        link->n_in += n;
    }
    return STATUS_OK;
}

enum status join_link_next(struct join_link *link, struct join_frame *frame_p, bool *whole_p)
{
    uint8_t mac[JOIN_MAC_BYTES];
    memmove(link->in, link->in + link->used_in, link->n_in - link->used_in);
    link->n_in -= link->used_in;
    link->used_in = 0;
    const enum join_reading reading =
        join_frame_read(link->in, link->n_in, link->has_keys ? JOIN_FRAME_MAX : JOIN_GREETING_MAX,
                        link->has_keys ? JOIN_MAC_BYTES : 0, frame_p, &link->used_in);
    *whole_p = reading == JOIN_WHOLE;
    if (reading == JOIN_BAD)
        return status_fail(STATUS_INVALID, "the peer does not speak the protocol of --lead and --join");
    if (reading == JOIN_PARTIAL || !link->has_keys) return STATUS_OK;
    TRY(join_frame_mac(link->receive_key, link->n_received++, frame_p->type,
                       (struct join_bytes){frame_p->payload, frame_p->n}, mac));
    return join_mac_equal(mac, frame_p->mac) ? STATUS_OK
                                             : status_fail(STATUS_UNAUTHENTICATED, "a message of the peer was forged");
}

// Sends once. *n_p is 0 if the socket takes nothing now.
static enum status send_once(struct join_link *link, struct join_bytes rest, size_t *n_p)
{
    *n_p = 0;
    if (link->ssl) {
        ERR_clear_error();
        const int n = SSL_write(link->ssl, rest.bytes, (int)rest.n);
        if (n <= 0) return tls_judge(link, n);
        *n_p = (size_t)n;
        return STATUS_OK;
    }
    link->events = POLLOUT;
    const ssize_t n = send(link->fd, rest.bytes, rest.n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) *n_p = (size_t)n;
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        return status_fail(STATUS_UNAVAILABLE, "the connection is lost: %s", strerror(errno));
    return STATUS_OK;
}

static enum status send_all(struct join_link *link, struct join_bytes rest)
{
    const int64_t end_us = clock_now_us() + SEND_LIMIT_US;
    while (rest.n) {
        size_t n;
        TRY(send_once(link, rest, &n));
        rest = (struct join_bytes){rest.bytes + n, rest.n - n};
        if (n) continue;
        const int64_t left_us = end_us - clock_now_us();
        struct pollfd fd = {.fd = link->fd, .events = link->events};
        if (left_us <= 0) return status_fail(STATUS_UNAVAILABLE, "the peer takes no bytes");
        poll(&fd, 1, (int)(left_us / 1000) + 1);
    }
    link->events = POLLIN;
    return STATUS_OK;
}

enum status join_link_send(struct join_link *link, enum join_type type, struct join_bytes payload)
{
    const size_t mac_bytes = link->has_keys ? JOIN_MAC_BYTES : 0;
    const size_t size = JOIN_HEAD_BYTES + payload.n + mac_bytes;
    if (size - 4 > JOIN_FRAME_MAX)
        return status_fail(STATUS_INVALID, "a message of %zu bytes: must have at most %d", payload.n, JOIN_FRAME_MAX);
    uint8_t *frame = mem_alloc(size);
    join_head_write(frame, type, payload.n, mac_bytes);
    if (payload.n) memcpy(frame + JOIN_HEAD_BYTES, payload.bytes, payload.n);
    enum status status = STATUS_OK;
    if (mac_bytes) status = join_frame_mac(link->send_key, link->n_sent++, type, payload, frame + size - mac_bytes);
    if (status == STATUS_OK) status = send_all(link, (struct join_bytes){frame, size});
    free(frame);
    return status;
}

enum status join_link_keys(const struct join_link *link, const char *token, struct join_bytes follower_hello,
                           struct join_bytes leader_hello, struct join_keys *keys_p)
{
    static const char label[] = "EXPORTER-forepack-join";
    uint8_t session[JOIN_MAC_BYTES] = {0};
    if (link->ssl &&
        SSL_export_keying_material(link->ssl, session, sizeof session, label, sizeof label - 1, NULL, 0, 0) != 1)
        return tls_failure(link);
    return join_keys_derive(token, follower_hello, leader_hello, session, keys_p);
}

void join_link_use_keys(struct join_link *link, const uint8_t send_key[JOIN_MAC_BYTES],
                        const uint8_t receive_key[JOIN_MAC_BYTES])
{
    memcpy(link->send_key, send_key, JOIN_MAC_BYTES);
    memcpy(link->receive_key, receive_key, JOIN_MAC_BYTES);
    link->has_keys = true;
}
