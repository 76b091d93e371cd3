// SPDX-License-Identifier: Apache-2.0
// http/: requests and responses over real sockets, and every way a connection can end.
#include <netinet/tcp.h>

#include "lib/base/equal_share.h"
#include "lib/base/mem.h"
#include "lib/http/internal.h"
#include "tests/dead_listener.h"
#include "tests/http_service.h"

static void expect_start(const char *text, const char *start)
{
    ck_assert_msg(strncmp(text, start, strlen(start)) == 0, "starts with '%s': %s", start, text);
}

static void expect_part(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part), "contains '%s': %s", part, text);
}

// Sends a request on its own connection and expects the start of the answer and a part of it.
static void expect_answer(const char *request, const char *start, const char *part)
{
    char *text = client_ask_raw(port(), request);
    expect_start(text, start);
    expect_part(text, part);
    free(text);
}

static void close_server(void)
{
    http_server_close(server, 1000);
    server = NULL;
}

// --- requests that are served

START_TEST(a_request_is_answered_with_date_type_and_length)
{
    open_server((struct http_server_options){0});
    char *text = client_ask_raw(port(), "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    expect_start(text, "HTTP/1.1 200 OK\r\nDate: ");
    expect_part(text, " GMT\r\n");
    expect_part(text, "Content-Type: text/plain\r\n");
    expect_part(text, "Content-Length: 5\r\n");
    expect_part(text, "Connection: close\r\n\r\nhello");
    free(text);
    AWAIT(atomic_load(&n_closed) == 1);
    close_server();
    ck_assert_int_eq(atomic_load(&n_disconnected), 0);
}
END_TEST

START_TEST(requests_sent_at_once_are_answered_in_order)
{
    open_server((struct http_server_options){0});
    int fd = client_connect(port());
    enum { N = 200 };
    for (int i = 0; i < N; i++) {
        char text[128];
        snprintf(text, sizeof text, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nnumber%02d", i % 100);
        client_send(fd, text);
    }
    client_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    struct client_text text = client_receive_all(fd);
    const char *at = text.bytes;
    for (int i = 0; i < N; i++) {
        char body[16];
        snprintf(body, sizeof body, "number%02d", i % 100);
        at = strstr(at, "\r\n\r\n");
        ck_assert_ptr_nonnull(at);
        expect_start(at + 4, body);
        at += 4;
    }
    expect_part(at, "hello");
    free(text.bytes);
    close(fd);
    close_server();
}
END_TEST

START_TEST(a_waiting_request_keeps_its_place_before_the_next_one)
{
    open_server((struct http_server_options){0});
    int fd = client_connect(port());
    client_send(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    struct http_exchange *x = await_held();
    http_respond(x, 200, "text/plain", "first", 5);
    http_unref(x);
    struct client_text text = client_receive_all(fd);
    ck_assert_ptr_nonnull(strstr(text.bytes, "first"));
    ck_assert_ptr_nonnull(strstr(text.bytes, "hello"));
    ck_assert(strstr(text.bytes, "first") < strstr(text.bytes, "hello"));
    free(text.bytes);
    close(fd);
    close_server();
}
END_TEST

START_TEST(head_gets_the_length_without_the_body)
{
    open_server((struct http_server_options){0});
    char *text = client_ask_raw(port(), "HEAD /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    expect_part(text, "Content-Length: 5\r\n");
    ck_assert_str_eq(strstr(text, "\r\n\r\n"), "\r\n\r\n");
    free(text);
    close_server();
}
END_TEST

START_TEST(http_1_0_gets_a_closed_connection_and_no_chunks)
{
    open_server((struct http_server_options){0});
    expect_answer("GET /hello HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n", "Connection: close\r\n\r\nhello");
    int fd = client_connect(port());
    client_send(fd, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    struct http_exchange *x = await_held();
    http_stream_send(x, "one", 3);
    http_stream_send(x, "two", 3);
    http_stream_end(x);
    http_unref(x);
    struct client_text text = client_receive_all(fd);
    ck_assert(!text.reset);
    ck_assert_ptr_null(strstr(text.bytes, "chunked"));
    expect_part(text.bytes, "Connection: close\r\n\r\nonetwo");
    free(text.bytes);
    close(fd);
    close_server();
}
END_TEST

START_TEST(http_1_0_may_keep_its_connection)
{
    open_server((struct http_server_options){0});
    int fd = client_connect(port());
    for (int i = 0; i < 3; i++) {
        client_send(fd, "GET /hello HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
        struct client_text text = client_receive_until(fd, "hello");
        expect_part(text.bytes, "Connection: keep-alive\r\n");
        free(text.bytes);
    }
    close(fd);
    close_server();
}
END_TEST

START_TEST(paths_and_queries_are_decoded)
{
    open_server((struct http_server_options){0});
    expect_answer("GET /things/a%2Fb%20c?x=1&q=a+b%26c&empty HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                  "HTTP/1.1 200", "GET /things/a/b c q=a b&c empty= peer=127.0.0.1:");
    expect_answer("GET http://host:1/things/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200",
                  "GET /things/x q=- empty=-");
    expect_answer("GET /things/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 404", "does not exist");
    close_server();
}
END_TEST

START_TEST(a_header_value_cannot_start_another_header)
{
    open_server((struct http_server_options){0});
    expect_answer("GET /things/x?q=a%0d%0aSet-Cookie:b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                  "HTTP/1.1 200", "X-Echo: a  Set-Cookie:b\r\n");
    close_server();
}
END_TEST

START_TEST(options_and_unknown_methods_name_the_methods)
{
    open_server((struct http_server_options){0});
    expect_answer("OPTIONS /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 204",
                  "Allow: GET, HEAD, OPTIONS\r\n");
    expect_answer("OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 204",
                  "Allow: GET, HEAD, POST, OPTIONS\r\n");
    expect_answer("DELETE /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 405",
                  "Allow: POST, OPTIONS\r\n");
    expect_answer("GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 404", "\r\n\r\n");
    close_server();
}
END_TEST

START_TEST(a_connection_survives_404_and_405)
{
    open_server((struct http_server_options){0});
    int fd = client_connect(port());
    client_send(fd, "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\nDELETE /hello HTTP/1.1\r\nHost: x\r\n\r\n"
                    "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    struct client_text text = client_receive_all(fd);
    expect_start(text.bytes, "HTTP/1.1 404");
    expect_part(text.bytes, "HTTP/1.1 405");
    expect_part(text.bytes, "\r\n\r\nhello");
    free(text.bytes);
    close(fd);
    close_server();
}
END_TEST

// --- bodies

START_TEST(a_large_body_arrives_whole)
{
    open_server((struct http_server_options){0});
    enum { SIZE = 3000000 };
    char *body = mem_alloc(SIZE);
    for (int i = 0; i < SIZE; i++)
        body[i] = (char)(i % 251);
    int fd = client_connect(port());
    client_send(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3000000\r\n\r\n");
    ck_assert(client_send_bytes(fd, body, SIZE));
    struct client_text text = client_receive_all(fd);
    ck_assert_uint_gt(text.size, SIZE);
    ck_assert_int_eq(memcmp(text.bytes + text.size - SIZE, body, SIZE), 0);
    free(text.bytes);
    free(body);
    close(fd);
    AWAIT(server_status().body_bytes == 0 && server_status().unread_bytes == 0);
    close_server();
}
END_TEST

START_TEST(a_chunked_body_arrives_whole)
{
    open_server((struct http_server_options){0});
    expect_answer("POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "3\r\nabc\r\n00A;name=value\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
                  "HTTP/1.1 200", "\r\n\r\nabc0123456789");
    expect_answer("POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                  "HTTP/1.1 200", "Content-Length: 0\r\n");
    close_server();
}
END_TEST

START_TEST(continue_is_sent_before_the_body_is_awaited)
{
    open_server((struct http_server_options){0});
    int fd = client_connect(port());
    client_send(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    struct client_text text = client_receive_until(fd, "\r\n\r\n");
    ck_assert_str_eq(text.bytes, "HTTP/1.1 100 Continue\r\n\r\n");
    free(text.bytes);
    client_send(fd, "body");
    text = client_receive_until(fd, "\r\n\r\nbody");
    expect_start(text.bytes, "HTTP/1.1 200 OK");
    free(text.bytes);
    close(fd);
    close_server();
}
END_TEST

START_TEST(a_caller_is_refused_before_the_body_is_read)
{
    open_server((struct http_server_options){0});
    expect_answer("POST /guarded HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n",
                  "HTTP/1.1 401", "Connection: close\r\n\r\nno");
    ck_assert_int_eq(atomic_load(&n_heads), 1);
    ck_assert_int_eq(atomic_load(&n_requests), 0);
    expect_answer("POST /guarded HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\nConnection: close\r\n"
                  "Content-Length: 2\r\n\r\nok",
                  "HTTP/1.1 200", "\r\n\r\nok");
    AWAIT(atomic_load(&n_closed) == 2);
    close_server();
}
END_TEST

// The client sends a body that the server does not want, and must still get the answer.
START_TEST(a_body_above_the_limit_is_refused_and_the_client_reads_why)
{
    open_server((struct http_server_options){.max_body_bytes = 100000});
    enum { SIZE = 2000000 };
    char *body = mem_alloc(SIZE);
    memset(body, 'x', SIZE);
    int fd = client_connect(port());
    client_send(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n");
    client_send_bytes(fd, body, SIZE);
    struct client_text text = client_receive_all(fd);
    expect_start(text.bytes, "HTTP/1.1 413");
    ck_assert(!text.reset);
    free(text.bytes);
    close(fd);

    fd = client_connect(port());
    client_send(fd,
                "POST /small HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n12345678\r\n9\r\n123456789");
    text = client_receive_all(fd);
    expect_start(text.bytes, "HTTP/1.1 413");
    free(text.bytes);
    free(body);
    close(fd);

    // Refused by the size of its chunk, of which nothing has come.
    fd = client_connect(port());
    client_send(fd, "POST /small HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n12345678\r\n9\r\n");
    text = client_receive_all(fd);
    expect_start(text.bytes, "HTTP/1.1 413");
    free(text.bytes);
    close(fd);
    expect_answer("POST /small HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 16\r\n\r\n0123456789abcdef",
                  "HTTP/1.1 200", "\r\n\r\n0123456789abcdef");
    ck_assert_int_eq(atomic_load(&n_requests), 1);
    close_server();
}
END_TEST

// A client that sends the first `n` bytes of a body and then stalls, once the server has `all` bytes of bodies.
static int send_part_of_body(size_t n, size_t all)
{
    static char body[60000];
    memset(body, 'x', sizeof body);
    int fd = client_connect(port());
    client_send(fd, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 60001\r\n\r\n");
    client_send_bytes(fd, body, n);
    AWAIT(server_status().body_bytes == all);
    return fd;
}

static void expect_refused(int fd)
{
    struct client_text text = client_receive_all(fd);
    expect_start(text.bytes, "HTTP/1.1 503");
    expect_part(text.bytes, "Retry-After: 1\r\n");
    ck_assert(!text.reset);
    free(text.bytes);
    close(fd);
}

static void expect_small_body_echoed(void)
{
    expect_answer("POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody",
                  "HTTP/1.1 200", "\r\n\r\nbody");
}

START_TEST(stalled_bodies_do_not_keep_out_smaller_ones)
{
    open_server((struct http_server_options){.max_bodies_bytes = 100000});
    int larger = send_part_of_body(60000, 60000), smaller = send_part_of_body(40000, 100000);
    expect_small_body_echoed();
    expect_refused(larger);
    AWAIT(server_status().body_bytes == 40000);

    // Nor heads.
    larger = send_part_of_body(60000, 100000);
    int head = client_connect(port());
    client_send(head, "GET /hello HT");
    expect_refused(larger);
    client_send(head, "TP/1.1\r\nHost: x\r\n\r\n");
    free(client_receive_until(head, "hello").bytes);
    close(head);
    close(smaller);
    close_server();
}
END_TEST

// A client that sends the first `size` bytes of a head, once the server has `all` bytes of bodies and heads.
static int send_part_of_head(const char *before, size_t size, size_t all)
{
    static char head[30000];
    memset(head, 'x', sizeof head);
    int n = snprintf(head, sizeof head, "%sGET /hello HTTP/1.1\r\nX: ", before);
    head[n] = 'x';
    int fd = client_connect(port());
    client_send_bytes(fd, head, strlen(before) + size);
    AWAIT(server_status().body_bytes == all);
    return fd;
}

// Two connections of 20,000 bytes and one of 24,000, in a budget that is one byte too small, or that suffices.
START_TEST(the_busiest_connection_of_a_budget_is_closed)
{
    size_t all = 3 * HTTP_CONNECTION_BYTES + 64000, budget = all - (size_t)_i;
    peer_budgets_set(budget, budget);
    open_server((struct http_server_options){.proof = true});
    uint64_t ended = peer_budget_read(PEER_UNPROVEN).ended;
    int first = send_part_of_head("", 24000, 24000), second = send_part_of_head("", 20000, 44000);
    ck_assert_uint_eq(peer_budget_read(PEER_UNPROVEN).ended, ended);
    int third = send_part_of_head("", 20000, _i ? 40000 : 64000);
    ck_assert_uint_eq(peer_budget_read(PEER_UNPROVEN).ended, ended + (uint64_t)_i);
    if (_i) free(client_receive_all(first).bytes); // until the server closes it
    close(first);
    close(second);
    close(third);
    close_server();
    ck_assert_uint_eq(peer_budget_read(PEER_UNPROVEN).held_bytes, 0);
    peer_budgets_set(PEER_UNPROVEN_BYTES, PEER_PROVEN_BYTES);
}
END_TEST

START_TEST(stalled_heads_do_not_keep_out_bodies)
{
    open_server((struct http_server_options){.max_bodies_bytes = 50000});
    int smaller = send_part_of_head("", 24000, 24000), larger = send_part_of_head("", 26000, 50000);
    expect_small_body_echoed();
    expect_refused(larger);
    AWAIT(server_status().body_bytes == 24000);
    client_send(smaller, "\r\nHost: x\r\n\r\n");
    free(client_receive_until(smaller, "hello").bytes);
    AWAIT(server_status().body_bytes == 0);
    close(smaller);
    close_server();
}
END_TEST

START_TEST(requests_sent_ahead_do_not_keep_out_bodies)
{
    static const char request[] = "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n";
    open_server((struct http_server_options){.max_bodies_bytes = 4000});
    int smaller = send_part_of_head(request, 1900, 1900);
    struct http_exchange *kept = await_held();
    int larger = send_part_of_head(request, 2100, 4000);
    struct http_exchange *closed = await_held();
    expect_small_body_echoed();
    struct client_text text = client_receive_all(larger);
    ck_assert_uint_eq(text.size, 0);
    ck_assert_int_eq(atomic_load(&n_disconnected), 1);
    AWAIT(server_status().body_bytes == 1900);
    http_respond(kept, 200, "text/plain", "kept", 4);
    free(client_receive_until(smaller, "\r\n\r\nkept").bytes);
    http_unref(closed);
    http_unref(kept);
    free(text.bytes);
    close(larger);
    close(smaller);
    close_server();
}
END_TEST

START_TEST(the_largest_body_beyond_the_total_is_refused)
{
    open_server((struct http_server_options){.max_bodies_bytes = 80000});
    int first = send_part_of_body(40000, 40000), second = send_part_of_body(40000, 80000);
    client_send(second, "x");
    expect_refused(second);
    AWAIT(server_status().body_bytes == 40000);
    char rest[20002] = "";
    memset(rest, 'y', sizeof rest - 1);
    client_send(first, rest);
    free(client_receive_until(first, "xxy").bytes);
    close(first);
    close_server();
}
END_TEST

START_TEST(four_of_the_largest_bodies_are_received_at_once)
{
    static const size_t largest_mb[] = {16, 64, 300}, all_mb[] = {256, 256, 1200};
    open_server((struct http_server_options){.max_body_bytes = largest_mb[_i] << 20});
    ck_assert_uint_eq(server->o.max_bodies_bytes, all_mb[_i] << 20);
    close_server();
}
END_TEST

START_TEST(heads_count_like_bodies)
{
    open_server((struct http_server_options){.max_bodies_bytes = 50000});
    char head[30001] = "GET /hello HTTP/1.1\r\nX: ";
    memset(head + strlen(head), 'x', sizeof head - 1 - strlen(head));
    int first = client_connect(port()), second = client_connect(port());
    client_send(first, head);
    AWAIT(server_status().body_bytes == 30000);
    client_send(second, head);
    struct client_text text = client_receive_all(second);
    expect_start(text.bytes, "HTTP/1.1 503");
    free(text.bytes);
    close(second);
    client_send(first, "\r\nHost: x\r\n\r\n");
    text = client_receive_until(first, "hello");
    free(text.bytes);
    AWAIT(server_status().body_bytes == 0);
    close(first);
    close_server();
}
END_TEST

// --- streams

START_TEST(a_stream_is_chunked_and_its_connection_goes_on)
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

    // Also behind requests that the server has not read yet.
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
        usleep(10); // else this thread may keep the exchange's lock to itself
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
        ck_assert(http_response_fits(x[i], 8900000) == (i == 0)); // the head is unread, too
        http_stream_send(x[i], much, i == 0 ? 8000000 : 1000000); // small: left alone
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

// A stream with small socket buffers, so that bytes that the client does not read stay with the server. Its kernel does
// not watch the client.
static struct http_exchange *open_narrow_stream(int *fd_p)
{
    *fd_p = client_connect_with(port(), 4096);
    client_send(*fd_p, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_exchange *x = await_held();
    ck_assert_int_eq(setsockopt(x->connection->fd, SOL_SOCKET, SO_SNDBUF, &(int){4096}, sizeof(int)), 0);
    ck_assert_int_eq(setsockopt(x->connection->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &(int){0}, sizeof(int)), 0);
    return x;
}

// However many they are, and however they choose their sizes: here each takes what would have been its equal share when
// it came.
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
    while (taken < 40000) // what the sockets held before they were made narrow
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

// --- bounds

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

START_TEST(idle_connections_give_way_at_the_limit)
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

// Asks again; whether the connection ends with the response.
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
    ck_assert(text.size == 0 && !text.reset);
    free(text.bytes);
    http_stream_send(x, "goes on", 7);
    free(client_receive_until(running, "goes on").bytes);
    http_unref(x);
    close(asking);
    close(running);
    close_server();
}
END_TEST

// A byte now and then does not put the limit of the head off.
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

// --- closing

START_TEST(closing_waits_for_open_requests_and_refuses_new_connections)
{
    open_server((struct http_server_options){0});
    int fd = client_connect(port()), idle = client_connect(port());
    AWAIT(server_status().connections == 2);
    client_send(fd, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_exchange *x = await_held();
    http_server_stop_accepting(server);
    ck_assert_int_lt(client_try_connect(port()), 0);
    struct client_text text = client_receive_all(idle);
    ck_assert_uint_eq(text.size, 0);
    free(text.bytes);
    http_respond(x, 200, "text/plain", "last", 4);
    http_unref(x);
    http_server_close(server, 60000);
    ck_assert_int_eq(atomic_load(&n_closed), 1);
    text = client_receive_all(fd);
    expect_part(text.bytes, "Connection: close\r\n\r\nlast");
    free(text.bytes);
    close(fd);
    close(idle);
}
END_TEST

START_TEST(closing_disconnects_after_the_grace_and_late_answers_do_nothing)
{
    open_server((struct http_server_options){.threads = 3});
    int fd = client_connect(port());
    client_send(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    struct http_exchange *x = await_held();
    http_server_close(server, 10);
    ck_assert_int_eq(atomic_load(&n_disconnected), 1);
    http_stream_send(x, "late", 4);
    http_stream_end(x);
    ck_assert_str_eq(http_path(x), "/stream");
    http_body_free(x);
    http_unref(x);
    close(fd);
}
END_TEST

START_TEST(a_used_address_and_a_bad_host_are_refused)
{
    open_server((struct http_server_options){0});
    struct http_server *second = NULL;
    struct http_server_options o = {.routes = routes, .port = port()};
    ck_assert_int_eq(http_server_open(&o, &second), STATUS_UNAVAILABLE);
    expect_part(status_message(), "is in use");
    o = (struct http_server_options){.routes = routes, .host = "no such host"};
    ck_assert_int_eq(http_server_open(&o, &second), STATUS_UNAVAILABLE);
    ck_assert_ptr_null(second);
    close_server();
}
END_TEST

START_TEST(a_server_listens_on_every_address_of_its_host)
{
    static const char *const hosts[] = {"localhost", "0.0.0.0"};
    open_server((struct http_server_options){.host = hosts[_i]});
    char *text = client_ask_raw(port(), "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); // by IPv4
    ck_assert_msg(text && strncmp(text, "HTTP/1.1 200 ", 13) == 0, "%s: %s", hosts[_i], text);
    free(text);
    http_server_close(server, 1000);
}
END_TEST

static int open_and_get_port(void)
{
    open_server((struct http_server_options){0});
    return port();
}

START_TEST(a_server_without_listener_ends_the_process)
{
    expect_abort_without_listener(open_and_get_port);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("http_server");
    TCase *served = tcase_create("served");
    tcase_add_test(served, a_request_is_answered_with_date_type_and_length);
    tcase_add_test(served, requests_sent_at_once_are_answered_in_order);
    tcase_add_test(served, a_waiting_request_keeps_its_place_before_the_next_one);
    tcase_add_test(served, head_gets_the_length_without_the_body);
    tcase_add_test(served, http_1_0_gets_a_closed_connection_and_no_chunks);
    tcase_add_test(served, http_1_0_may_keep_its_connection);
    tcase_add_test(served, paths_and_queries_are_decoded);
    tcase_add_test(served, a_header_value_cannot_start_another_header);
    tcase_add_test(served, options_and_unknown_methods_name_the_methods);
    tcase_add_test(served, a_connection_survives_404_and_405);
    suite_add_tcase(suite, served);
    TCase *bodies = tcase_create("bodies");
    tcase_add_test(bodies, a_large_body_arrives_whole);
    tcase_add_test(bodies, a_chunked_body_arrives_whole);
    tcase_add_test(bodies, continue_is_sent_before_the_body_is_awaited);
    tcase_add_test(bodies, a_caller_is_refused_before_the_body_is_read);
    tcase_add_test(bodies, a_body_above_the_limit_is_refused_and_the_client_reads_why);
    tcase_add_test(bodies, stalled_bodies_do_not_keep_out_smaller_ones);
    tcase_add_test(bodies, stalled_heads_do_not_keep_out_bodies);
    tcase_add_loop_test(bodies, the_busiest_connection_of_a_budget_is_closed, 0, 2);
    tcase_add_test(bodies, requests_sent_ahead_do_not_keep_out_bodies);
    tcase_add_test(bodies, the_largest_body_beyond_the_total_is_refused);
    tcase_add_loop_test(bodies, four_of_the_largest_bodies_are_received_at_once, 0, 3);
    tcase_add_test(bodies, heads_count_like_bodies);
    suite_add_tcase(suite, bodies);
    TCase *streams = tcase_create("streams");
    tcase_add_test(streams, a_stream_is_chunked_and_its_connection_goes_on);
    tcase_add_test(streams, a_client_that_goes_away_is_seen_without_sending);
    tcase_add_test(streams, a_request_before_a_half_close_is_answered);
    tcase_add_test(streams, all_requests_before_a_half_close_are_answered);
    tcase_add_test(streams, a_reader_that_stops_is_disconnected_at_the_limit);
    tcase_add_test(streams, readers_that_stop_share_a_limit);
    tcase_add_test(streams, a_reader_that_stops_is_disconnected_after_a_while);
    tcase_add_test(streams, many_readers_that_stop_keep_to_the_limit);
    tcase_add_test(streams, a_reader_that_takes_a_few_bytes_now_and_then_is_disconnected);
    tcase_add_test(streams, a_slow_reader_gets_everything);
    suite_add_tcase(suite, streams);
    TCase *bounds = tcase_create("bounds");
    tcase_add_test(bounds, connections_beyond_the_limit_are_closed);
    tcase_add_test(bounds, idle_connections_give_way_at_the_limit);
    tcase_add_test(bounds, connections_of_one_address_are_bounded);
    tcase_add_test(bounds, a_refused_connection_closes_no_idle_one);
    tcase_add_test(bounds, time_limits_end_slow_requests);
    tcase_add_test(bounds, an_old_connection_ends_with_its_next_response);
    tcase_add_test(bounds, a_head_in_single_bytes_meets_its_limit);
    tcase_add_test(bounds, half_open_connections_do_not_disturb_others);
    suite_add_tcase(suite, bounds);
    TCase *closing = tcase_create("closing");
    tcase_add_test(closing, closing_waits_for_open_requests_and_refuses_new_connections);
    tcase_add_test(closing, closing_disconnects_after_the_grace_and_late_answers_do_nothing);
    tcase_add_test(closing, a_used_address_and_a_bad_host_are_refused);
    tcase_add_loop_test(closing, a_server_listens_on_every_address_of_its_host, 0, 2);
    tcase_add_test(closing, a_server_without_listener_ends_the_process);
    suite_add_tcase(suite, closing);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
