// SPDX-License-Identifier: Apache-2.0
// http/: bodies with Content-Encoding: gzip, and other encodings.
#include <zlib.h>

#include "lib/base/mem.h"
#include "tests/http_expect.h"
#include "tests/suite.h"

enum { LIMIT = 1 << 20 };

static void open_echo(void)
{
    open_server((struct http_server_options){.max_body_bytes = LIMIT});
}

// Appends a gzip member with `size` bytes to out[room]. Returns its size.
static size_t deflate_to(const char *bytes, size_t size, char *out, size_t room)
{
    z_stream z = {.next_in = (Bytef *)bytes, .avail_in = (uInt)size, .next_out = (Bytef *)out, .avail_out = (uInt)room};
    ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY), Z_OK);
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

static char *random_text(size_t size)
{
    char *text = malloc(size + 1);
    uint32_t state = 1;
    for (size_t i = 0; i < size; i++)
        text[i] = "abcdefghijklmnop"[(state = state * 1664525 + 1013904223) >> 28];
    text[size] = '\0';
    return text;
}

// Sends a body of bytes[size], in pieces of `piece` bytes, as chunks if `chunked`. The caller frees the answer.
static char *post(const char *lines, const char *bytes, size_t size, size_t piece, bool chunked)
{
    int fd = client_connect(port());
    char length[48];
    snprintf(length, sizeof length, chunked ? "Transfer-Encoding: chunked" : "Content-Length: %zu", size);
    char *head = mem_format("POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s%s\r\n\r\n", lines, length);
    client_send(fd, head);
    free(head);
    for (size_t at = 0; at < size; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        char mark[24];
        snprintf(mark, sizeof mark, "%zx\r\n", n);
        if (chunked) client_send(fd, mark);
        client_send_bytes(fd, bytes + at, n);
        if (chunked) client_send(fd, "\r\n");
    }
    if (chunked) client_send(fd, "0\r\n\r\n");
    struct client_text text = client_receive_all(fd);
    close(fd);
    return text.bytes;
}

static const char gzip[] = "Content-Encoding: gzip\r\n";

START_TEST(a_gzip_body_is_decoded)
{
    static const size_t pieces[] = {1 << 20, 7000, 1};
    size_t size = 300000;
    char *text = random_text(size), *packed = malloc(size);
    size_t n = deflate_to(text, size, packed, size);
    open_echo();
    for (int i = 0; i < 2 * 2; i++) {
        char *answer = post(i % 2 ? "content-encoding: X-GZIP\r\n" : gzip, packed, n, pieces[i / 2], i % 2);
        expect_start(answer, "HTTP/1.1 200");
        expect_part(answer, text);
        free(answer);
    }
    char *answer = post(gzip, packed, deflate_to("abc", 3, packed, size), 1, false);
    expect_part(answer, "\r\n\r\nabc");
    free(answer);
    close_server();
    free(text);
    free(packed);
}
END_TEST

START_TEST(a_body_may_have_several_members)
{
    char packed[200];
    size_t n = deflate_to("abc", 3, packed, sizeof packed);
    n += deflate_to("", 0, packed + n, sizeof packed - n);
    n += deflate_to("def", 3, packed + n, sizeof packed - n);
    open_echo();
    char *answer = post(gzip, packed, n, 5, true);
    expect_part(answer, "\r\n\r\nabcdef");
    free(answer);
    close_server();
}
END_TEST

START_TEST(the_limit_holds_for_the_decoded_bytes)
{
    char *zeros = calloc(1, 64 << 20), *packed = malloc(1 << 20);
    size_t most = deflate_to(zeros, LIMIT, packed, 1 << 20);
    open_echo();
    char *answer = post(gzip, packed, most, 1 << 20, false);
    expect_start(answer, "HTTP/1.1 200");
    free(answer);
    size_t bomb = deflate_to(zeros, 64 << 20, packed, 1 << 20);
    for (int chunked = 0; chunked < 2; chunked++) {
        answer = post(gzip, packed, bomb, 1 << 20, chunked);
        expect_start(answer, "HTTP/1.1 413");
        free(answer);
    }
    AWAIT(server_status().body_bytes == 0);
    close_server();
    free(zeros);
    free(packed);
}
END_TEST

