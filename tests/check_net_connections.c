// SPDX-License-Identifier: Apache-2.0
// net/: the connections of one address and the calls of a connection are bounded, and connections without calls do not
// keep their places.
#include <arpa/inet.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/net/rpc.h"
#include "tests/dead_listener.h"
#include "tests/suite.h"

enum { PER_ADDRESS = 3, TIMEOUT_MS = 60000 };

static const char greeting[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"; // with empty SETTINGS

static struct rpc_server *server;

static void server_open_with(struct rpc_server_options o)
{
    rpc_init();
    o.address = "127.0.0.1:0";
    o.threads = 1;
    ck_assert_msg(rpc_server_open(&o, &server) == STATUS_OK, "%s", status_message());
}

static void server_open(int per_address, int idle_ms)
{
    server_open_with((struct rpc_server_options){.max_connections_per_address = per_address, .idle_ms = idle_ms});
}

static void server_close(void)
{
    rpc_server_close(server, 0);
    rpc_shutdown();
}

// Connects from 127.0.0.`host` and sends the greeting of HTTP/2.
static int connect_from(int host)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = from;
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + (unsigned)host);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)rpc_server_port(server));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    send(fd, greeting, sizeof greeting - 1, MSG_NOSIGNAL); // fails if the server has closed the connection
    return fd;
}

// Returns true if the server answers on the connection, false if it closes it.
static bool is_served(int fd)
{
    char byte;
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    ck_assert_int_eq(poll(&waiting, 1, TIMEOUT_MS), 1);
    return recv(fd, &byte, 1, MSG_PEEK) == 1;
}

// Reads until the server closes the connection.
static bool ends(int fd)
{
    char bytes[4096];
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    while (poll(&waiting, 1, TIMEOUT_MS) == 1)
        if (recv(fd, bytes, sizeof bytes, 0) <= 0) return true;
    return false;
}

