// SPDX-License-Identifier: Apache-2.0
// http/: requests, bodies and responses over real sockets, and the end of a server.
#include "lib/base/mem.h"
#include "lib/http/internal.h"
#include "tests/dead_listener.h"
#include "tests/http_expect.h"
#include "tests/suite.h"

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

START_TEST(pipelined_requests_are_answered_in_order)
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

START_TEST(paths_are_decoded_and_queries_left_out)
{
    open_server((struct http_server_options){0});
    expect_answer("GET /things/a%2Fb%20c?x=1&q=a+b%26c&empty HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                  "HTTP/1.1 200", "\r\n\r\nGET /things/a/b c");
    expect_answer("GET http://host:1/things/x HTTP/1.1\r\nHost: Host:1\r\nConnection: close\r\n\r\n", "HTTP/1.1 200",
                  "\r\n\r\nGET /things/x");
    expect_answer("GET /things/x/?y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200",
                  "X-Path: /things/x\r\n");
    expect_answer("GET /hello/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200", "hello");
    expect_answer("GET /hello// HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 404", "does not exist");
    expect_answer("GET /things/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 404", "does not exist");
    close_server();
}
END_TEST

START_TEST(a_header_value_cannot_start_another_header)
{
    open_server((struct http_server_options){0});
    expect_answer("GET /things/a%0d%0aSet-Cookie:b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 200",
                  "X-Path: /things/a  Set-Cookie:b\r\n");
    close_server();
}
END_TEST

START_TEST(options_and_unknown_methods_name_the_methods)
{
    open_server((struct http_server_options){0});
    expect_answer("OPTIONS /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 204",
                  "Allow: GET, HEAD, OPTIONS\r\n");
    expect_answer("OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 204",
                  "Allow: GET, HEAD, POST, DELETE, OPTIONS\r\n");
    expect_answer("OPTIONS /things/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 204",
                  "Allow: GET, HEAD, DELETE, OPTIONS\r\n");
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

    // Refused by the size of a chunk of which no byte has arrived.
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

// Connects a client that sends the first `n` bytes of a body and then stalls. Returns when the server has `all` bytes
// of bodies.
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

    // Heads are not refused either.
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

// Connects a client that sends the first `size` bytes of a head. Returns when the server has `all` bytes of bodies and
// heads.
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

// Two connections of 20,000 bytes and one of 24,000, with a budget that suffices (_i 0) or is one byte too small.
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

START_TEST(pipelined_requests_do_not_keep_out_bodies)
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

START_TEST(four_of_the_largest_bodies_are_received_together)
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
    expect_start(text, "HTTP/1.1 200 ");
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

SUITE("http_server")
{
    TCASE("served");
    TEST(a_request_is_answered_with_date_type_and_length);
    TEST(pipelined_requests_are_answered_in_order);
    TEST(a_waiting_request_keeps_its_place_before_the_next_one);
    TEST(head_gets_the_length_without_the_body);
    TEST(http_1_0_gets_a_closed_connection_and_no_chunks);
    TEST(http_1_0_may_keep_its_connection);
    TEST(paths_are_decoded_and_queries_left_out);
    TEST(a_header_value_cannot_start_another_header);
    TEST(options_and_unknown_methods_name_the_methods);
    TEST(a_connection_survives_404_and_405);

    TCASE("bodies");
    TEST(a_large_body_arrives_whole);
    TEST(a_chunked_body_arrives_whole);
    TEST(continue_is_sent_before_the_body_is_awaited);
    TEST(a_caller_is_refused_before_the_body_is_read);
    TEST(a_body_above_the_limit_is_refused_and_the_client_reads_why);
    TEST(stalled_bodies_do_not_keep_out_smaller_ones);
    TEST(stalled_heads_do_not_keep_out_bodies);
    LOOP(the_busiest_connection_of_a_budget_is_closed, 0, 2);
    TEST(pipelined_requests_do_not_keep_out_bodies);
    TEST(the_largest_body_beyond_the_total_is_refused);
    LOOP(four_of_the_largest_bodies_are_received_together, 0, 3);
    TEST(heads_count_like_bodies);

    TCASE("closing");
    TEST(closing_waits_for_open_requests_and_refuses_new_connections);
    TEST(closing_disconnects_after_the_grace_and_late_answers_do_nothing);
    TEST(a_used_address_and_a_bad_host_are_refused);
    LOOP(a_server_listens_on_every_address_of_its_host, 0, 2);
    TEST(a_server_without_listener_ends_the_process);
}
