// SPDX-License-Identifier: Apache-2.0
// http/: bodies and responses that pass in pieces, and requests of the process itself.
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "lib/base/mem.h"
#include "lib/http/http.h"
#include "tests/http_client.h"
#include "tests/suite.h"

enum { BODY_BYTES = 8 << 20, PIECE_BYTES = 64 << 10 };

static struct http_server *server;
static _Atomic(struct http_exchange *) uploading; // referenced until the end of the test
static atomic_size_t given, poured;
static atomic_int n_done, n_closed;
static atomic_bool takes; // the sink takes each piece immediately

static void sink_body(struct http_exchange *x, const char *bytes, size_t size)
{
    if (!atomic_exchange(&uploading, x)) http_ref(x);
    atomic_fetch_add(&given, size);
    if (atomic_load(&takes)) http_body_taken(x, size);
}

static void sink_end(struct http_exchange *x)
{
    atomic_fetch_add(&n_done, 1);
    http_respond(x, 200, "text/plain", "done", 4);
}

static void count_close(struct http_exchange *x, bool disconnected)
{
    atomic_fetch_add(&n_closed, 1);
}

// Sends pieces until enough bytes are unread.
static void pour(struct http_exchange *x)
{
    static const char piece[PIECE_BYTES];
    while (atomic_load(&poured) < BODY_BYTES) {
        atomic_fetch_add(&poured, sizeof piece);
        if (http_stream_send(x, piece, sizeof piece) >= HTTP_WINDOW_BYTES) return;
    }
    http_stream_end(x);
}

static void pour_begin(struct http_exchange *x)
{
    http_stream_begin(x, 200, "application/octet-stream");
    pour(x);
}

static void greet(struct http_exchange *x)
{
    size_t size;
    const char *body = http_body(x, &size);
    http_respond(x, 201, "text/plain", body, size);
}

static const struct http_route routes[] = {
    {.method = "POST",
     .path = "/sink",
     .on_body = sink_body,
     .on_request = sink_end,
     .on_close = count_close,
     .max_body_bytes = BODY_BYTES},
    {.method = "GET", .path = "/pour", .on_request = pour_begin, .on_drain = pour, .on_close = count_close},
    {.method = "POST", .path = "/greet", .on_request = greet, .on_close = count_close},
    {.method = "POST", .path = "/silent", .on_request = sink_end, .on_close = count_close},
    {0},
};

static void setup(void)
{
    const struct http_server_options options = {.routes = routes, .max_body_bytes = 1 << 20, .stall_ms = 100};
    ck_assert_msg(http_server_open(&options, &server) == STATUS_OK, "%s", status_message());
}

static void teardown(void)
{
    if (atomic_load(&uploading)) http_unref(atomic_load(&uploading));
    http_server_close(server, 1000);
}

static int upload_begin(size_t size)
{
    int fd = client_connect(http_server_port(server));
    char *head = mem_format("POST /sink HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", size);
    client_send(fd, head);
    free(head);
    return fd;
}

static void expect_end(int fd, const char *part)
{
    struct client_text text = client_receive_all(fd);
    ck_assert_msg(strstr(text.bytes, part) != NULL, "contains '%s': %s", part, text.bytes);
    free(text.bytes);
    close(fd);
}

START_TEST(a_body_larger_than_the_limit_of_collected_bodies_passes_in_pieces)
{
    atomic_store(&takes, true);
    char *bytes = mem_alloc(BODY_BYTES);
    int fd = upload_begin(BODY_BYTES);
    client_send_bytes(fd, bytes, BODY_BYTES);
    expect_end(fd, "\r\n\r\ndone");
    ck_assert_uint_eq(atomic_load(&given), BODY_BYTES);
    free(bytes);
}
END_TEST

static void *send_all(void *arg)
{
    char *bytes = mem_alloc(BODY_BYTES);
    client_send_bytes(*(int *)arg, bytes, BODY_BYTES);
    free(bytes);
    return NULL;
}