START_TEST(an_address_has_a_bounded_number_of_connections)
{
    int fds[PER_ADDRESS];
    server_open(PER_ADDRESS, 0);
    for (int i = 0; i < PER_ADDRESS; i++) {
        fds[i] = connect_from(1);
        ck_assert(is_served(fds[i]));
    }
    int refused = connect_from(1), other = connect_from(2);
    ck_assert(!is_served(refused));
    ck_assert(is_served(other));
    close(refused);
    close(other);
    close(fds[0]); // its place is free when C-core has noticed and the listener has counted
    bool served = false;
    for (int i = 0; i < TIMEOUT_MS / 20 && !served; i++) {
        int again = connect_from(1);
        served = is_served(again);
        close(again);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    ck_assert(served);
    for (int i = 1; i < PER_ADDRESS; i++)
        close(fds[i]);
    server_close();
}
END_TEST

START_TEST(a_port_has_a_bounded_number_of_connections)
{
    int fds[2];
    server_open_with((struct rpc_server_options){.max_connections = 2});
    for (int i = 0; i < 2; i++) {
        fds[i] = connect_from(1);
        ck_assert(is_served(fds[i]));
    }
    int third = connect_from(2);
    ck_assert(!is_served(third));
    close(third);
    for (int i = 0; i < 2; i++)
        close(fds[i]);
    server_close();
}
END_TEST

START_TEST(a_connection_without_calls_is_closed)
{
    server_open(0, 100);
    int fd = connect_from(1);
    ck_assert(is_served(fd));
    ck_assert(ends(fd));
    close(fd);
    server_close();
}
END_TEST

// --- calls through a trusted proxy

static atomic_int n_held;

static void on_held(struct rpc_call *call)
{
    atomic_fetch_add(&n_held, 1);
}

static void on_end_ignored(struct rpc_call *call)
{
}

static void on_message_answered(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    rpc_call_finish(call, STATUS_UNSUPPORTED, "answered");
}

static const struct rpc_method proxied_methods[] = {
    {.path = "/t/Hold", .on_open = on_held, .on_half_close = on_end_ignored},
    {.path = "/t/Answer", .on_message = on_message_answered},
    {0},
};

// A client at an address, after a proxy on this machine.
struct proxied {
    struct rpc_channel *channel;
    struct rpc_stream *held;
};

static struct proxied proxied_open(const char *header, const char *value)
{
    struct proxied p = {0};
    char *target = mem_format("127.0.0.1:%d", rpc_server_port(server));
    ck_assert_int_eq(rpc_channel_open(target, &p.channel), STATUS_OK);
    ck_assert_int_eq(rpc_channel_add_header(p.channel, header, value), STATUS_OK);
    free(target);
    return p;
}

static void proxied_close(struct proxied *p)
{
    rpc_stream_close(p->held);
    rpc_channel_close(p->channel);
}

// Opens a call that stays open.
static struct proxied proxied_hold(const char *header, const char *value)
{
    struct proxied p = proxied_open(header, value);
    int before = atomic_load(&n_held);
    ck_assert_int_eq(rpc_stream_open(p.channel, "/t/Hold", 0, true, &p.held), STATUS_OK);
    for (int i = 0; i < TIMEOUT_MS / 5 && atomic_load(&n_held) == before; i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    ck_assert_int_eq(atomic_load(&n_held), before + 1);
    return p;
}

static enum status proxied_ask(const char *header, const char *value)
{
    struct proxied p = proxied_open(header, value);
    struct rpc_bytes answer;
    enum status status = rpc_unary(p.channel, "/t/Answer", NULL, 0, TIMEOUT_MS, &answer);
    proxied_close(&p);
    return status;
}

START_TEST(each_client_of_a_trusted_proxy_has_its_own_bound)
{
    server_open_with((struct rpc_server_options){
        .methods = proxied_methods, .max_connections_per_address = 2, .trusted_proxies = "127.0.0.1"});
    struct proxied a = proxied_hold("x-forwarded-for", "1.1.1.1"), b = proxied_hold("forwarded", "for=1.1.1.1");
    struct proxied other = proxied_hold("x-forwarded-for", "2.2.2.2");
    ck_assert_int_eq(proxied_ask("x-forwarded-for", "9.9.9.9, 1.1.1.1"), STATUS_EXHAUSTED);
    ck_assert_str_eq(status_message(), "the client's address has its maximum of calls at one time");
    ck_assert_int_eq(proxied_ask("x-forwarded-for", "2.2.2.2"), STATUS_UNSUPPORTED);
    ck_assert_int_eq(proxied_ask("x-forwarded-for", "3.3.3.3"), STATUS_UNSUPPORTED);
    proxied_close(&a);
    enum status status = STATUS_EXHAUSTED;
    for (int i = 0; i < TIMEOUT_MS / 20 && status == STATUS_EXHAUSTED; i++) {
        status = proxied_ask("x-forwarded-for", "1.1.1.1");
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    ck_assert_int_eq(status, STATUS_UNSUPPORTED);
    proxied_close(&b);
    proxied_close(&other);
    server_close();
}
END_TEST

START_TEST(other_peers_cannot_name_an_address)
{
    server_open_with((struct rpc_server_options){
        .methods = proxied_methods, .max_connections_per_address = 2, .trusted_proxies = "10.0.0.0/8"});
    struct proxied calls[3];
    for (int i = 0; i < 3; i++)
        calls[i] = proxied_hold("x-forwarded-for", "1.1.1.1"); // C-core sends them on one connection
    for (int i = 0; i < 3; i++)
        proxied_close(&calls[i]);
    server_close();
}
END_TEST

static void read_all(int fd, unsigned char *bytes, size_t n)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    for (size_t got = 0; got < n;) {
        ck_assert_int_eq(poll(&waiting, 1, TIMEOUT_MS), 1);
        ssize_t more = recv(fd, bytes + got, n - got, 0);
        ck_assert_int_gt(more, 0);
        got += (size_t)more;
    }
}

static unsigned number_of(const unsigned char *bytes, int n)
{
    unsigned number = 0;
    for (int i = 0; i < n; i++)
        number = number << 8 | bytes[i];
    return number;
}

// Returns the stream limit in the server's first frame, SETTINGS, or 0 if it has none.
static unsigned max_streams(int fd)
{
    enum { MAX_CONCURRENT_STREAMS = 3, SETTING_BYTES = 6 };
    unsigned char head[9], settings[1024];
    read_all(fd, head, sizeof head);
    unsigned size = number_of(head, 3);
    ck_assert_uint_eq(head[3], 4);
    ck_assert_uint_le(size, sizeof settings);
    read_all(fd, settings, size);
    for (unsigned i = 0; i + SETTING_BYTES <= size; i += SETTING_BYTES)
        if (number_of(settings + i, 2) == MAX_CONCURRENT_STREAMS) return number_of(settings + i + 2, 4);
    return 0;
}

START_TEST(the_calls_of_a_connection_are_bounded)
{
    server_open_with((struct rpc_server_options){.max_calls = _i ? 7 : 0});
    int fd = connect_from(1);
    ck_assert_uint_eq(max_streams(fd), _i ? 7 : 16384);
    close(fd);
    server_close();
}
END_TEST

static int open_and_get_port(void)
{
    server_open(0, 0);
    return rpc_server_port(server);
}

START_TEST(a_server_without_listener_ends_the_process)
{
    expect_abort_without_listener(open_and_get_port);
}
END_TEST

SUITE("net_connections")
{
    NO_FORK();                                        // gRPC has threads
    TEST(a_server_without_listener_ends_the_process); // first: it forks before gRPC has threads
    TEST(an_address_has_a_bounded_number_of_connections);
    TEST(a_port_has_a_bounded_number_of_connections);
    TEST(a_connection_without_calls_is_closed);
    TEST(each_client_of_a_trusted_proxy_has_its_own_bound);
    TEST(other_peers_cannot_name_an_address);
    LOOP(the_calls_of_a_connection_are_bounded, 0, 2);
}
