// SPDX-License-Identifier: Apache-2.0
// http/: streams, and clients that stop reading, read slowly or disconnect.
#include <netinet/tcp.h>

#include "lib/base/equal_share.h"
#include "lib/base/mem.h"
#include "lib/http/internal.h"
#include "tests/http_expect.h"
#include "tests/suite.h"

START_TEST(a_stream_is_chunked_and_its_connection_stays_open)
{
    open_server((struct http_server_options){0});
    int fd = client_connect(port());
    for (int round = 0; round < 2; round++) {
        client_send(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
        struct http_exchange *x = await_held();
        struct client_text text = client_receive_until(fd, "\r\n\r\n");
        expect_part(text.bytes, "Transfer-Encoding: chunked\r\n");
        expect_part(text.bytes, "Content-Type: text/event-stream\r\n");
        free(text.bytes);
        http_stream_send(x, "data: 1\n\n", 9);
        text = client_receive_until(fd, "9\r\ndata: 1\n\n\r\n");
        free(text.bytes);
        http_stream_send(x, "", 0); // must not end the stream
        http_stream_send(x, "data: 2\n\n", 9);
        http_stream_end(x);
        http_stream_send(x, "late", 4);
        text = client_receive_until(fd, "\r\n0\r\n\r\n");
        ck_assert_str_eq(text.bytes, "9\r\ndata: 2\n\n\r\n0\r\n\r\n");
        free(text.bytes);
        http_unref(x);
    }
    AWAIT(atomic_load(&n_closed) == 2);
    close(fd);
    close_server();
    ck_assert_int_eq(atomic_load(&n_disconnected), 0);
}
END_TEST

START_TEST(a_client_that_goes_away_is_seen_without_sending)
{
    open_server((struct http_server_options){0});
    int fd = client_connect(port());
    client_send(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_exchange *x = await_held();
    close(fd);
    AWAIT(atomic_load(&n_disconnected) == 1);
    http_respond(x, 200, "text/plain", "late", 4); // nothing happens
    http_unref(x);

    fd = client_connect(port());
    client_send(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    x = await_held();
    shutdown(fd, SHUT_WR); // closing one side counts as gone
    AWAIT(atomic_load(&n_disconnected) == 2);
    ck_assert_uint_eq(http_stream_send(x, "late", 4), 0);
    http_unref(x);
    close(fd);

    // Also if the server has not read the requests before yet.
    fd = client_connect(port());
    client_send(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    x = await_held();
    char more[20000];
    memset(more, 'x', sizeof more);
    client_send_bytes(fd, more, sizeof more);
    close(fd);
    AWAIT(atomic_load(&n_disconnected) == 3);
    http_unref(x);
    AWAIT(server_status().connections == 0);
    close_server();
}
END_TEST

START_TEST(a_request_before_a_half_close_is_answered)
{
    open_server((struct http_server_options){0});
    for (int i = 0; i < 50; i++) {
        int fd = client_connect(port());
        client_send(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok");
        shutdown(fd, SHUT_WR);
        struct client_text text = client_receive_all(fd);
        expect_part(text.bytes, "\r\n\r\nok");
        free(text.bytes);
        close(fd);
    }
    close_server();
}
END_TEST

START_TEST(all_requests_before_a_half_close_are_answered)
{
    static const char request[] = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
    enum { REQUESTS = HTTP_TURN_REQUESTS + 4 };
    char bytes[REQUESTS * sizeof request] = "";
    open_server((struct http_server_options){0});
    for (int i = 0; i < REQUESTS; i++)
        strcat(bytes, request);
    int fd = client_connect(port());
    client_send(fd, bytes);
    shutdown(fd, SHUT_WR);
    struct client_text text = client_receive_all(fd);
    int answers = 0;
    for (const char *at = text.bytes; (at = strstr(at, "\r\n\r\nhello")); at++)
        answers++;
    ck_assert_int_eq(answers, REQUESTS);
    free(text.bytes);
    close(fd);
    close_server();
}
END_TEST

START_TEST(a_reader_that_stops_is_disconnected_at_the_limit)
{
    open_server((struct http_server_options){.max_unread_bytes = 1000000});
    int fd = client_connect(port());
    client_send(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_exchange *x = await_held();
    char piece[10000];
    memset(piece, 'x', sizeof piece);
    size_t most = 0, unread;
    do {
        unread = http_stream_send(x, piece, sizeof piece);
        if (unread > most) most = unread;
        usleep(10); // otherwise this thread might hold the exchange's lock all the time
    } while (atomic_load(&n_disconnected) == 0);
    ck_assert_uint_le(most, 1000100);
    http_unref(x);
    struct client_text text = client_receive_all(fd);
    ck_assert(text.reset);
    free(text.bytes);
    close(fd);
    AWAIT(server_status().unread_bytes == 0);
    close_server();
}
END_TEST

START_TEST(readers_that_stop_share_a_limit)
{
    open_server((struct http_server_options){.max_all_unread_bytes = 9000000});
    char *much = mem_alloc(8000000);
    int fds[2];
    struct http_exchange *x[2];
    for (int i = 0; i < 2; i++) {
        fds[i] = client_connect(port());
        client_send(fds[i], "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
        x[i] = await_held();
        ck_assert(http_response_fits(x[i], 8900000) == (i == 0)); // the head is unread as well
        http_stream_send(x[i], much, i == 0 ? 8000000 : 1000000); // small: not ended
    }
    ck_assert(http_response_fits(x[1], 1000));
    ck_assert(!http_response_fits(x[1], 8000000));
    ck_assert_int_eq(atomic_load(&n_disconnected), 0);
    http_stream_send(x[1], much, 8000000);
    AWAIT(atomic_load(&n_disconnected) == 1);
    ck_assert_uint_eq(http_stream_send(x[1], much, 1), 0);
    free(much);
    for (int i = 0; i < 2; i++) {
        http_unref(x[i]);
        close(fds[i]);
    }
    AWAIT(atomic_load(&n_disconnected) == 2 && server_status().unread_bytes == 0);
    close_server();
}
END_TEST

// Opens a stream with small socket buffers, so that the server keeps bytes that the client does not read. The kernel
// does not watch this client.
static struct http_exchange *open_narrow_stream(int *fd_p)
{
    *fd_p = client_connect_with(port(), 4096);
    client_send(*fd_p, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_exchange *x = await_held();
    ck_assert_int_eq(setsockopt(x->connection->fd, SOL_SOCKET, SO_SNDBUF, &(int){4096}, sizeof(int)), 0);
    ck_assert_int_eq(setsockopt(x->connection->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &(int){0}, sizeof(int)), 0);
    return x;
}

// The limit holds for any number of readers and any sizes. Here each takes the equal share that it would have had when
// it arrived.
START_TEST(many_readers_that_stop_keep_to_the_limit)
{
    enum { N = 64, MAX = 4 << 20 };
    static const char small[1000];
    open_server((struct http_server_options){.max_all_unread_bytes = MAX});
    char *much = mem_alloc(MAX);
    int fds[N];
    struct http_exchange *x[N];
    for (int i = 0; i < N; i++) {
        x[i] = open_narrow_stream(&fds[i]);
        http_stream_send(x[i], much, (size_t)(MAX / (i + 1)) - 1000);
        http_stream_send(x[i], small, sizeof small);
        ck_assert_uint_le(server_status().unread_bytes, 2 * MAX + (i + 1) * EQUAL_SHARE_SMALL_BYTES);
    }
    ck_assert_uint_ge(server_status().unread_bytes, MAX / 2);
    int fd = client_connect(port());
    client_send(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_exchange *honest = await_held();
    ck_assert(http_response_fits(honest, 10000));
    ck_assert(!http_response_fits(honest, 100000));
    http_unref(honest);
    close(fd);
    for (int i = 0; i < N; i++) {
        http_unref(x[i]);
        close(fds[i]);
    }
    free(much);
    AWAIT(server_status().unread_bytes == 0 && atomic_load(&server->sharing) == 0);
    close_server();
}
END_TEST

START_TEST(a_reader_that_stops_is_disconnected_after_a_while)
{
    open_server((struct http_server_options){.stall_ms = 200});
    int fd = client_connect(port());
    client_send(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_exchange *x = await_held();
    char *much = mem_alloc(10000000);
    http_stream_send(x, much, 10000000);
    free(much);
    AWAIT(atomic_load(&n_disconnected) == 1);
    http_unref(x);
    close(fd);
    close_server();
}
END_TEST

START_TEST(a_reader_that_takes_a_few_bytes_now_and_then_is_disconnected)
{
    open_server((struct http_server_options){.stall_ms = 1000});
    int fd;
    struct http_exchange *x = open_narrow_stream(&fd);
    char *much = mem_alloc(1000000), some[250];
    http_stream_send(x, much, 1000000);
    free(much);
    size_t taken = 0;
    while (taken < 40000) // bytes that the sockets held before their buffers were made small
        taken += (size_t)recv(fd, some, sizeof some, 0);
    while (atomic_load(&n_disconnected) == 0) {
        ssize_t n = recv(fd, some, sizeof some, MSG_DONTWAIT);
        if (n > 0) taken += (size_t)n;
        ck_assert_uint_lt(taken, 500000);
        usleep(20000);
    }
    http_unref(x);
    close(fd);
    close_server();
}
END_TEST

START_TEST(a_slow_reader_gets_everything)
{
    open_server((struct http_server_options){0});
    int fd = client_connect(port());
    client_send(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_exchange *x = await_held();
    char piece[1000];
    memset(piece, 'p', sizeof piece);
    enum { N = 5000 };
    for (int i = 0; i < N; i++)
        http_stream_send(x, piece, sizeof piece);
    http_stream_end(x);
    http_unref(x);
    struct client_text text = client_receive_until(fd, "\r\n0\r\n\r\n");
    size_t count = 0;
    for (size_t i = (size_t)(strstr(text.bytes, "\r\n\r\n") - text.bytes); i < text.size; i++)
        count += text.bytes[i] == 'p';
    ck_assert_uint_eq(count, N * sizeof piece);
    free(text.bytes);
    close(fd);
    close_server();
}
END_TEST

SUITE("http_readers")
{
    TEST(a_stream_is_chunked_and_its_connection_stays_open);
    TEST(a_client_that_goes_away_is_seen_without_sending);
    TEST(a_request_before_a_half_close_is_answered);
    TEST(all_requests_before_a_half_close_are_answered);
    TEST(a_reader_that_stops_is_disconnected_at_the_limit);
    TEST(readers_that_stop_share_a_limit);
    TEST(a_reader_that_stops_is_disconnected_after_a_while);
    TEST(many_readers_that_stop_keep_to_the_limit);
    TEST(a_reader_that_takes_a_few_bytes_now_and_then_is_disconnected);
    TEST(a_slow_reader_gets_everything);
}
