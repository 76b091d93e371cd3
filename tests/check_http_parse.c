// SPDX-License-Identifier: Apache-2.0
// lib/http/parse.h and what the server answers to requests that break the protocol: the documented status, never a
// handler.
#include "lib/base/mem.h"
#include "lib/http/parse.h"
#include "tests/http_expect.h"
#include "tests/suite.h"

struct parsed {
    struct http_head head;
    char texts[HTTP_TEXT_ROOM(70000)];
    const char *sentence;
};

// Returns the status of a whole head, or 0 if it is valid, or -1 if the scan refused it.
static int parse(const char *text, struct parsed *p)
{
    struct http_scan scan = {0};
    enum http_parse found = http_scan_head(&scan, text, strlen(text));
    if (found == HTTP_PARSE_BAD) return -1;
    ck_assert_msg(found == HTTP_PARSE_DONE, "a whole head: %s", text);
    ck_assert_msg(scan.at == strlen(text), "a whole head: %s", text);
    return http_parse_head(text, strlen(text), p->texts, &p->head, &p->sentence);
}

static void expect_status(int status, const char *text)
{
    static struct parsed p;
    int got = parse(text, &p);
    ck_assert_msg(got == status, "%d instead of %d: %s", got, status, text);
}

START_TEST(a_head_is_taken_apart)
{
    static struct parsed p;
    ck_assert_int_eq(parse("POST /a%20b?x=1&x=2&y HTTP/1.1\r\nHost: h\r\nContent-Length:  12 \t\r\nX-Empty:\r\n"
                           "Connection: foo , Close\r\nExpect: 100-Continue\r\n\r\n",
                           &p),
                     0);
    ck_assert_str_eq(p.texts + p.head.method, "POST");
    ck_assert_str_eq(p.texts + p.head.path, "/a b");
    ck_assert_str_eq(http_pair(p.texts + p.head.fields, "content-length"), "12");
    ck_assert_str_eq(http_pair(p.texts + p.head.fields, "X-EMPTY"), "");
    ck_assert_ptr_null(http_pair(p.texts + p.head.fields, "absent"));
    ck_assert(p.head.has_length);
    ck_assert(!p.head.chunked);
    ck_assert(!p.head.keep_alive);
    ck_assert(p.head.expect_continue);
    ck_assert(!p.head.http_1_0);
    ck_assert_uint_eq(p.head.content_length, 12);
}
END_TEST

START_TEST(one_empty_line_before_the_request_is_ignored)
{
    expect_status(0, "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n");
    expect_status(400, "\r\n\r\n");
}
END_TEST

// Every prefix of a head needs more bytes. The end is found in the same place, however the bytes arrive.
START_TEST(a_head_may_arrive_in_any_pieces)
{
    static const char text[] = "\r\nGET /x HTTP/1.1\r\nHost: h\r\n\r\nrest";
    size_t end = sizeof text - 1 - 4;
    for (size_t cut = 0; cut < end; cut++) {
        struct http_scan scan = {0};
        ck_assert_int_eq(http_scan_head(&scan, text, cut), HTTP_PARSE_MORE);
        ck_assert_int_eq(http_scan_head(&scan, text, sizeof text - 1), HTTP_PARSE_DONE);
        ck_assert_uint_eq(scan.at, end);
    }
}
END_TEST

START_TEST(malformed_request_lines_are_refused)
{
    static const char *const bad[] = {
        "GET  / HTTP/1.1",    "GET / HTTP/1.1 ",     "GET /",           "G(T / HTTP/1.1",    "GET x HTTP/1.1",
        "GET /\x01 HTTP/1.1", "GET /\xff HTTP/1.1",  "GET /# HTTP/1.1", "GET /%zz HTTP/1.1", "GET /%0 HTTP/1.1",
        "GET /%00 HTTP/1.1",  "GET /?a=%0 HTTP/1.1", "GET / http/1.1",  "GET /\t HTTP/1.1",  "GET HTTP/1.1",
        "GET / HTTP/1.1\r",   "GET / HTTP/11",       "GET / HTTP/1.1x",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "%s\r\nHost: h\r\n\r\n", bad[i]);
        expect_status(400, text);
    }
    expect_status(505, "GET / HTTP/2.0\r\nHost: h\r\n\r\n");
    expect_status(505, "PRI * HTTP/2.0\r\n\r\n");
    expect_status(505, "GET / HTTP/1.2\r\nHost: h\r\n\r\n");
    expect_status(-1, " GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    expect_status(-1, "\x16\x03\x01\x02"); // a TLS client
}
END_TEST

