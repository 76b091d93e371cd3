// SPDX-License-Identifier: Apache-2.0
// http/: the bounds of a server: connections, connections of one address, time.
#include "lib/base/address_counts.h"
#include "tests/http_expect.h"
#include "tests/suite.h"

START_TEST(connections_beyond_the_limit_are_closed)
{
    open_server((struct http_server_options){.max_connections = 5});
    int fd[5];
    for (int i = 0; i < 5; i++) {
        fd[i] = client_connect(port());
        client_send(fd[i], "GET /hello HTTP/1.1\r\nHost: x\r\n\r\nG"); // and the start of another request
        free(client_receive_until(fd[i], "hello").bytes);
    }
    int sixth = client_connect(port());
    struct client_text text = client_receive_all(sixth);
    ck_assert_uint_eq(text.size, 0);
    free(text.bytes);
    close(sixth);
    ck_assert_uint_eq(server_status().refused, 1);
    close(fd[0]);
    AWAIT(server_status().connections == 4);
    expect_answer("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200", "hello");
    for (int i = 1; i < 5; i++)
        close(fd[i]);
    close_server();
}
END_TEST

START_TEST(idle_connections_are_closed_at_the_limit)
{
    open_server((struct http_server_options){.max_connections = 3});
    int busy = client_connect(port());
    client_send(busy, "GET /hello HT");
    AWAIT(server_status().connections == 1);
    int silent = client_connect(port());
    AWAIT(server_status().connections == 2);
    int kept = client_connect(port());
    client_send(kept, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    free(client_receive_until(kept, "hello").bytes);
    int first = client_connect(port()), second = client_connect(port());
    free(client_receive_all(silent).bytes); // until the server closes it
    free(client_receive_all(kept).bytes);
    ck_assert_uint_eq(server_status().refused, 0);
    client_send(busy, "TP/1.1\r\nHost: x\r\n\r\n");
    free(client_receive_until(busy, "hello").bytes);
    client_send(second, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    free(client_receive_until(second, "hello").bytes);
    close(first);
    close(second);
    close(silent);
    close(kept);
    close(busy);
    close_server();
}
END_TEST

START_TEST(connections_of_one_address_are_bounded)
{
    open_server((struct http_server_options){.max_connections_per_address = 2});
    int first = client_connect(port()), second = client_connect(port());
    AWAIT(server_status().connections == 2);
    int third = client_connect(port());
    struct client_text text = client_receive_all(third);
    ck_assert_uint_eq(text.size, 0);
    free(text.bytes);
    close(third);
    close(first);
    AWAIT(server_status().connections == 1);
    expect_answer("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200", "hello");
    close(second);
    close_server();
}
END_TEST

// Sends a malformed head. Returns true if the server closes without an answer.
static bool is_barred(void)
{
    int client = client_connect(port());
    client_send(client, "GET /\1 HTTP/1.1\r\n\r\n");
    struct client_text text = client_receive_all(client);
    bool barred = text.size == 0;
    free(text.bytes);
    close(client);
    return barred;
}

START_TEST(an_address_that_offends_again_and_again_is_barred)
{
    int n = 0;
    open_server((struct http_server_options){.max_connections_per_address = 1000});
    while (!is_barred())
        n++;
    ck_assert_int_gt(n, OFFENCES_MAX);
    close_server();
    // Without a limit per address, and through a trusted proxy, an address may be that of many clients.
    open_server((struct http_server_options){0});
    for (int i = 0; i < 2 * n; i++)
        ck_assert(!is_barred());
    close_server();
    open_server((struct http_server_options){.max_connections_per_address = 1000, .trusted_proxies = "127.0.0.1"});
    for (int i = 0; i < 2 * n; i++)
        ck_assert(!is_barred());
    close_server();
}
END_TEST

START_TEST(a_refused_connection_closes_no_idle_one)
{
    open_server((struct http_server_options){.max_connections = 2, .max_connections_per_address = 2});
    int idle = client_connect(port()), other = client_connect(port());
    AWAIT(server_status().connections == 2);
    int refused = client_connect(port());
    free(client_receive_all(refused).bytes);
    client_send(idle, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    free(client_receive_until(idle, "hello").bytes);
    close(refused);
    close(other);
    close(idle);
    close_server();
}
END_TEST

START_TEST(time_limits_end_slow_requests)
{
    open_server((struct http_server_options){.head_ms = 200, .stall_ms = 300, .idle_ms = 400});
    int silent = client_connect(port()), head = client_connect(port()), body = client_connect(port());
    int idle = client_connect(port());
    client_send(idle, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    client_send(head, "GET /hello HT");
    client_send(body, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345");
    struct client_text text = client_receive_all(silent);
    ck_assert_uint_eq(text.size, 0);
    free(text.bytes);
    text = client_receive_all(head);
    expect_start(text.bytes, "HTTP/1.1 408");
    free(text.bytes);
    text = client_receive_all(body);
    expect_start(text.bytes, "HTTP/1.1 408");
    free(text.bytes);
    text = client_receive_all(idle);
    expect_part(text.bytes, "hello");
    ck_assert(!text.reset);
    free(text.bytes);
    close(silent);
    close(head);
    close(body);
    close(idle);
    close_server();
}
END_TEST

// Asks again. Returns true if the connection ends with the response.
static bool is_last_response(int fd)
{
    client_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    struct client_text text = client_receive_until(fd, "\r\n\r\nhello");
    bool last = strstr(text.bytes, "Connection: close\r\n");
    free(text.bytes);
    return last;
}

START_TEST(an_old_connection_ends_with_its_next_response)
{
    open_server((struct http_server_options){.max_connection_age_ms = 100});
    int running = client_connect(port()), asking = client_connect(port());
    client_send(running, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_exchange *x = await_held();
    AWAIT(is_last_response(asking));
    struct client_text text = client_receive_all(asking);
    ck_assert(text.size == 0);
    ck_assert(!text.reset);
    free(text.bytes);
    http_stream_send(x, "goes on", 7);
    free(client_receive_until(running, "goes on").bytes);
    http_unref(x);
    close(asking);
    close(running);
    close_server();
}
END_TEST

// Sends a head of `size` bytes with its empty line, and a field that fills it.
static void expect_of_head(size_t size, const char *start)
{
    char head[5000];
    int n = snprintf(head, sizeof head, "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: ");
    memset(head + n, 'a', size - (size_t)n - 4);
    memcpy(head + size - 4, "\r\n\r\n", 5);
    expect_answer(head, start, "");
}

START_TEST(heads_are_bounded)
{
    open_server((struct http_server_options){.max_head_bytes = 4096});
    expect_of_head(4096, "HTTP/1.1 200");
    expect_of_head(4097, "HTTP/1.1 431");
    close_server();
}
END_TEST

// The time limit of the head does not restart with each byte.
START_TEST(a_head_in_single_bytes_meets_its_limit)
{
    open_server((struct http_server_options){.head_ms = 300});
    int fd = client_connect(port());
    struct client_text text = {0};
    static const char start[] = "GET /hello HTTP/1.1\r\nX: ";
    for (size_t i = 0;; i++) {
        client_send_bytes(fd, i < sizeof start - 1 ? start + i : "x", 1);
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        if (poll(&poll_fd, 1, 10) == 1) break;
    }
    while (client_receive_some(fd, &text))
        ;
    expect_start(text.bytes, "HTTP/1.1 408");
    free(text.bytes);
    close(fd);

    // The same request is served when its bytes come in time.
    fd = client_connect(port());
    static const char whole[] =
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        "5\r\nhello\r\n0\r\n\r\n";
    for (size_t i = 0; i < sizeof whole - 1; i++)
        client_send_bytes(fd, whole + i, 1);
    text = client_receive_all(fd);
    expect_part(text.bytes, "\r\n\r\nhello");
    free(text.bytes);
    close(fd);
    close_server();
}
END_TEST

START_TEST(half_open_connections_do_not_disturb_others)
{
    open_server((struct http_server_options){0});
    enum { N = 1000 };
    static int fd[N];
    for (int i = 0; i < N; i++) {
        fd[i] = client_try_connect(port());
        if (fd[i] >= 0)
            client_send(fd[i], i % 2 ? "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1" : "GET /h");
    }
    expect_answer("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200", "hello");
    for (int i = 0; i < N; i++)
        if (fd[i] >= 0) close(fd[i]);
    AWAIT(server_status().connections == 0 && server_status().body_bytes == 0);
    close_server();
}
END_TEST

SUITE("http_bounds")
{
    TEST(connections_beyond_the_limit_are_closed);
    TEST(idle_connections_are_closed_at_the_limit);
    TEST(connections_of_one_address_are_bounded);
    TEST(an_address_that_offends_again_and_again_is_barred);
    TEST(a_refused_connection_closes_no_idle_one);
    TEST(time_limits_end_slow_requests);
    TEST(an_old_connection_ends_with_its_next_response);
    TEST(heads_are_bounded);
    TEST(a_head_in_single_bytes_meets_its_limit);
    TEST(half_open_connections_do_not_disturb_others);
}
