// SPDX-License-Identifier: Apache-2.0
#include "bench/client_link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum status client_link_fail(const char *what)
{
    return status_fail(STATUS_UNAVAILABLE, "the benchmark's client: %s: %s", what, strerror(errno));
}

void client_link_close(struct client_link *l)
{
    if (l->fd < 0) return;
    if (l->ssl) {
        SSL_set_shutdown(l->ssl, SSL_SENT_SHUTDOWN); // otherwise OpenSSL does not resume the session
        SSL_free(l->ssl);
    }
    // A reset leaves no TIME_WAIT, so ports do not run out.
    const struct linger abort_now = {.l_onoff = 1};
    setsockopt(l->fd, SOL_SOCKET, SO_LINGER, &abort_now, sizeof abort_now);
    close(l->fd);
    *l = (struct client_link){.fd = -1};
}

enum status client_link_open(struct client_link *l, int host, int port, SSL_CTX *tls, SSL_SESSION *session,
                             int epoll_fd, void *data)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const struct sockaddr_in from = {.sin_family = AF_INET,
                                     .sin_addr = {htonl((INADDR_LOOPBACK & 0xffffff00) | (uint32_t)host)}};
    const int one = 1;
    *l = (struct client_link){.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (l->fd < 0) return client_link_fail("socket");
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(l->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one); // connect() chooses the port
    if (bind(l->fd, (const struct sockaddr *)&from, sizeof from) != 0) return client_link_fail("bind");
    if (connect(l->fd, (struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS)
        return client_link_fail("connect");
    if (tls) {
        l->ssl = SSL_new(tls);
        SSL_set_fd(l->ssl, l->fd);
        SSL_set_connect_state(l->ssl);
        if (session) SSL_set_session(l->ssl, session);
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = data};
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, l->fd, &event) == 0 ? STATUS_OK : client_link_fail("epoll");
}

// Returns 0 if OpenSSL waits for the socket, else -1.
static int tls_wait(const SSL *ssl, int result)
{
    int error = SSL_get_error(ssl, result);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

enum status client_link_rise(struct client_link *l, uint32_t events)
{
    bool connected = l->ssl || (events & EPOLLOUT);
    if (l->up || !connected) return STATUS_OK;
    if (l->ssl) {
        ERR_clear_error();
        int n = SSL_do_handshake(l->ssl);
        if (n != 1) return tls_wait(l->ssl, n) == 0 ? STATUS_OK : client_link_fail("TLS handshake");
    }
    l->up = true;
    return STATUS_OK;
}

int client_link_read(struct client_link *l, void *bytes, int size)
{
    if (l->ssl) {
        ERR_clear_error();
        int n = SSL_read(l->ssl, bytes, size);
        return n > 0 ? n : tls_wait(l->ssl, n);
    }
    ssize_t n = recv(l->fd, bytes, (size_t)size, 0);
    if (n > 0) return (int)n;
    return n < 0 && errno == EAGAIN ? 0 : -1;
}

int client_link_write(struct client_link *l, const void *bytes, int size)
{
    if (l->ssl) {
        ERR_clear_error();
        int n = SSL_write(l->ssl, bytes, size);
        return n > 0 ? n : tls_wait(l->ssl, n);
    }
    ssize_t n = send(l->fd, bytes, (size_t)size, MSG_NOSIGNAL);
    if (n >= 0) return (int)n;
    return errno == EAGAIN ? 0 : -1;
}
