// SPDX-License-Identifier: Apache-2.0
// http/: responses made by the server itself have the product's headers, responses to HEAD have no body, and all
// responses are counted.
#include "tests/http_expect.h"
#include "tests/suite.h"

// Sets "x-request-id" as a product does, in on_head or in the server's hook.
static void name_request(struct http_exchange *x)
{
    http_add_header(x, "x-request-id", "by-on-head");
}

static size_t own_headers(const struct http_exchange *x, char *lines, size_t room)
{
    const char *given = x ? http_header(x, "x-request-id") : NULL;
    return (size_t)snprintf(lines, room, "x-request-id: %s\r\n", given ? given : "made");
}

static size_t error_body(const char *path, int status, const char *sentence, char *body, size_t room)
{
    return (size_t)snprintf(body, room, "<%s %d>", path, status);
}

static const struct http_route named_routes[] = {
    {.method = "GET", .path = "/hello", .on_head = name_request, .on_request = say_hello},
    {.method = "POST", .path = "/echo", .on_head = name_request, .on_request = echo, .max_body_bytes = 16},
    {0},
};

static void open_named_server(void)
{
    const struct http_server_options o = {.routes = named_routes,
                                          .own_headers = own_headers,
                                          .error_body = error_body,
                                          .error_type = "text/plain",
                                          .max_head_bytes = 1000,
                                          .max_bodies_bytes = 4000,
                                          .head_ms = 100,
                                          .stall_ms = 100};
    ck_assert_msg(http_server_open(&o, &server) == STATUS_OK, "%s", status_message());
}

static void expect_header(const char *request, int status, const char *header)
{
    char start[32];
    snprintf(start, sizeof start, "HTTP/1.1 %d ", status);
    char *text = client_ask_raw(port(), request);
    expect_start(text, start);
    const char *found = strstr(text, header);
    ck_assert_msg(found != NULL, "with '%s': %s", header, text);
    ck_assert_msg(!strstr(found + strlen(header), "x-request-id"), "twice: %s", text);
    free(text);
}

START_TEST(every_own_answer_has_the_products_headers)
{
    static const struct {
        const char *request;
        int status;
        const char *id;
    } cases[] = {
        {"GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200, "by-on-head"},
        {"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404, "made"},
        {"GET /nowhere HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\nConnection: close\r\n\r\n", 404, "mine"},
        {"DELETE /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405, "made"},
        {"OPTIONS /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 204, "made"},
        {"GET /hello HTTP/1.1\nHost: x\n\n", 400, "made"},
        {"GET /hello HTTP/9.1\r\nHost: x\r\n\r\n", 505, "made"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "made"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: all\r\n\r\n", 417, "made"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n", 413, "by-on-head"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n", 400, "by-on-head"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na", 408, "by-on-head"},
        {"GET /hel", 408, "made"},
    };
    open_named_server();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char header[64];
        snprintf(header, sizeof header, "\r\nx-request-id: %s\r\n", cases[i].id);
        expect_header(cases[i].request, cases[i].status, header);
    }
    static char large[2000] = "GET /hello HTTP/1.1\r\nX: ";
    memset(large + strlen(large), 'x', sizeof large - 1 - strlen(large));
    expect_header(large, 431, "\r\nx-request-id: made\r\n");
    close_server();
}
END_TEST

START_TEST(head_gets_no_body_whatever_the_answer)
{
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {"HEAD /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200},
        {"HEAD /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404},
        {"HEAD /hello HTTP/1.1\r\nno colon\r\n\r\n", 400},
        {"HEAD /hello HTTP/1.1\nHost: x\n\n", 400},
        {"\r\nHEAD /hello HTTP/1.1\r\nHost : x\r\n\r\n", 400},
        {"HEAD /hello HTTP/9.1\r\nHost: x\r\n\r\n", 505},
        {"HEAD /hello HTTP/1.1\r\nHo", 408},
    };
    open_named_server();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = client_ask_raw(port(), cases[i].request), start[32];
        snprintf(start, sizeof start, "HTTP/1.1 %d ", cases[i].status);
        expect_start(text, start);
        ck_assert_msg(strstr(text, "\r\n\r\n")[4] == '\0', "%s", text);
        ck_assert_msg(!strstr(text, "Content-Length: 0\r\n"), "%s", text);
        free(text);
    }
    char *text = client_ask_raw(port(), "HEADER /hello HTTP/1.1\nHost: x\n\n"); // another method
    ck_assert_msg(strstr(text, "\r\n\r\n")[4], "%s", text);
    free(text);
    close_server();
}
END_TEST

START_TEST(the_products_error_body_knows_the_path)
{
    static const struct {
        const char *request, *body;
    } cases[] = {
        {"GET /nowhere?a=/b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "</nowhere 404>"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n", "</echo 413>"},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na", "</echo 408>"},
        // Heads that cannot be parsed, and an incomplete head.
        {"POST /echo?a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", "</echo 400>"},
        {"\r\nPOST /echo HTTP/9.1\r\nHost: x\r\n\r\n", "</echo 505>"},
        {"POST /echo HTTP/1.1\r\nHost : x\r\n\r\n", "</echo 400>"},
        {"POST /echo HTTP/1.1\nHost: x\n\n", "</echo 400>"},
        {"POST /echo HTTP/1.1\r\nHo", "</echo 408>"},
        {"POST /ec", "</ec 408>"},
        {"POST", "< 408>"},
        {"x\n", "< 400>"},
    };
    open_named_server();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = client_ask_raw(port(), cases[i].request);
        expect_part(text, cases[i].body);
        free(text);
    }
    close_server();
}
END_TEST

START_TEST(responses_and_bytes_are_counted)
{
    static const char hello[] = "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                      nowhere[] = "GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", broken[] = "x\n";
    open_named_server();
    size_t sent = 0, n = 0;
    for (int i = 0; i < 3; i++) {
        const char *request = i == 0 ? hello : i == 1 ? nowhere : broken;
        char *text = client_ask_raw(port(), request);
        sent += strlen(request);
        n += strlen(text);
        free(text);
    }
    AWAIT(server_status().connections == 0);
    struct http_server_status s = server_status();
    ck_assert_uint_eq(s.responses[2], 1);
    ck_assert_uint_eq(s.responses[4], 2);
    ck_assert_uint_eq(s.responses[5], 0);
    ck_assert_uint_eq(s.requests, 2);
    ck_assert_uint_eq(s.accepted, 3);
    ck_assert_uint_eq(s.received_bytes, sent);
    ck_assert_uint_eq(s.sent_bytes, n);
    close_server();
}
END_TEST

SUITE("http_own_answers")
{
    TEST(every_own_answer_has_the_products_headers);
    TEST(head_gets_no_body_whatever_the_answer);
    TEST(the_products_error_body_knows_the_path);
    TEST(responses_and_bytes_are_counted);
}
