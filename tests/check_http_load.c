// SPDX-License-Identifier: Apache-2.0
// http/ with many connections and several threads: no data is lost or mixed up, and a server that ran out of
// descriptors serves again.
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "lib/base/mem.h"
#include "tests/http_service.h"
#include "tests/suite.h"

enum { STREAMS = 200, SENDERS = 4, EVENTS = 50 };

static _Atomic(struct http_exchange *) stream_of[STREAMS];
static atomic_int n_streams;

static void begin_numbered(struct http_exchange *x)
{
    int i = atoi(http_path(x) + strlen("/numbered/"));
    http_stream_begin(x, 200, "text/event-stream");
    http_ref(x);
    atomic_store(&stream_of[i], x);
    atomic_fetch_add(&n_streams, 1);
}

static const struct http_route numbered[] = {
    {.method = "GET", .path = "/numbered/*", .on_request = begin_numbered, .on_close = note_close},
    {.method = "GET", .path = "/hello", .on_request = say_hello, .on_close = note_close},
    {0},
};

static int client[STREAMS];

static void open_streams(int threads)
{
    struct http_server_options o = {.routes = numbered, .threads = threads};
    ck_assert_msg(http_server_open(&o, &server) == STATUS_OK, "%s", status_message());
    for (int i = 0; i < STREAMS; i++) {
        char text[64];
        snprintf(text, sizeof text, "GET /numbered/%d HTTP/1.1\r\nHost: x\r\n\r\n", i);
        client[i] = client_connect(port());
        client_send(client[i], text);
    }
    AWAIT(atomic_load(&n_streams) == STREAMS);
}

// Each sender serves every SENDERSth stream. It sends one event to each of them, then the next event.
static void *send_events(void *argument)
{
    intptr_t first = (intptr_t)argument;
    for (int event = 0; event < EVENTS; event++)
        for (intptr_t i = first; i < STREAMS; i += SENDERS) {
            char text[32];
            int n = snprintf(text, sizeof text, "<%d.%d>", (int)i, event);
            http_stream_send(atomic_load(&stream_of[i]), text, (size_t)n);
        }
    for (intptr_t i = first; i < STREAMS; i += SENDERS) {
        struct http_exchange *x = atomic_load(&stream_of[i]);
        http_stream_end(x);
        http_unref(x);
    }
    return NULL;
}

static void run_senders(pthread_t thread[SENDERS])
{
    for (intptr_t i = 0; i < SENDERS; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, send_events, (void *)i), 0);
}

static void join_senders(pthread_t thread[SENDERS])
{
    for (int i = 0; i < SENDERS; i++)
        pthread_join(thread[i], NULL);
}

START_TEST(events_of_many_threads_arrive_once_and_in_order)
{
    open_streams(_i);
    pthread_t thread[SENDERS];
    run_senders(thread);
    for (int i = 0; i < STREAMS; i++) {
        struct client_text text = client_receive_until(client[i], "\r\n0\r\n\r\n");
        const char *at = text.bytes;
        for (int event = 0; event < EVENTS; event++) {
            char expected[32];
            snprintf(expected, sizeof expected, "<%d.%d>", i, event);
            at = strchr(at, '<');
            ck_assert_msg(at != NULL, "stream %d event %d", i, event);
            ck_assert_msg(strncmp(at, expected, strlen(expected)) == 0, "stream %d event %d: %s", i, event, at);
            at++;
        }
        ck_assert_ptr_null(strchr(at, '<'));
        free(text.bytes);
        close(client[i]);
    }
    join_senders(thread);
    http_server_close(server, 60000);
    ck_assert_int_eq(atomic_load(&n_closed), STREAMS);
}
END_TEST

// Clients go away, and the server closes, while events are being sent.
START_TEST(clients_may_go_away_while_events_are_sent)
{
    open_streams(3);
    pthread_t thread[SENDERS];
    run_senders(thread);
    for (int i = 0; i < STREAMS; i += 2)
        close(client[i]);
    http_server_close(server, 0);
    join_senders(thread);
    ck_assert_int_eq(atomic_load(&n_closed) + atomic_load(&n_disconnected), STREAMS);
    for (int i = 1; i < STREAMS; i += 2)
        close(client[i]);
}
END_TEST

