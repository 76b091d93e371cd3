// SPDX-License-Identifier: Apache-2.0
// net/: the TLS connection of one socket, without a server. The client is OpenSSL in the same thread.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/tls_server.h"
#include "lib/net/socket.h"
#include "lib/net/tls_stream.h"
#include "tests/certificates.h"
#include "tests/suite.h"

static char folder[] = "/tmp/check_net_tls_stream.XXXXXX", cert[64], key[64];

static void make_certificate(void)
{
    struct identity id = identity_create("server", NULL);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(cert, sizeof cert, "%s/cert.pem", folder);
    snprintf(key, sizeof key, "%s/key.pem", folder);
    identity_write_cert(&id, cert);
    identity_write_key(&id, key, NULL);
    identity_free(&id);
}

static void remove_certificate(void)
{
    unlink(cert);
    unlink(key);
    rmdir(folder);
}

struct pair {
    struct tls_server *tls;
    SSL_CTX *context;
    SSL *server, *client;
    int server_fd, client_fd;
};

static void pair_connect(struct pair *p)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, size), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    p->client_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(p->client_fd, (struct sockaddr *)&address, size), 0);
    p->server_fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    ck_assert_int_ge(p->server_fd, 0);
    fcntl(p->client_fd, F_SETFL, O_NONBLOCK);
    close(listener);
}

static struct pair pair_open(void)
{
    struct pair p = {.context = SSL_CTX_new(TLS_client_method())};
    const struct tls_server_options o = {.cert = cert, .key = key, .protocol = "\x02h2"};
    ck_assert_int_eq(tls_server_open(&o, &p.tls), STATUS_OK);
    pair_connect(&p);
    p.server = tls_server_accept(p.tls);
    SSL_set_fd(p.server, p.server_fd);
    p.client = SSL_new(p.context);
    SSL_set_fd(p.client, p.client_fd);
    for (bool client = false, server = false; !client || !server;) {
        client = SSL_connect(p.client) == 1;
        server = SSL_accept(p.server) == 1;
    }
    return p;
}

// Frees the client. The test has freed the server's side.
static void pair_close(struct pair *p)
{
    SSL_free(p->client);
    SSL_CTX_free(p->context);
    close(p->client_fd);
    tls_server_free(p->tls);
}

// Reads what the server has sent, and returns the number of bytes. Each must be `letter`.
static size_t client_drain(struct pair *p, char letter)
{
    char bytes[4096];
    size_t n = 0;
    for (int more; (more = SSL_read(p->client, bytes, sizeof bytes)) > 0; n += (size_t)more)
        for (int i = 0; i < more; i++)
            ck_assert_int_eq(bytes[i], letter);
    return n;
}

START_TEST(last_bytes_do_not_continue_a_half_sent_record)
{
    struct pair p = pair_open();
    struct net_tls_stream stream;
    size_t sent = 0, received = 0;
    ck_assert(net_tls_stream_init(&stream, p.server, p.server_fd));
    const struct iovec part = {"dddd", 4};
    for (ssize_t n; (n = net_tls_stream_write(&stream, &part, 1)) > 0;)
        sent += (size_t)n;
    ck_assert_int_eq(errno, EAGAIN);
    received = client_drain(&p, 'd'); // now the socket has room
    net_tls_stream_write_last(&stream, "goodbye", 7);
    shutdown(p.server_fd, SHUT_WR);
    while (SSL_get_error(p.client, -1) == SSL_ERROR_WANT_READ)
        received += client_drain(&p, 'd');
    ck_assert_uint_eq(received, sent);
    net_tls_stream_fini(&stream);
    close(p.server_fd);
    pair_close(&p);
}
END_TEST

// `_i`: the end of the connection arrives with the last bytes, and so raises no further event.
START_TEST(bytes_with_an_end_leave_the_socket_readable)
{
    struct pair p = pair_open();
    struct net_tls_stream stream;
    char bytes[100];
    const struct iovec part = {bytes, sizeof bytes};
    struct pollfd arrived = {.fd = p.server_fd, .events = _i ? POLLRDHUP : POLLIN};
    ck_assert(net_tls_stream_init(&stream, p.server, p.server_fd));
    net_tls_stream_read_ahead(&stream);
    ck_assert_int_eq(SSL_write(p.client, "ab", 2), 2);
    if (_i) shutdown(p.client_fd, SHUT_WR);
    ck_assert_int_eq(poll(&arrived, 1, 20000), 1);
    ck_assert_int_eq(net_tls_stream_read(&stream, &part, 1), 2);
    ck_assert_int_eq(net_tls_stream_is_drained(&stream), !_i);
    if (_i) ck_assert_int_eq(net_tls_stream_read(&stream, &part, 1), 0);
    net_tls_stream_fini(&stream);
    close(p.server_fd);
    pair_close(&p);
}
END_TEST

START_TEST(reports_of_the_system_are_not_bytes_of_the_client)
{
    static const struct net_sockets_options options = {.limits = {.max_calls = 1, .max_empty = 10}};
    struct sockaddr_in6 address = {.sin6_family = AF_INET6};
    struct pair p = pair_open();
    struct net_sockets *sockets = net_sockets_create(&options);
    char bytes[100];
    struct iovec part = {bytes, sizeof bytes};
    ck_assert_ptr_nonnull(net_socket_open(sockets, p.server_fd, p.server, &address));
    ck_assert_int_eq(SSL_write(p.client, "PRI * HTTP/2.0\r\n", 16), 16);
    ck_assert_int_eq(recvmsg(p.server_fd, &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, MSG_ERRQUEUE), -1);
    ck_assert_int_eq(errno, EAGAIN);
    ssize_t n;
    do
        n = recvmsg(p.server_fd, &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, 0);
    while (n < 0 && errno == EAGAIN);
    ck_assert_int_eq(n, 16);
    close(p.server_fd);
    net_sockets_unref(sockets);
    pair_close(&p);
}
END_TEST

SUITE("net_tls_stream")
{
    signal(SIGPIPE, SIG_IGN);
    FIXTURE_ONCE(make_certificate, remove_certificate);
    TEST(last_bytes_do_not_continue_a_half_sent_record);
    LOOP(bytes_with_an_end_leave_the_socket_readable, 0, 2);
    TEST(reports_of_the_system_are_not_bytes_of_the_client);
}