START_TEST(an_untaken_body_is_read_no_further_and_does_not_time_out)
{
    pthread_t sender;
    int fd = upload_begin(BODY_BYTES);
    pthread_create(&sender, NULL, send_all, &fd);
    AWAIT(atomic_load(&given) > HTTP_WINDOW_BYTES);
    struct timespec longer = {.tv_nsec = 300000000}; // three times the limit for a client that stalls
    nanosleep(&longer, NULL);
    size_t n = atomic_load(&given), taken = 0;
    ck_assert_uint_le(n, HTTP_WINDOW_BYTES + PIECE_BYTES);
    while (taken < BODY_BYTES) {
        AWAIT(atomic_load(&given) > taken);
        n = atomic_load(&given) - taken;
        taken += n;
        http_body_taken(atomic_load(&uploading), n);
    }
    pthread_join(sender, NULL);
    expect_end(fd, "\r\n\r\ndone");
    struct http_server_status status;
    http_server_get_status(server, &status);
    ck_assert_uint_eq(status.body_bytes, 0);
}
END_TEST

START_TEST(bytes_of_an_aborted_upload_are_no_longer_counted)
{
    int fd = upload_begin(BODY_BYTES);
    client_send(fd, "some bytes");
    AWAIT(atomic_load(&given) == 10);
    close(fd);
    AWAIT(atomic_load(&n_closed) == 1);
    struct http_server_status status;
    http_server_get_status(server, &status);
    ck_assert_uint_eq(status.body_bytes, 0);
    ck_assert_int_eq(atomic_load(&n_done), 0);
}
END_TEST

START_TEST(a_body_over_the_limit_of_its_route_is_refused)
{
    expect_end(upload_begin(BODY_BYTES + 1), "HTTP/1.1 413 ");
    ck_assert_uint_eq(atomic_load(&given), 0);
}
END_TEST

START_TEST(a_long_response_waits_for_its_client)
{
    int fd = client_connect_with(http_server_port(server), 64 << 10);
    client_send(fd, "GET /pour HTTP/1.0\r\nHost: x\r\n\r\n");
    AWAIT(atomic_load(&poured) > 0);
    struct http_server_status status;
    http_server_get_status(server, &status);
    ck_assert_uint_le(status.unread_bytes, HTTP_WINDOW_BYTES + PIECE_BYTES + 1024);
    struct client_text text = client_receive_all(fd);
    ck_assert_uint_gt(text.size, BODY_BYTES);
    free(text.bytes);
    close(fd);
}
END_TEST

struct heard {
    int status;
    char body[16];
};

static void hear(void *arg, int status, const char *body, size_t size)
{
    struct heard *heard = arg;
    heard->status = status;
    memcpy(heard->body, body, size);
}

static struct http_exchange *local(const char *path, struct heard *heard)
{
    const struct http_local request = {"POST", path, mem_string("hello"), 5, hear, heard};
    return http_local_open(server, &request, NULL);
}

START_TEST(a_request_of_the_process_itself_is_answered)
{
    struct heard heard = {0};
    struct http_exchange *x = local("/greet", &heard);
    http_local_start(x);
    ck_assert_int_eq(heard.status, 201);
    ck_assert_str_eq(heard.body, "hello");
    http_local_close(x);
    ck_assert_int_eq(atomic_load(&n_closed), 1);
    ck_assert_ptr_null(local("/none", &heard));
}
END_TEST

START_TEST(a_closed_request_of_the_process_itself_is_answered_no_more)
{
    struct heard heard = {0};
    struct http_exchange *x = local("/greet", &heard);
    http_ref(x);
    http_local_close(x);
    http_respond(x, 200, "text/plain", "late", 4);
    ck_assert_int_eq(heard.status, 0);
    http_unref(x);
}
END_TEST

SUITE("http_pieces")
{
    FIXTURE(setup, teardown);
    TEST(a_body_larger_than_the_limit_of_collected_bodies_passes_in_pieces);
    TEST(an_untaken_body_is_read_no_further_and_does_not_time_out);
    TEST(bytes_of_an_aborted_upload_are_no_longer_counted);
    TEST(a_body_over_the_limit_of_its_route_is_refused);
    TEST(a_long_response_waits_for_its_client);
    TEST(a_request_of_the_process_itself_is_answered);
    TEST(a_closed_request_of_the_process_itself_is_answered_no_more);
}