START_TEST(malformed_fields_are_refused)
{
    static const char *const bad[] = {
        "X : a",            // a blank before the colon
        " X: a",            // and before the name
        "X: a\r\n b",       // folded
        "X: a\r\n\tb",      //
        "X",                // no colon
        ": a",              // no name
        "X(: a",            // no token
        "X: a\x01",         // a control character
        "X: a\rY: b",       // a CR alone
        "Host: a",          // a second Host
        "X\xc3\xa4: a",     //
        "Content-Length: ", // no number
        "Content-Length: -1",
        "Content-Length: +1",
        "Content-Length: 0x1",
        "Content-Length: 1 2",
        "Content-Length: 1, 1",
        "Content-Length: 1\r\nContent-Length: 1",
        "Content-Length: 1\r\ncontent-length: 2",
        "Content-Length: 1\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 1",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    };
    static const char *const hosts[] = {"", "a@b", "a/b", "a,b", "a:b", ":80", "a b", "[::1", "[::1]x", "a:1:2", "[]x"};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", hosts[i]);
        expect_status(400, text);
    }
    expect_status(400, "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n");
    expect_status(400, "GET * HTTP/1.1\r\nHost: h\r\n\r\n");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "POST / HTTP/1.1\r\nHost: h\r\n%s\r\n\r\n", bad[i]);
        expect_status(400, text);
    }
    expect_status(400, "GET / HTTP/1.1\r\n\r\n");                                        // no Host
    expect_status(400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n");         // HTTP/1.0 has no chunks
    expect_status(501, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n"); // an unknown coding
    expect_status(501, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n");
    expect_status(501, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n");
    expect_status(400, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, gzip\r\n\r\n");
    expect_status(400, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n");
    expect_status(400, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \r\n\r\n");
    expect_status(400, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\nContent-Length: 1\r\n\r\n");
    expect_status(417, "POST / HTTP/1.1\r\nHost: h\r\nExpect: 200-ok\r\n\r\n");
    expect_status(0, "GET / HTTP/1.1\r\nHost: h\r\nX: \x80\xff\ty\r\n\r\n");
}
END_TEST

START_TEST(bare_line_feeds_are_refused)
{
    expect_status(-1, "GET / HTTP/1.1\nHost: h\n\n");
    expect_status(-1, "GET / HTTP/1.1\r\nHost: h\n\r\n");
    expect_status(-1, "GET / HTTP/1.1\r\nHost: h\r\n\n");
    expect_status(-1, "\nGET / HTTP/1.1\r\nHost: h\r\n\r\n");
}
END_TEST

START_TEST(a_huge_length_is_larger_than_every_limit)
{
    static struct parsed p;
    ck_assert_int_eq(parse("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551617\r\n\r\n", &p), 0);
    ck_assert_uint_ge(p.head.content_length, INT64_MAX);
    ck_assert_int_eq(parse("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9999999999999999999\r\n\r\n", &p), 0);
    ck_assert_uint_ge(p.head.content_length, INT64_MAX);
}
END_TEST

START_TEST(too_many_fields_are_refused)
{
    for (int extra = 0; extra < 2; extra++) {
        char text[2000] = "GET / HTTP/1.1\r\nHost: h\r\n";
        for (int i = 1; i < HTTP_FIELDS_MAX + extra; i++)
            strcat(text, "X: a\r\n");
        strcat(text, "\r\n");
        expect_status(extra ? 431 : 0, text);
    }
}
END_TEST

// The texts of any query fit their buffer. A name without a value needs two bytes more than in the request.
START_TEST(texts_fit_their_room)
{
    enum { N = 30000 };
    static char text[2 * N + 100];
    char *at = text + sprintf(text, "GET /?");
    for (int i = 0; i < N; i++)
        at += sprintf(at, "a&");
    sprintf(at, " HTTP/1.1\r\nHost: h\r\n\r\n");
    size_t size = strlen(text);
    char *texts = malloc(HTTP_TEXT_ROOM(size)); // its end is guarded in the sanitized build
    struct http_head head;
    const char *sentence;
    ck_assert_int_eq(http_parse_head(text, size, texts, &head, &sentence), 0);
    ck_assert_uint_le(head.text_size, HTTP_TEXT_ROOM(size));
    free(texts);
}
END_TEST

// --- chunked bodies

// Returns the body, with "!" for a refusal and "..." for a missing end. `step` bytes arrive at a time.
static const char *read_chunks(const char *text, size_t size, size_t step)
{
    static char body[100000];
    struct http_chunks chunks = {0};
    size_t n_body = 0;
    for (size_t from = 0; from < size; from += step) {
        size_t at = from, to = from + step < size ? from + step : size;
        while (at < to) {
            const char *data;
            size_t n;
            enum http_parse result = http_read_chunks(&chunks, text, to, &at, &data, &n);
            if (result == HTTP_PARSE_BAD) return "!";
            if (n) memcpy(body + n_body, data, n);
            n_body += n;
            body[n_body] = '\0';
            if (result == HTTP_PARSE_DONE) return at == size ? body : "more";
        }
    }
    return "...";
}

static void expect_chunks(const char *text, const char *body)
{
    for (size_t step = 1; step <= strlen(text); step++) {
        const char *got = read_chunks(text, strlen(text), step);
        ck_assert_msg(strcmp(got, body) == 0, "%s instead of %s in steps of %zu: %s", got, body, step, text);
    }
}

START_TEST(chunks_are_joined_however_they_arrive)
{
    expect_chunks("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "abcde");
    expect_chunks("0\r\n\r\n", "");
    expect_chunks("00\r\n\r\n", "");
    expect_chunks("a;x=\"y;\\\"\" ; z=1;w \r\n0123456789\r\n0;e\r\nTrailer: v\r\nOther: w\r\n\r\n", "0123456789");
    expect_chunks("1\r\n\r\r\n1\r\n\n\r\n0\r\n\r\n", "\r\n");
    expect_chunks("3\r\nab", "...");
}
END_TEST

START_TEST(malformed_chunks_are_refused)
{
    static const char *const bad[] = {
        "\r\n",        "x\r\n",       "-1\r\n",         " 1\r\na\r\n",  "1 \r\na\r\n",       "1\na\r\n",
        "1\r\nab\r\n", "1\r\na\n",    "1;x\n",          "1;\x01\r\n",   "1;\r\r\n",          "0\r\n\n",
        "0\r\n x\r\n", "0\r\nX: a\n", "0\r\nX\x7f\r\n", "0x1\r\na\r\n", "1000000000000\r\n", "0000000000001\r\na\r\n",
        ";\r\n",       "1\rX",        "1;\r\n",         "1;[\r\n",      "1;a=\r\n",          "1;a=\"b\r\n",
        "1;a b\r\n",   "1;a=b c\r\n", "1;a=\"b\"c\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_chunks(bad[i], "!");
}
END_TEST

START_TEST(extensions_and_trailers_are_bounded)
{
    enum { SIZE = 40000 };
    static char text[SIZE];
    size_t n = 0;
    while (n <= HTTP_EXTENSIONS_MAX * 7)
        n += (size_t)sprintf(text + n, "1;x\r\na\r\n"); // the smallest extension, very often
    ck_assert_str_eq(read_chunks(text, n, n), "!");
    memset(text, 'x', SIZE);
    memcpy(text, "0\r\n", 3);
    ck_assert_str_eq(read_chunks(text, SIZE, SIZE), "!");
    memcpy(text, "1;", 2);
    ck_assert_str_eq(read_chunks(text, SIZE, SIZE), "!");
    for (n = 3; n + 5 < SIZE; n += 5)
        memcpy(text + n, "X:a\r\n", 5);
    memcpy(text, "0\r\n", 3);
    ck_assert_str_eq(read_chunks(text, n, n), "!");
}
END_TEST

// --- the server's answers

static void expect_refusal(const char *request, size_t size, int status)
{
    char start[32];
    snprintf(start, sizeof start, "HTTP/1.1 %d ", status);
    int fd = client_connect(port());
    client_send_bytes(fd, request, size);
    struct client_text text = client_receive_all(fd);
    expect_start(text.bytes, start);
    expect_part(text.bytes, "Connection: close\r\n");
    free(text.bytes);
    close(fd);
}

START_TEST(a_broken_request_is_answered_and_closes_its_connection)
{
    open_server((struct http_server_options){0});
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: all\r\n\r\n", 417},
        {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 413},
        {"GET /hello HTTP/1.1\r\nHost : x\r\n\r\n", 400},
        {"GET /hello HTTP/1.1\nHost: x\n\n", 400},
        {"GET /hello HTTP/3.0\r\nHost: x\r\n\r\n", 505},
        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
        {"\x16\x03\x01\x02\x00\x01", 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refusal(cases[i].request, strlen(cases[i].request), cases[i].status);
    static const char nul[] = "GET /hello HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n";
    expect_refusal(nul, sizeof nul - 1, 400);
    ck_assert_int_eq(atomic_load(&n_requests), 0);
    http_server_close(server, 1000);
}
END_TEST

START_TEST(a_large_head_is_refused)
{
    open_server((struct http_server_options){.max_head_bytes = 4096});
    static char text[200000];
    memset(text, 'x', sizeof text);
    memcpy(text, "GET /", 5);
    expect_refusal(text, sizeof text, 431); // a line without an end
    size_t n = (size_t)sprintf(text, "GET /hello HTTP/1.1\r\nHost: x\r\n");
    while (n < 4096)
        n += (size_t)sprintf(text + n, "X%zu: a\r\n", n);
    n += (size_t)sprintf(text + n, "\r\n");
    expect_refusal(text, n, 431); // a head that arrives whole
    ck_assert_int_eq(atomic_load(&n_requests), 0);
    http_server_close(server, 1000);
}
END_TEST

// The bytes after a refused request are never taken for a request.
START_TEST(nothing_after_a_refused_request_is_served)
{
    open_server((struct http_server_options){0});
    char *text =
        client_ask_raw(port(), "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 44\r\nTransfer-Encoding: chunked\r\n"
                               "\r\n0\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
    ck_assert_ptr_null(strstr(text, "hello"));
    free(text);
    ck_assert_uint_eq(server_status().requests, 0);
    http_server_close(server, 1000);
}
END_TEST

static size_t json_error(const char *path, int status, const char *sentence, char *body, size_t room)
{
    return (size_t)snprintf(body, room, "{\"path\":\"%s\",\"status\":%d,\"message\":\"%s\"}", path, status, sentence);
}

START_TEST(error_bodies_may_be_the_products_own)
{
    open_server((struct http_server_options){.error_body = json_error, .error_type = "application/json"});
    char *text = client_ask_raw(port(), "GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(text, "Content-Type: application/json\r\n"));
    ck_assert_ptr_nonnull(strstr(text, "{\"path\":\"/nowhere\",\"status\":404,"));
    free(text);
    http_server_close(server, 1000);
}
END_TEST

SUITE("http_parse")
{
    TCASE("heads");
    TEST(a_head_is_taken_apart);
    TEST(one_empty_line_before_the_request_is_ignored);
    TEST(a_head_may_arrive_in_any_pieces);
    TEST(malformed_request_lines_are_refused);
    TEST(malformed_fields_are_refused);
    TEST(bare_line_feeds_are_refused);
    TEST(a_huge_length_is_larger_than_every_limit);
    TEST(too_many_fields_are_refused);
    TEST(texts_fit_their_room);

    TCASE("chunks");
    TEST(chunks_are_joined_however_they_arrive);
    TEST(malformed_chunks_are_refused);
    TEST(extensions_and_trailers_are_bounded);

    TCASE("answers");
    TEST(a_broken_request_is_answered_and_closes_its_connection);
    TEST(a_large_head_is_refused);
    TEST(nothing_after_a_refused_request_is_served);
    TEST(error_bodies_may_be_the_products_own);
}