// --- a response that ends before its request

static const struct http_route uploads[] = {
    {.method = "POST", .path = "/upload", .on_head = hold, .on_request = echo, .on_close = note_close},
    {0},
};

static void *send_body(void *argument)
{
    int fd = *(int *)argument;
    static char piece[1 << 20];
    bool open = client_send(fd, "POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n");
    for (int i = 0; open && i < 60; i++)
        open = client_send_bytes(fd, piece, 1000000);
    return NULL;
}

enum { UNREAD_BYTES = 1000 };

// Sends more than the client may leave unread.
static void send_too_much(struct http_exchange *x)
{
    static const char bytes[UNREAD_BYTES + 1];
    http_stream_begin(x, 200, "text/plain");
    http_stream_send(x, bytes, sizeof bytes);
}

// Disconnects the client, or answers it, while the body arrives.
START_TEST(a_body_may_be_cut_off_while_it_arrives)
{
    struct http_server_options o = {.routes = uploads, .max_unread_bytes = UNREAD_BYTES};
    ck_assert_msg(http_server_open(&o, &server) == STATUS_OK, "%s", status_message());
    enum { ROUNDS = 20 };
    for (int round = 0; round < ROUNDS; round++) {
        int fd = client_connect(port());
        pthread_t thread;
        pthread_create(&thread, NULL, send_body, &fd);
        struct http_exchange *x = await_held();
        AWAIT(server_status().body_bytes > 1000000);
        if (round % 2)
            send_too_much(x);
        else
            http_respond(x, 400, "text/plain", "enough", 6);
        http_unref(x);
        struct client_text text = client_receive_all(fd);
        if (round % 2 == 0) ck_assert_ptr_nonnull(strstr(text.bytes, "\r\n\r\nenough"));
        free(text.bytes);
        pthread_join(thread, NULL);
        close(fd);
    }
    AWAIT(server_status().connections == 0 && server_status().body_bytes == 0);
    ck_assert_int_eq(atomic_load(&n_closed), ROUNDS / 2);
    ck_assert_int_eq(atomic_load(&n_disconnected), ROUNDS / 2);
    http_server_close(server, 1000);
}
END_TEST

// --- noise

static uint64_t random_state = 1;

static unsigned random_below(unsigned n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(random_state >> 33) % n;
}

// Makes a few good requests in a row, changes some of their bytes and sometimes removes a part.
static size_t make_noise(char *bytes, size_t room)
{
    static const char *const good[] = {
        "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\nExpect: 100-continue\r\n\r\n",
        "POST /guarded HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        "GET /things/%41?q=%42 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    };
    size_t size = 0;
    for (unsigned n = 1 + random_below(6); n > 0; n--) {
        const char *text = good[random_below(sizeof good / sizeof good[0])];
        size_t from = random_below(8) == 0 ? random_below((unsigned)strlen(text)) : 0;
        if (size + strlen(text) > room) break;
        memcpy(bytes + size, text + from, strlen(text) - from);
        size += strlen(text) - from;
    }
    for (unsigned n = random_below(4); n > 0 && size; n--)
        bytes[random_below((unsigned)size)] =
            (char)(random_below(4) ? "\r\n :,;0"[random_below(7)] : (int)random_below(256));
    return size;
}