START_TEST(the_limit_holds_for_the_encoded_bytes)
{
    char member[64], *packed = malloc(2 * LIMIT);
    size_t n = deflate_to("", 0, member, sizeof member), size = 0;
    for (; size <= LIMIT; size += n) // members that decode to nothing
        memcpy(packed + size, member, n);
    open_echo();
    char *answer = post(gzip, packed, size, 4096, true); // the last chunk, above the limit, comes in one piece
    expect_start(answer, "HTTP/1.1 413");
    free(answer);
    close_server();
    free(packed);
}
END_TEST

START_TEST(broken_bodies_are_refused)
{
    char packed[200];
    size_t n = deflate_to("hello, hello, hello", 19, packed, sizeof packed);
    open_echo();
    char *answer = post(gzip, "{\"model\":1}", 11, 11, false);
    expect_start(answer, "HTTP/1.1 400");
    expect_part(answer, "is not gzip");
    free(answer);
    for (size_t cut = 1; cut < n; cut++) {
        answer = post(gzip, packed, n - cut, n, false);
        expect_start(answer, "HTTP/1.1 400");
        expect_part(answer, "ends too early");
        free(answer);
    }
    packed[n - 5] ^= 1; // the checksum
    answer = post(gzip, packed, n, n, true);
    expect_start(answer, "HTTP/1.1 400");
    free(answer);
    packed[n - 5] ^= 1;
    memcpy(packed + n, "more", 4);
    answer = post(gzip, packed, n + 4, n, true);
    expect_start(answer, "HTTP/1.1 400");
    free(answer);
    close_server();
}
END_TEST

START_TEST(other_encodings_are_refused)
{
    static const char *const refused[] = {"Content-Encoding: br\r\n", "Content-Encoding: gzip, gzip\r\n",
                                          "Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n",
                                          "Content-Encoding: \r\n"};
    open_echo();
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char *answer = post(refused[i], "abc", 3, 3, false);
        expect_start(answer, "HTTP/1.1 415");
        expect_part(answer, "\r\nAccept-Encoding: gzip, identity\r\n");
        free(answer);
    }
    char *answer = post("Content-Encoding: identity\r\n", "abc", 3, 3, false);
    expect_part(answer, "\r\n\r\nabc");
    free(answer);
    expect_answer("POST /guarded HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc",
                  "HTTP/1.1 401", ""); // keys are checked first
    close_server();
}
END_TEST

START_TEST(a_connection_continues_after_a_gzip_body)
{
    char packed[200], request[400];
    size_t n = deflate_to("abc", 3, packed, sizeof packed);
    int head = snprintf(request, sizeof request,
                        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %zu\r\n\r\n", n);
    memcpy(request + head, packed, n);
    open_echo();
    int fd = client_connect(port());
    for (int i = 0; i < 3; i++) // pipelined
        client_send_bytes(fd, request, (size_t)head + n);
    client_send(fd, "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    struct client_text text = client_receive_all(fd);
    const char *at = text.bytes;
    for (int i = 0; i < 3; i++, at += 3) {
        at = strstr(at, "\r\n\r\nabc");
        ck_assert_msg(at != NULL, "%s", text.bytes);
    }
    expect_part(at, "\r\n\r\nhello");
    free(text.bytes);
    close(fd);
    close_server();
}
END_TEST

SUITE("http_gzip")
{
    TEST(a_gzip_body_is_decoded);
    TEST(a_body_may_have_several_members);
    TEST(the_limit_holds_for_the_decoded_bytes);
    TEST(the_limit_holds_for_the_encoded_bytes);
    TEST(broken_bodies_are_refused);
    TEST(other_encodings_are_refused);
    TEST(a_connection_continues_after_a_gzip_body);
}
