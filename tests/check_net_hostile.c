// SPDX-License-Identifier: Apache-2.0
// Tests net/ with clients on raw sockets that acknowledge nothing. Each limit is checked just below and just above it,
// in plain text and with TLS. Memory held for clients stays within its budgets, and other clients are served meanwhile.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/address_counts.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/peer_budget.h"
#include "lib/net/server.h"
#include "lib/net/socket.h"
#include "tests/suite.h"

enum { TIMEOUT_MS = 60000, CALLS = 5, BLOCK_BYTES = 16384, CALL_BYTES = 8192, HEADERS_MAX = 128 };
enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION };
enum { END_STREAM = 1, END_HEADERS = 4 };

static char folder[] = "/tmp/forepack-hostile-XXXXXX";
static struct rpc_server *server;
static SSL_CTX *context;     // of the clients; NULL: plain text
static int max_shared_calls; // of the next server; 0: the default

// --- the server

static void answer(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    rpc_call_send(call, bytes, size);
    rpc_call_finish(call, STATUS_OK, NULL);
}

static void ignore(struct rpc_call *call)
{
}

static enum status authorise(struct rpc_call *call)
{
    const char *key = rpc_call_metadata(call, "authorization");
    return key && strcmp(key, "Bearer k") == 0 ? STATUS_OK : status_fail(STATUS_UNAUTHENTICATED, "no key");
}

static const struct rpc_method methods[] = {
    {"/t/Echo", .on_message = answer}, {"/t/Wait", .on_half_close = ignore}, {0}};

static void server_open_with(bool tls, bool proof, int per_address)
{
    char *cert = mem_format("%s/server.pem", folder), *key = mem_format("%s/server.key", folder);
    const struct rpc_tls files = {cert, key, NULL};
    rpc_init();
    ck_assert_msg(rpc_server_open(&(struct rpc_server_options){.address = "127.0.0.1:0",
                                                               .methods = methods,
                                                               .tls = tls ? &files : NULL,
                                                               .authorise = proof ? authorise : NULL,
                                                               .proof = proof,
                                                               .max_calls = CALLS,
                                                               .max_shared_calls = max_shared_calls,
                                                               .max_connections_per_address = per_address,
                                                               .threads = 1},
                                  &server) == STATUS_OK,
                  "%s", status_message());
    if (tls) {
        context = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_alpn_protos(context, (const unsigned char *)"\x02h2", 3);
    }
    free(cert);
    free(key);
}

static void server_open(bool tls, bool proof)
{
    server_open_with(tls, proof, 0);
}

static void server_close(void)
{
    rpc_server_close(server, 0);
    SSL_CTX_free(context);
    context = NULL;
    rpc_shutdown();
}

// --- a client

struct client {
    int fd;
    SSL *ssl;
};

static bool client_write(struct client *c, const void *bytes, size_t size)
{
    if (c->ssl) return SSL_write(c->ssl, bytes, (int)size) == (int)size;
    return send(c->fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size;
}

// Connects from 127.0.0.`host` and returns the socket.
static int connect_from(int host)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + (unsigned)host);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)rpc_server_port(server));
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

static SSL *ssl_open(int fd)
{
    SSL *ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    return ssl;
}