// Whatever clients send and however they leave, every connection ends and its memory is freed.
START_TEST(noise_leaves_no_memory_in_use)
{
    enum { ROUNDS = 10, CLIENTS = 50 };
    open_server((struct http_server_options){.threads = 2, .head_ms = 50, .stall_ms = 50, .idle_ms = 50});
    for (int round = 0; round < ROUNDS; round++) {
        int fd[CLIENTS];
        for (int i = 0; i < CLIENTS; i++) {
            char bytes[4096];
            size_t size = make_noise(bytes, sizeof bytes);
            fd[i] = client_connect(port());
            for (size_t at = 0; at < size;) {
                size_t n = 1 + random_below(random_below(2) ? 5 : 1000);
                if (n > size - at) n = size - at;
                if (!client_send_bytes(fd[i], bytes + at, n)) break;
                at += n;
            }
            unsigned way = random_below(4);
            if (way == 0) shutdown(fd[i], SHUT_WR);
            if (way == 1) shutdown(fd[i], SHUT_RDWR);
        }
        for (int i = 0; i < CLIENTS; i++) {
            if (random_below(2)) free(client_receive_all(fd[i]).bytes);
            close(fd[i]);
        }
    }
    AWAIT(server_status().connections == 0);
    ck_assert_int_eq(server_status().exchanges, 0);
    ck_assert_uint_eq(server_status().body_bytes, 0);
    ck_assert_uint_eq(server_status().unread_bytes, 0);
    ck_assert_int_gt(atomic_load(&n_requests), ROUNDS * CLIENTS / 10);
    http_server_close(server, 1000);
}
END_TEST

// --- descriptors

enum { SOCKETS = 2000, DESCRIPTORS = 1024 };

static void wait_for_byte(int fd)
{
    char byte;
    while (read(fd, &byte, 1) < 0 && errno == EINTR)
        ;
}

// The client's process. It connects, reports when the server has closed the connections beyond its limit, and closes
// when told to.
static void connect_many(int at_port, int ready_fd, int go_fd)
{
    static int fd[SOCKETS];
    for (int i = 0; i < SOCKETS; i++)
        fd[i] = client_try_connect(at_port);
    int n_closed_by_server = 0;
    for (int i = 0; n_closed_by_server < SOCKETS - DESCRIPTORS; i = (i + 1) % SOCKETS) {
        char byte;
        if (fd[i] < 0 || recv(fd[i], &byte, 1, MSG_DONTWAIT) != 0) continue;
        close(fd[i]);
        fd[i] = -1;
        n_closed_by_server++;
    }
    if (write(ready_fd, "r", 1) != 1) _exit(1);
    wait_for_byte(go_fd);
    for (int i = 0; i < SOCKETS; i++)
        if (fd[i] >= 0) close(fd[i]);
    _exit(0);
}

START_TEST(a_server_without_descriptors_serves_again)
{
    struct rlimit limit = {DESCRIPTORS, DESCRIPTORS}, before;
    getrlimit(RLIMIT_NOFILE, &before);
    ck_assert_uint_gt(before.rlim_max, SOCKETS + 100);
    int ready[2], go[2], address[2];
    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(go), 0);
    ck_assert_int_eq(pipe(address), 0);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit many = {before.rlim_max, before.rlim_max};
        setrlimit(RLIMIT_NOFILE, &many);
        int at_port;
        if (read(address[0], &at_port, sizeof at_port) != sizeof at_port) _exit(1);
        connect_many(at_port, ready[1], go[0]);
    }
    setrlimit(RLIMIT_NOFILE, &limit);
    open_server((struct http_server_options){0});
    int at_port = port();
    ck_assert_int_eq(write(address[1], &at_port, sizeof at_port), sizeof at_port);
    wait_for_byte(ready[0]);
    AWAIT(server_status().refused + server_status().accepted == SOCKETS);
    ck_assert_uint_ge(server_status().refused, SOCKETS - DESCRIPTORS);
    ck_assert_int_lt(server_status().connections, DESCRIPTORS);
    ck_assert_int_eq(write(go[1], "g", 1), 1);
    waitpid(child, NULL, 0);
    AWAIT(server_status().connections == 0);
    char *text = client_ask_raw(port(), "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    ck_assert_ptr_nonnull(strstr(text, "\r\n\r\nhello"));
    free(text);
    http_server_close(server, 1000);
}
END_TEST

SUITE("http_load")
{
    LOOP(events_of_many_threads_arrive_once_and_in_order, 1, 3);
    TEST(clients_may_go_away_while_events_are_sent);
    TEST(a_body_may_be_cut_off_while_it_arrives);
    TEST(noise_leaves_no_memory_in_use);
    TEST(a_server_without_descriptors_serves_again);
}