static const char greeting[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"; // with empty SETTINGS

// Connects, with a handshake on a port with TLS, and sends nothing else.
static struct client client_connect(void)
{
    struct client c = {.fd = connect_from(1)};
    if (context) {
        c.ssl = ssl_open(c.fd);
        ck_assert_int_eq(SSL_connect(c.ssl), 1);
    }
    return c;
}

static struct client client_open(void)
{
    struct client c = client_connect();
    ck_assert(client_write(&c, greeting, sizeof greeting - 1));
    return c;
}

static void client_close(struct client *c)
{
    SSL_free(c->ssl);
    close(c->fd);
}

static ssize_t client_read(struct client *c, char *bytes, size_t size)
{
    struct pollfd waiting = {.fd = c->fd, .events = POLLIN};
    if (!c->ssl || !SSL_pending(c->ssl)) ck_assert_int_eq(poll(&waiting, 1, TIMEOUT_MS), 1);
    return c->ssl ? SSL_read(c->ssl, bytes, (int)size) : recv(c->fd, bytes, size, 0);
}

// Reads until the bytes of `text` arrive.
static void client_await(struct client *c, const char *text, size_t size)
{
    char bytes[4096];
    size_t n = 0;
    while (!memmem(bytes, n, text, size)) {
        ssize_t more = client_read(c, bytes + n, sizeof bytes - n);
        ck_assert_int_gt(more, 0);
        n += (size_t)more;
    }
}

// Reads until the server closes the connection. Returns true if its last frame is GOAWAY with `text`.
static bool ends_with(struct client *c, const char *text)
{
    static char bytes[1 << 20];
    size_t n = 0;
    for (ssize_t more; (more = client_read(c, bytes + n, sizeof bytes - n)) > 0;)
        n += (size_t)more;
    return n >= strlen(text) && memcmp(bytes + n - strlen(text), text, strlen(text)) == 0;
}

// Sends a ping and returns true if the server answers. The answer shows that it has read everything sent before.
static bool is_served(struct client *c)
{
    static char bytes[1 << 20];
    size_t n = 0;
    if (!client_write(c, "\0\0\x08\6\0\0\0\0\0pingpong", 17)) return false;
    for (ssize_t more; (more = client_read(c, bytes + n, sizeof bytes - n)) > 0;) {
        n += (size_t)more;
        if (memmem(bytes, n, "\6\1\0\0\0\0pingpong", 14)) return true;
    }
    return false;
}

static size_t frame_write(uint8_t *to, int type, int flags, uint32_t id, const void *payload, size_t size)
{
    const uint8_t head[9] = {(uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size,
                             (uint8_t)type,         (uint8_t)flags,       (uint8_t)(id >> 24),
                             (uint8_t)(id >> 16),   (uint8_t)(id >> 8),   (uint8_t)id};
    memcpy(to, head, sizeof head);
    if (size) memcpy(to + sizeof head, payload, size);
    return sizeof head + size;
}

static bool frame(struct client *c, int type, int flags, uint32_t id, const void *payload, size_t size)
{
    uint8_t bytes[9 + 16384];
    return client_write(c, bytes, frame_write(bytes, type, flags, id, payload, size));
}

// --- header blocks

struct block {
    uint8_t bytes[70000];
    size_t size, decoded;
};

static void block_add(struct block *b, const char *name, size_t value_size, const char *value)
{
    size_t n = strlen(name);
    b->bytes[b->size++] = 0; // literal, not indexed
    b->bytes[b->size++] = (uint8_t)n;
    memcpy(b->bytes + b->size, name, n);
    b->size += n;
    b->bytes[b->size++] = value_size < 127 ? (uint8_t)value_size : 127;
    for (size_t rest = value_size - 127; value_size >= 127; rest >>= 7) {
        b->bytes[b->size++] = (uint8_t)(rest & 127) | (rest > 127 ? 128 : 0);
        if (rest <= 127) break;
    }
    if (value)
        memcpy(b->bytes + b->size, value, value_size);
    else
        memset(b->bytes + b->size, 'v', value_size);
    b->size += value_size;
    b->decoded += n + value_size + 32;
}

static struct block block_of(const char *path)
{
    static const char *const texts[][2] = {{":method", "POST"},
                                           {":scheme", "http"},
                                           {":authority", "x"},
                                           {"te", "trailers"},
                                           {"content-type", "application/grpc"}};
    struct block b = {.size = 0};
    block_add(&b, ":path", strlen(path), path);
    for (int i = 0; i < 5; i++)
        block_add(&b, texts[i][0], strlen(texts[i][1]), texts[i][1]);
    return b;
}

static bool block_send(struct client *c, const struct block *b, uint32_t id)
{
    bool written = true;
    for (size_t at = 0; at < b->size && written; at += 16000) {
        size_t n = b->size - at < 16000 ? b->size - at : 16000;
        written = frame(c, at ? CONTINUATION : HEADERS, at + n == b->size ? END_HEADERS : 0, id, b->bytes + at, n);
    }
    return written;
}

static void call_open(struct client *c, const char *path, uint32_t id)
{
    struct block b = block_of(path);
    ck_assert(block_send(c, &b, id));
}

// --- limits

static void expect_end(struct client *c, const char *text)
{
    ck_assert(ends_with(c, text));
    client_close(c);
}

// C-core greets with SETTINGS that are not empty, so an empty SETTINGS frame shows that C-core never had the
// connection.
START_TEST(a_connection_in_its_first_header_block_does_not_reach_c_core)
{
    static const char sentence[] = "a frame is malformed";
    char answer[512];
    size_t n = 0;
    server_open(_i, false);
    struct client c = client_connect(), later;
    struct block b = block_of("/t/Wait");
    uint8_t first[1024]; // one write, because C-core may have a connection whose SETTINGS are complete
    memcpy(first, greeting, sizeof greeting - 1);
    size_t n_first = sizeof greeting - 1;
    n_first += frame_write(first + n_first, HEADERS, 0, 1, b.bytes, b.size);
    ck_assert(client_write(&c, first, n_first));
    later = client_open(); // C-core serves it after connections that it got earlier
    ck_assert(is_served(&later));
    ck_assert(frame(&c, PUSH_PROMISE, 0, 1, NULL, 0));
    for (ssize_t more; (more = client_read(&c, answer + n, sizeof answer - n)) > 0;)
        n += (size_t)more;
    ck_assert_uint_eq(n, 9 + 9 + 8 + sizeof sentence - 1); // SETTINGS and GOAWAY
    ck_assert_mem_eq(answer, "\0\0\0\4\0\0\0\0\0", 9);
    ck_assert_mem_eq(answer + n - (sizeof sentence - 1), sentence, sizeof sentence - 1);
    client_close(&later);
    client_close(&c);
    server_close();
}
END_TEST

START_TEST(first_bytes_may_arrive_one_by_one)
{
    server_open(_i, false);
    struct client c = client_connect();
    struct block b = block_of("/t/Echo");
    const uint8_t head[9] = {0, 0, (uint8_t)b.size, HEADERS, END_HEADERS, 0, 0, 0, 1};
    for (size_t i = 0; i < sizeof greeting - 1; i++)
        ck_assert(client_write(&c, greeting + i, 1));
    for (size_t i = 0; i < sizeof head; i++)
        ck_assert(client_write(&c, head + i, 1));
    for (size_t i = 0; i < b.size; i++)
        ck_assert(client_write(&c, b.bytes + i, 1));
    ck_assert(frame(&c, DATA, END_STREAM, 1, "\0\0\0\0\5hello", 10));
    client_await(&c, "\0\0\0\0\5hello", 10);
    client_close(&c);
    server_close();
}
END_TEST

// Sends more first bytes than the listener reads at once: calls that echo messages, whose windows have room for all.
START_TEST(first_bytes_may_be_many)
{
    enum { MESSAGE_BYTES = 15000, N = 4 }; // C-core's window for a connection has 65,535 bytes at the start
    static uint8_t bytes[70000], message[5 + MESSAGE_BYTES] = {0, 0, 0, MESSAGE_BYTES >> 8, MESSAGE_BYTES & 255};
    struct block b = block_of("/t/Echo"), large = block_of("/t/Wait");
    size_t n = sizeof greeting - 1;
    block_add(&large, "x", 6000, NULL);
    memcpy(bytes, greeting, n);
    n += frame_write(bytes + n, HEADERS, END_HEADERS, 1, large.bytes, large.size);
    for (uint32_t id = 3; id < 3 + 2 * N; id += 2) {
        n += frame_write(bytes + n, HEADERS, END_HEADERS, id, b.bytes, b.size);
        n += frame_write(bytes + n, DATA, END_STREAM, id, message, sizeof message);
    }
    ck_assert_uint_gt(n, 65536);
    server_open(_i, false);
    struct client c = client_connect();
    ck_assert(client_write(&c, bytes, n));
    ck_assert(is_served(&c));
    client_close(&c);
    server_close();
}
END_TEST

START_TEST(header_blocks_are_bounded)
{
    server_open(_i, false);
    for (size_t more = 0; more < 2; more++) {
        struct client c = client_open();
        struct block b = block_of("/t/Wait");
        block_add(&b, "x", BLOCK_BYTES - b.decoded - 33 + more, NULL);
        bool sent = block_send(&c, &b, 1); // the server may close the connection before all is sent
        if (!more) ck_assert(sent);
        if (more)
            expect_end(&c, "the headers of a call are too large");
        else
            ck_assert(is_served(&c));
        if (!more) client_close(&c);
    }
    server_close();
}
END_TEST

// Expects that a call above the limit is refused and its connection continues. C-core does not count the pseudo-headers
// here, nor "te" and "content-type".
START_TEST(metadata_of_a_call_is_bounded)
{
    server_open(_i, false);
    struct client c = client_open();
    for (uint32_t more = 0; more < 2; more++) {
        struct block b = block_of("/t/Echo");
        block_add(&b, "x", CALL_BYTES - 33 + more, NULL);
        ck_assert(block_send(&c, &b, 1 + 2 * more));
        if (!more) ck_assert(frame(&c, DATA, END_STREAM, 1, "\0\0\0\0\5hello", 10));
        client_await(&c, more ? "the metadata of a call has at most 8 KiB" : "\0\0\0\0\5hello", more ? 40 : 10);
    }
    ck_assert(is_served(&c));
    client_close(&c);
    server_close();
}
END_TEST

// Begins a header block and expects that it may stay unfinished for NET_UNFINISHED_US, and not longer. `first`: these
// are the connection's first headers, which C-core has not got yet.
static void expect_time_of_headers(bool first)
{
    int64_t begin_us = clock_now_us(); // before the connection, whose first bytes have a time too
    struct client c = client_open();
    struct block b = block_of("/t/Wait");
    struct pollfd end = {.fd = c.fd, .events = POLLIN};
    if (!first) ck_assert(is_served(&c));
    for (int late = 0; late < 2; late++) {
        ck_assert(frame(&c, HEADERS, 0, late ? 3 : 1, b.bytes, b.size));
        if (late) break;
        net_sockets_expire(server->sockets, begin_us + NET_UNFINISHED_US);
        ck_assert(frame(&c, CONTINUATION, END_HEADERS, 1, NULL, 0));
        ck_assert(is_served(&c));
        net_sockets_expire(server->sockets, begin_us + 2 * NET_UNFINISHED_US); // nothing is unfinished
        ck_assert(is_served(&c));
    }
    do // until the server has received the block
        net_sockets_expire(server->sockets, clock_now_us() + NET_UNFINISHED_US + 1);
    while (poll(&end, 1, 1) == 0);
    char byte;
    ck_assert_int_le(client_read(&c, &byte, 1), 0);
    client_close(&c);
}

START_TEST(unfinished_headers_have_a_time)
{
    server_open(_i, false);
    expect_time_of_headers(true);
    expect_time_of_headers(false);
    server_close();
}
END_TEST

START_TEST(the_number_of_headers_is_bounded)
{
    server_open(_i, false);
    for (int more = 0; more < 2; more++) {
        struct client c = client_open();
        struct block b = block_of("/t/Wait");
        for (int i = 6; i < HEADERS_MAX + more; i++)
            block_add(&b, "x", 1, NULL);
        ck_assert(block_send(&c, &b, 1));
        if (more) {
            expect_end(&c, "a call has too many headers");
        } else {
            ck_assert(is_served(&c));
            client_close(&c);
        }
    }
    server_close();
}
END_TEST

START_TEST(concurrent_calls_are_bounded)
{
    server_open(_i, false);
    struct client c = client_open();
    for (uint32_t i = 0; i < CALLS; i++)
        call_open(&c, "/t/Wait", 2 * i + 1);
    ck_assert(is_served(&c));
    frame(&c, RST_STREAM, 0, 1, "\0\0\0\x08", 4);
    call_open(&c, "/t/Wait", 101);
    ck_assert(is_served(&c));
    call_open(&c, "/t/Wait", 103);
    expect_end(&c, "it has too many open calls");
    server_close();
}
END_TEST

START_TEST(calls_one_after_another_are_not_bounded)
{
    server_open(_i, false);
    struct client c = client_open();
    for (uint32_t i = 0; i < 20 * CALLS; i++) {
        call_open(&c, "/t/Echo", 2 * i + 1);
        ck_assert(frame(&c, DATA, END_STREAM, 2 * i + 1, "\0\0\0\0\5hello", 10));
        client_await(&c, "\0\0\0\0\5hello", 10);
        ck_assert(is_served(&c));
    }
    client_close(&c);
    server_close();
}
END_TEST

static void await_delays(uint64_t n)
{
    while (rpc_connections_delayed() < n)
        sched_yield();
}

static bool has_bytes(const struct client *c)
{
    return poll(&(struct pollfd){.fd = c->fd, .events = POLLIN}, 1, 0) == 1;
}

// Sends pings until the server delays the connection. It may read the first ping together with earlier bytes.
static void expect_delay(struct client *c, uint64_t before)
{
    while (rpc_connections_delayed() == before) {
        ck_assert(client_write(c, "\0\0\x08\6\0\0\0\0\0pingpong", 17));
        while (rpc_connections_delayed() == before && !has_bytes(c))
            sched_yield();
        if (rpc_connections_delayed() == before) client_await(c, "\6\1\0\0\0\0pingpong", 14);
    }
}

// Four calls of a connection are free. The fifth call costs 3, and all connections together have 2 in 2 s.
START_TEST(calls_without_an_answer_share_a_budget)
{
    uint64_t before = rpc_connections_delayed();
    max_shared_calls = 2;
    server_open(_i, false);
    max_shared_calls = 0;
    struct client c = client_open(), first, ended, other = client_open();
    ck_assert(is_served(&other)); // its answers have arrived
    for (uint32_t i = 0; i < 4; i++)
        call_open(&c, "/t/Wait", 2 * i + 1);
    ck_assert(is_served(&c));
    ck_assert_uint_eq(rpc_connections_delayed(), before);
    struct block b = block_of("/t/Wait"), small = block_of("/t/Wait");
    block_add(&b, "x", 2048, NULL);
    ck_assert(block_send(&c, &b, 9));
    expect_delay(&c, before);

    // Five calls in a connection's first bytes wait, too.
    uint8_t bytes[4096];
    size_t n = sizeof greeting - 1;
    memcpy(bytes, greeting, n);
    for (uint32_t i = 0; i < 5; i++)
        n += frame_write(bytes + n, HEADERS, END_HEADERS, 2 * i + 1, small.bytes, small.size);
    first = client_connect();
    ck_assert(client_write(&first, bytes, n));
    await_delays(before + 2);
    ended = client_connect();
    ck_assert(client_write(&ended, bytes, n));
    await_delays(before + 3);
    int n_sockets = net_sockets_count(server->sockets);
    setsockopt(ended.fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    client_close(&ended); // resets the connection
    while (net_sockets_count(server->sockets) == n_sockets)
        sched_yield();

    // Other connections do not wait.
    for (uint32_t i = 0; i < 3; i++)
        call_open(&other, "/t/Wait", 2 * i + 1);
    ck_assert(is_served(&other));
    if (!context) ck_assert(!has_bytes(&first)); // with TLS, the server has sent a ticket
    ck_assert(is_served(&first));
    ck_assert(is_served(&c));
    client_close(&other);
    client_close(&first);
    client_close(&c);
    server_close();
}
END_TEST

START_TEST(a_header_block_without_end_is_closed)
{
    server_open(_i, false);
    struct client c = client_open();
    struct block b = block_of("/t/Wait");
    ck_assert(frame(&c, HEADERS, 0, 1, b.bytes, b.size));
    for (int i = 0; i < 10; i++)
        if (!frame(&c, CONTINUATION, 0, 1, "\0\1x\x7f\x81\x7f", 6)) break; // a header whose value is not sent
    expect_end(&c, "the headers of a call are too large");
    server_close();
}
END_TEST

START_TEST(frames_that_carry_nothing_are_bounded)
{
    enum { BURST = 100, MOST = BURST + 4 * CALLS };
    static const struct {
        int type;
        size_t size;
    } kinds[] = {{PING, 8}, {SETTINGS, 0}, {0x77, 0}, {PRIORITY, 5}};
    server_open(_i, false);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        struct client c = client_open();
        ck_assert(is_served(&c)); // two empty frames, and SETTINGS of the server, which allow four more
        for (int i = 0; i < BURST && kinds[kind].type != PING; i++) // C-core closes at the third ping in a second
            ck_assert(frame(&c, kinds[kind].type, 0, kinds[kind].type == PRIORITY, "12345678", kinds[kind].size));
        ck_assert(is_served(&c));
        for (int i = 0; i < 3 * MOST; i++)
            if (!frame(&c, kinds[kind].type, 0, kinds[kind].type == PRIORITY, "12345678", kinds[kind].size)) break;
        expect_end(&c, "");
    }
    server_close();
}
END_TEST

static bool call_reset(struct client *c, uint32_t id)
{
    uint8_t bytes[1024];
    struct block b = block_of("/t/Wait");
    size_t n = frame_write(bytes, HEADERS, END_HEADERS, id, b.bytes, b.size);
    n += frame_write(bytes + n, RST_STREAM, 0, id, "\0\0\0\x08", 4);
    return client_write(c, bytes, n);
}

START_TEST(resets_of_new_calls_are_bounded)
{
    enum { BURST = 100 };
    uint32_t id = 1;
    server_open(_i, false);
    struct client c = client_open();
    for (int i = 0; i < BURST; i++, id += 2)
        ck_assert(call_reset(&c, id));
    ck_assert(is_served(&c));
    for (int i = 0; i < 50 * BURST && call_reset(&c, id); i++)
        id += 2;
    expect_end(&c, "");
    server_close();
}
END_TEST

// Sends records of TLS without data, and then a call. Returns true if the call is answered.
static bool is_served_after_records(int n)
{
    struct client c = client_open();
    char byte;
    ck_assert(is_served(&c));
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(SSL_key_update(c.ssl, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
        ck_assert_int_eq(SSL_do_handshake(c.ssl), 1);
    }
    client_write(&c, "\0\0\x08\6\0\0\0\0\0pingpong", 17);
    bool served = client_read(&c, &byte, 1) == 1;
    client_close(&c);
    return served;
}

START_TEST(records_without_data_are_bounded)
{
    enum { RECORDS_MAX = 64 };
    server_open(true, false);
    ck_assert(is_served_after_records(RECORDS_MAX));
    ck_assert(!is_served_after_records(RECORDS_MAX + 1));
    server_close();
}
END_TEST

START_TEST(another_protocol_is_refused)
{
    server_open(_i, false);
    struct client c = client_open();
    ck_assert(client_write(&c, "\0\0\0\5\0\0\0\0\1", 9)); // PUSH_PROMISE
    expect_end(&c, "a frame is malformed");
    server_close();
}
END_TEST

// Relies on the order of events: the listener's thread reads connections in the order in which their bytes arrive.
START_TEST(an_address_has_one_handshake_at_a_time)
{
    server_open_with(true, false, 10);
    int first = connect_from(1), second = connect_from(1), other = connect_from(2);
    ck_assert_int_eq(write(first, "\x16\x03\x01\x02", 5), 5); // the start of a long record
    SSL *waiting = ssl_open(second), *served = ssl_open(other);
    fcntl(second, F_SETFL, O_NONBLOCK);
    ck_assert_int_lt(SSL_connect(waiting), 1);
    ck_assert_int_eq(SSL_connect(served), 1);
    ck_assert_int_eq(poll(&(struct pollfd){.fd = second, .events = POLLIN}, 1, 100), 0);
    close(first);
    fcntl(second, F_SETFL, 0);
    ck_assert_int_eq(SSL_connect(waiting), 1);
    SSL_free(waiting);
    SSL_free(served);
    close(second);
    close(other);
    server_close();
}
END_TEST

// Sends bytes of another protocol from 127.0.0.2. Returns true if the server closes without an answer.
static bool is_barred(void)
{
    struct client c = {.fd = connect_from(2)};
    char byte;
    client_write(&c, "GET / HTTP/1.1\r\n\r\n", 18); // of which the server reads all before it says why it closes
    bool barred = client_read(&c, &byte, 1) <= 0;
    client_close(&c);
    return barred;
}

// Only addresses that are clients may be barred, so the server has a limit per address.
START_TEST(an_address_that_offends_again_and_again_is_barred)
{
    int n = 0;
    server_open_with(false, false, 1000);
    while (!is_barred())
        n++;
    ck_assert_int_gt(n, OFFENCES_MAX);
    struct client other = client_open();
    ck_assert(is_served(&other));
    client_close(&other);
    server_close();
    server_open_with(false, false, 0);
    for (int i = 0; i < 2 * n; i++)
        ck_assert(!is_barred());
    server_close();
}
END_TEST

// Completes a handshake from another address.
static void shake_hands(void)
{
    int fd = connect_from(2);
    SSL *ssl = ssl_open(fd);
    ck_assert_int_eq(SSL_connect(ssl), 1);
    SSL_free(ssl);
    close(fd);
}

// One handshake more than the listener allows ends the oldest, and the new one goes on.
START_TEST(concurrent_handshakes_are_bounded)
{
    enum { HANDSHAKES = 512 };
    static int fd[HANDSHAKES];
    char byte;
    server_open_with(true, false, 0);
    for (int i = 0; i < HANDSHAKES; i++) {
        if (i == HANDSHAKES - 1) { // the next one is the last that the listener allows
            shake_hands();
            ck_assert_int_eq(recv(fd[0], &byte, 1, MSG_DONTWAIT), -1);
            ck_assert_int_eq(errno, EAGAIN);
        }
        fd[i] = connect_from(1);
        ck_assert_int_eq(write(fd[i], "\x16\x03\x01\x02", 5), 5); // the start of a long record
    }
    shake_hands();
    struct pollfd oldest = {.fd = fd[0], .events = POLLIN};
    ck_assert_int_eq(poll(&oldest, 1, 8000), 1); // less than the 10 s that a handshake may take
    ck_assert_int_le(recv(fd[0], &byte, 1, 0), 0);
    ck_assert_int_eq(recv(fd[1], &byte, 1, MSG_DONTWAIT), -1);
    ck_assert_int_eq(errno, EAGAIN);
    for (int i = 0; i < HANDSHAKES; i++)
        close(fd[i]);
    server_close();
}
END_TEST

// --- budgets

static bool ask(const char *key)
{
    char target[64];
    struct rpc_channel *channel;
    struct rpc_bytes bytes = {0};
    snprintf(target, sizeof target, "127.0.0.1:%d", rpc_server_port(server));
    ck_assert_int_eq(rpc_channel_open(target, &channel), STATUS_OK);
    ck_assert_int_eq(rpc_channel_set_token(channel, key), STATUS_OK);
    bool served = rpc_unary(channel, "/t/Echo", (const uint8_t *)"hello", 5, TIMEOUT_MS, &bytes) == STATUS_OK;
    rpc_bytes_free(&bytes);
    rpc_channel_close(channel);
    return served;
}

static int n_peers_ended;

static void count_end(struct peer *peer)
{
    n_peers_ended++;
}

START_TEST(a_budget_holds_its_bytes_and_no_more)
{
    enum { MOST = 1000 };
    const enum peer_class class = _i ? PEER_UNPROVEN : PEER_PROVEN;
    struct peer first = {.end = count_end}, second = {.end = count_end};
    peer_budgets_set(class == PEER_UNPROVEN ? MOST : 2 * MOST, class == PEER_PROVEN ? MOST : 2 * MOST);
    n_peers_ended = 0;
    peer_join(&first, class);
    peer_join(&second, class);
    peer_hold(&first, MOST / 2 + 1);
    peer_hold(&second, MOST / 2 - 1);
    ck_assert_int_eq(n_peers_ended, 0);
    peer_hold(&second, MOST / 2);
    ck_assert_int_eq(n_peers_ended, 1);
    ck_assert(first.ended);
    ck_assert(!second.ended);
    peer_leave(&first);
    peer_leave(&second);
    peer_budgets_set(PEER_UNPROVEN_BYTES, PEER_PROVEN_BYTES);
}
END_TEST

// Opens connections that leave messages unfinished until the budget of `class` is used up.
START_TEST(the_busiest_connection_is_closed)
{
    enum { CONNECTIONS = 40, SMALL = 1 << 20 };
    bool proof = _i;
    enum peer_class class = proof ? PEER_UNPROVEN : PEER_PROVEN;
    struct client clients[CONNECTIONS];
    peer_budgets_set(proof ? SMALL : 64 << 20, proof ? 64 << 20 : SMALL);
    uint64_t ended = peer_budget_read(class).ended;
    server_open(false, proof);
    for (int i = 0; i < CONNECTIONS; i++) {
        static const uint8_t start[5 + 8192] = {0, 0, 1, 0, 0}; // start of a message of 64 KiB
        clients[i] = client_open();
        call_open(&clients[i], "/grpc.health.v1.Health/Watch", 1);
        for (int k = 0; k < 4; k++)
            frame(&clients[i], DATA, 0, 1, start, k ? 8192 : sizeof start);
        while (peer_budget_read(class).held_bytes > 2 * SMALL) // until the busiest connection is closed
            sched_yield();
    }
    ck_assert(ask("k"));
    ck_assert_uint_gt(peer_budget_read(class).ended, ended);
    int n_ended = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        n_ended += !is_served(&clients[i]);
        client_close(&clients[i]);
    }
    ck_assert_int_gt(n_ended, 0);
    ck_assert_int_lt(n_ended, CONNECTIONS);
    server_close();
    peer_budgets_set(PEER_UNPROVEN_BYTES, PEER_PROVEN_BYTES);
}
END_TEST

// Makes the folder of certificates. Returns false if the machine has no openssl program.
static bool make_certificates(void)
{
    if (!mkdtemp(folder)) abort();
    char *command = mem_format("cd %s && \"" CERTIFICATES "\" . server=127.0.0.1", folder);
    const bool made = system("command -v openssl >/dev/null") == 0 && system(command) == 0;
    free(command);
    return made;
}

static void remove_certificates(void)
{
    char *command = mem_format("rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
    free(command);
}

SUITE("net_hostile")
{
    signal(SIGPIPE, SIG_IGN);                      // OpenSSL writes to connections that the server has closed
    const int modes = make_certificates() ? 2 : 1; // without TLS, with TLS
    FIXTURE_ONCE(NULL, remove_certificates);
    NO_FORK(); // gRPC has threads
    LOOP(a_connection_in_its_first_header_block_does_not_reach_c_core, 0, modes);
    LOOP(first_bytes_may_arrive_one_by_one, 0, modes);
    LOOP(first_bytes_may_be_many, 0, modes);
    LOOP(header_blocks_are_bounded, 0, modes);
    LOOP(metadata_of_a_call_is_bounded, 0, modes);
    LOOP(unfinished_headers_have_a_time, 0, modes);
    LOOP(the_number_of_headers_is_bounded, 0, modes);
    LOOP(concurrent_calls_are_bounded, 0, modes);
    LOOP(calls_one_after_another_are_not_bounded, 0, modes);
    LOOP(calls_without_an_answer_share_a_budget, 0, modes);
    LOOP(a_header_block_without_end_is_closed, 0, modes);
    LOOP(frames_that_carry_nothing_are_bounded, 0, modes);
    LOOP(resets_of_new_calls_are_bounded, 0, modes);
    LOOP(another_protocol_is_refused, 0, modes);
    TEST(an_address_that_offends_again_and_again_is_barred);
    LOOP(a_budget_holds_its_bytes_and_no_more, 0, 2);
    LOOP(the_busiest_connection_is_closed, 0, 2);
    if (modes == 2) {
        TEST(an_address_has_one_handshake_at_a_time);
        TEST(concurrent_handshakes_are_bounded);
        TEST(records_without_data_are_bounded);
    }
}
