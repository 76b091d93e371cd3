// SPDX-License-Identifier: Apache-2.0
// net/: calls of every kind between the server and the client, and every way a call can end.
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/utf8.h"
#include "lib/net/core.h"
#include "tests/rpc_client.h"
#include "tests/suite.h"
#include "tests/test_port.h"

// --- the server under test

static atomic_int opened, half_closed, closed, cancelled, flooded;
static atomic_llong deadline_left_us;
static atomic_bool agent_seen;
static int context; // its address is the server's context

static void count_open(struct rpc_call *call)
{
    ck_assert_ptr_eq(rpc_call_context(call), &context);
    const char *agent = rpc_call_metadata(call, "user-agent");
    atomic_store(&agent_seen, agent && strstr(agent, "grpc-c/") && !rpc_call_metadata(call, "user-agen"));
    int64_t deadline = rpc_call_deadline_us(call);
    atomic_store(&deadline_left_us, deadline == INT64_MAX ? LLONG_MAX : deadline - clock_now_us());
    atomic_fetch_add(&opened, 1);
}

static void count_half_close(struct rpc_call *call)
{
    atomic_fetch_add(&half_closed, 1);
}

static void count_close(struct rpc_call *call, bool gone)
{
    atomic_fetch_add(gone ? &cancelled : &closed, 1);
}

static void echo(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    rpc_call_send(call, bytes, size);
}

static void finish(struct rpc_call *call)
{
    count_half_close(call);
    rpc_call_finish(call, STATUS_OK, NULL);
}

// Sends the numbers below the requested one, then ends the call. Nothing may be lost before the end.
static void numbers(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    uint32_t n;
    ck_assert_uint_eq(size, sizeof n);
    memcpy(&n, bytes, sizeof n);
    for (uint32_t i = 0; i < n; i++)
        rpc_call_send(call, (const uint8_t *)&i, sizeof i);
    rpc_call_finish(call, STATUS_OK, NULL);
    rpc_call_finish(call, STATUS_INTERNAL, "only the first end counts");
    rpc_call_send(call, bytes, size); // dropped
}

static void sum_open(struct rpc_call *call)
{
    count_open(call);
    rpc_call_set_user(call, mem_alloc(sizeof(uint32_t)));
}

// Counts the messages of a call, which must hold 0, 1, 2...
static void sum_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    uint32_t *count = rpc_call_user(call);
    if (size == sizeof *count && memcmp(bytes, count, size) == 0) ++*count;
}

static void sum_half_close(struct rpc_call *call)
{
    rpc_call_send(call, rpc_call_user(call), sizeof(uint32_t));
    rpc_call_finish(call, STATUS_OK, NULL);
}

static void sum_close(struct rpc_call *call, bool gone)
{
    free(rpc_call_user(call));
    count_close(call, gone);
}

static void *answer_from_thread(void *argument)
{
    struct rpc_call *call = argument;
    for (uint32_t i = 0; i < 1000; i++)
        rpc_call_send(call, (const uint8_t *)&i, sizeof i);
    rpc_call_add_trailer(call, "retry-after-ms", "250");
    rpc_call_add_trailer(call, "Bad Key", "left out");
    rpc_call_finish(call, STATUS_EXHAUSTED, "the queue is full");
    rpc_call_unref(call);
    return NULL;
}

static void hand_over(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    pthread_t thread;
    rpc_call_ref(call);
    ck_assert_int_eq(pthread_create(&thread, NULL, answer_from_thread, call), 0);
    pthread_detach(thread);
}

// Sends to a client that does not read, until more is queued than C-core accepts.
static void flood(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    uint8_t *block = mem_alloc(65536);
    for (int i = 0; i < 10000 && !atomic_load(&flooded); i++) {
        if (rpc_call_send(call, block, 65536) > 16000000) atomic_store(&flooded, 1);
    }
    free(block);
}

static void flood_and_abandon(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    flood(call, bytes, size);
    rpc_call_abandon(call, STATUS_EXHAUSTED, "the client does not read");
}

static void flood_and_finish(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    flood(call, bytes, size);
    rpc_call_finish(call, STATUS_OK, NULL);
}

// Answers with the share of a call, once all calls have as many bytes queued as the message says.
static void share(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    char text[16] = "";
    memcpy(text, bytes, size < sizeof text ? size : sizeof text - 1);
    uint64_t share = rpc_call_share(call, strtoul(text, NULL, 10));
    rpc_call_send(call, (const uint8_t *)&share, sizeof share);
    rpc_call_finish(call, STATUS_OK, NULL);
}

static void fail_as_asked(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    char *text = mem_copy(bytes, size);
    text = mem_resize(text, size + 1, 1);
    text[size] = 0;
    rpc_call_finish(call, STATUS_OUT_OF_RANGE, text);
    free(text);
}

static void refuse(struct rpc_call *call)
{
    count_open(call);
    rpc_call_finish(call, STATUS_UNAUTHENTICATED, "no token");
}

static void send_large(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    size_t large = NET_MESSAGE_BYTES + 1;
    uint8_t *block = mem_alloc(large);
    rpc_call_send(call, block, large);
    rpc_call_finish(call, STATUS_OK, NULL);
    free(block);
}

static const struct rpc_method methods[] = {
    {.path = "/test.A/Echo",
     .on_open = count_open,
     .on_message = echo,
     .on_half_close = finish,
     .on_close = count_close},
    {.path = "/test.A/Numbers",
     .on_open = count_open,
     .on_message = numbers,
     .on_half_close = count_half_close,
     .on_close = count_close},
    {.path = "/test.A/Sum",
     .on_open = sum_open,
     .on_message = sum_message,
     .on_half_close = sum_half_close,
     .on_close = sum_close},
    {.path = "/test.A/Thread",
     .on_open = count_open,
     .on_message = hand_over,
     .on_half_close = count_half_close,
     .on_close = count_close},
    {.path = "/test.A/Hang", .on_open = count_open, .on_half_close = count_half_close, .on_close = count_close},
    {.path = "/test.B/Flood",
     .on_open = count_open,
     .on_message = flood,
     .on_half_close = count_half_close,
     .on_close = count_close},
    {.path = "/test.B/FloodAndAbandon",
     .on_open = count_open,
     .on_message = flood_and_abandon,
     .on_half_close = count_half_close,
     .on_close = count_close},
    {.path = "/test.B/FloodAndFinish",
     .on_open = count_open,
     .on_message = flood_and_finish,
     .on_half_close = count_half_close,
     .on_close = count_close},
    {.path = "/test.B/Share", .on_open = count_open, .on_message = share, .on_close = count_close},
    {.path = "/test.B/Fail",
     .on_open = count_open,
     .on_message = fail_as_asked,
     .on_half_close = count_half_close,
     .on_close = count_close},
    {.path = "/test.B/Refuse",
     .on_open = refuse,
     .on_message = echo,
     .on_half_close = count_half_close,
     .on_close = count_close},
    {.path = "/test.B/Large", .on_open = count_open, .on_message = send_large, .on_close = count_close},
    {0},
};

static struct rpc_server *server;

static enum status open_server(int port, size_t max_message_bytes)
{
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", port ? port : test_port());
    return rpc_server_open(&(struct rpc_server_options){.address = address,
                                                        .methods = methods,
                                                        .context = &context,
                                                        .max_message_bytes = max_message_bytes,
                                                        .unread_ms = 1},
                           &server);
}

static void setup(void)
{
    rpc_init();
    ck_assert_msg(open_server(0, 0) == STATUS_OK, "%s", status_message());
    open_channel(rpc_server_port(server));
}

static void teardown(void)
{
    rpc_channel_close(channel);
    rpc_server_close(server, 0);
    ck_assert_int_eq(rpc_live_objects(), 0);
    rpc_shutdown();
}

// --- helpers

static void wait_for(atomic_int *value, int wanted)
{
    for (int i = 0; i < 200000 && atomic_load(value) < wanted; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_int_eq(atomic_load(value), wanted);
}

static void send_number(struct rpc_stream *stream, uint32_t number)
{
    rpc_stream_send(stream, (const uint8_t *)&number, sizeof number);
}

// --- the kinds of call

START_TEST(unary_answers)
{
    struct rpc_bytes answer;
    ck_assert_int_eq(unary("/test.A/Echo", "hello", &answer), STATUS_OK);
    ck_assert_str_eq((char *)answer.data, "hello");
    ck_assert_uint_eq(answer.size, 5);
    rpc_bytes_free(&answer);
    ck_assert_int_eq(unary("/test.A/Echo", "", &answer), STATUS_OK); // empty is not absent
    ck_assert_ptr_nonnull(answer.data);
    ck_assert_uint_eq(answer.size, 0);
    rpc_bytes_free(&answer);
    ck_assert(atomic_load(&agent_seen));
    ck_assert(atomic_load(&deadline_left_us) == LLONG_MAX);
    wait_for(&closed, 2);
    ck_assert_int_eq(atomic_load(&cancelled), 0);
}
END_TEST

START_TEST(server_stream_keeps_order)
{
    const uint32_t n = 20000;
    struct rpc_stream *stream = open_stream("/test.A/Numbers", 0);
    send_number(stream, n);
    rpc_stream_half_close(stream);
    for (uint32_t i = 0; i < n; i++)
        expect_bytes(stream, &i, sizeof i);
    expect_end(stream, STATUS_OK, NULL);
    rpc_stream_close(stream);
    wait_for(&closed, 1);
}
END_TEST

START_TEST(client_stream_keeps_order)
{
    const uint32_t n = 20000;
    struct rpc_stream *stream = open_stream("/test.A/Sum", 0);
    for (uint32_t i = 0; i < n; i++)
        send_number(stream, i);
    rpc_stream_half_close(stream);
    send_number(stream, n); // too late, dropped
    expect_bytes(stream, &n, sizeof n);
    expect_end(stream, STATUS_OK, NULL);
    rpc_stream_close(stream);
    wait_for(&closed, 1);
}
END_TEST

static void *send_many(void *stream)
{
    for (uint32_t i = 0; i < 5000; i++)
        send_number(stream, i);
    rpc_stream_half_close(stream);
    return NULL;
}

START_TEST(both_directions_work_together)
{
    struct rpc_stream *streams[4];
    pthread_t threads[4];
    for (int s = 0; s < 4; s++) {
        streams[s] = open_stream("/test.A/Echo", 0);
        pthread_create(&threads[s], NULL, send_many, streams[s]);
    }
    for (uint32_t i = 0; i < 5000; i++) {
        for (int s = 0; s < 4; s++)
            expect_bytes(streams[s], &i, sizeof i);
    }
    for (int s = 0; s < 4; s++) {
        expect_end(streams[s], STATUS_OK, NULL);
        pthread_join(threads[s], NULL);
        rpc_stream_close(streams[s]);
    }
    wait_for(&closed, 4);
}
END_TEST

START_TEST(another_thread_answers_and_the_end_follows_what_is_queued)
{
    struct rpc_stream *stream = open_stream("/test.A/Thread", 0);
    send_number(stream, 0);
    for (uint32_t i = 0; i < 1000; i++)
        expect_bytes(stream, &i, sizeof i);
    expect_end(stream, STATUS_EXHAUSTED, "the queue is full");
    rpc_stream_close(stream);
    wait_for(&closed, 1); // a call that the server ends with any status is finished, not cancelled
    ck_assert_int_eq(atomic_load(&cancelled), 0);
}
END_TEST

// --- the ways a call can end

START_TEST(cancel_wakes_the_reader_and_is_seen)
{
    struct rpc_stream *stream = open_stream("/test.A/Hang", 0);
    wait_for(&opened, 1);
    rpc_stream_cancel(stream);
    expect_end(stream, STATUS_CANCELLED, NULL);
    wait_for(&cancelled, 1);
    rpc_stream_cancel(stream); // no effect
    rpc_stream_close(stream);

    stream = open_stream("/test.A/Hang", 0);
    wait_for(&opened, 2);
    rpc_stream_close(stream); // close cancels too
    wait_for(&cancelled, 2);
    ck_assert_int_eq(atomic_load(&half_closed), 0);
    ck_assert_int_eq(atomic_load(&closed), 0);
}
END_TEST

static void *cancel_it(void *stream)
{
    wait_for(&opened, 1);
    rpc_stream_cancel(stream);
    return NULL;
}

START_TEST(cancel_from_another_thread)
{
    struct rpc_stream *stream = open_stream("/test.A/Hang", 0);
    pthread_t thread;
    pthread_create(&thread, NULL, cancel_it, stream);
    expect_end(stream, STATUS_CANCELLED, NULL);
    pthread_join(thread, NULL);
    rpc_stream_close(stream);
}
END_TEST

START_TEST(deadline_ends_the_call_on_both_sides)
{
    struct rpc_bytes answer; // connects first, which may take longer than the deadline
    ck_assert_int_eq(unary("/test.A/Echo", "x", &answer), STATUS_OK);
    rpc_bytes_free(&answer);
    // A call whose deadline passes before it is sent never reaches the server: the call is repeated.
    for (int tries = 0; tries < 100 && !atomic_load(&cancelled); tries++) {
        struct rpc_stream *stream = open_stream("/test.A/Hang", 300);
        expect_end(stream, STATUS_DEADLINE, "did not answer within 300 ms");
        rpc_stream_close(stream);
        for (int i = 0; i < 1000 && !atomic_load(&cancelled); i++)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    ck_assert_int_ge(atomic_load(&cancelled), 1);
    long long left = atomic_load(&deadline_left_us);
    ck_assert_msg(left <= 310000, "%lld", left);
}
END_TEST

START_TEST(refused_and_unknown_calls)
{
    struct rpc_bytes answer;
    ck_assert_int_eq(unary("/test.B/Refuse", "x", &answer), STATUS_UNAUTHENTICATED);
    ck_assert_str_eq(status_message(), "no token");
    ck_assert_int_eq(unary("/test.B/Nothing", "x", &answer), STATUS_UNSUPPORTED);
    ck_assert_str_eq(status_message(), "this server has no method /test.B/Nothing");
    // The server ends while the client is still sending.
    struct rpc_stream *stream = open_stream("/test.B/Refuse", 0);
    for (uint32_t i = 0; i < 1000; i++)
        send_number(stream, i);
    expect_end(stream, STATUS_UNAUTHENTICATED, "no token");
    rpc_stream_close(stream);
    wait_for(&closed, 2);
    ck_assert_int_eq(atomic_load(&cancelled), 0);
}
END_TEST

START_TEST(status_text_is_short_utf8)
{
    struct rpc_bytes answer;
    ck_assert_int_eq(unary("/test.B/Fail", "caf\xC3\xA9 50% \xFF!", &answer), STATUS_OUT_OF_RANGE);
    ck_assert_str_eq(status_message(), "caf\xC3\xA9 50% ?!");
    char long_text[5000];
    for (size_t i = 0; i < sizeof long_text - 1; i += 2)
        memcpy(long_text + i, "\xC3\xA9", 2);
    memmove(long_text + 1, long_text, sizeof long_text - 2);
    long_text[0] = 'x';
    long_text[sizeof long_text - 1] = 0;
    ck_assert_int_eq(unary("/test.B/Fail", long_text, &answer), STATUS_OUT_OF_RANGE);
    ck_assert_uint_eq(strlen(status_message()), 1023);
    ck_assert(utf8_valid(status_message(), strlen(status_message()), NULL));
}
END_TEST

START_TEST(codes_map_both_ways)
{
    for (int i = 0; i < STATUS_COUNT; i++) // gRPC has one code for both kinds of limits
        ck_assert_int_eq(rpc_status(rpc_code((enum status)i)), i == STATUS_KEY_LIMIT ? STATUS_EXHAUSTED : i);
    ck_assert_int_eq(rpc_code(STATUS_INVALID), 3);
    ck_assert_int_eq(rpc_code(STATUS_EXHAUSTED), 8);
    for (int code = 0; code <= 17; code++)
        ck_assert_int_eq(rpc_status(code) == STATUS_OK, code == 0);
}
END_TEST

START_TEST(large_messages_pass_and_too_large_ones_do_not)
{
    size_t size = 20 * 1000 * 1000;
    uint8_t *bytes = mem_alloc(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 7 >> 3);
    struct rpc_bytes answer;
    ck_assert_int_eq(rpc_unary(channel, "/test.A/Echo", bytes, size, 0, &answer), STATUS_OK);
    ck_assert_uint_eq(answer.size, size);
    ck_assert_int_eq(memcmp(answer.data, bytes, size), 0);
    rpc_bytes_free(&answer);
    ck_assert_int_eq(unary("/test.B/Large", "x", &answer), STATUS_EXHAUSTED); // over the limit of the client
    ck_assert(strstr(status_message(), "larger than max"));

    rpc_channel_close(channel);
    rpc_server_close(server, 0);
    ck_assert_int_eq(open_server(0, 1000), STATUS_OK);
    open_channel(rpc_server_port(server));
    atomic_store(&half_closed, 0);
    atomic_store(&cancelled, 0);
    ck_assert_int_eq(rpc_unary(channel, "/test.A/Echo", bytes, 1000, 0, &answer), STATUS_OK);
    rpc_bytes_free(&answer);
    ck_assert_int_eq(rpc_unary(channel, "/test.A/Hang", bytes, 1001, 0, &answer), STATUS_EXHAUSTED);
    wait_for(&cancelled, 1);
    ck_assert_int_eq(atomic_load(&half_closed), 1); // only the first call
    free(bytes);
}
END_TEST

START_TEST(unread_bytes_are_reported_to_the_sender)
{
    struct rpc_stream *stream = open_stream("/test.B/Flood", 0);
    send_number(stream, 0);
    wait_for(&flooded, 1);
    rpc_stream_close(stream);
    wait_for(&cancelled, 1);
}
END_TEST

static int asked; // calls of ask_share()

static uint64_t ask_share(size_t all_bytes)
{
    uint64_t share;
    struct rpc_bytes answer;
    char text[24];
    snprintf(text, sizeof text, "%zu", all_bytes);
    ck_assert_int_eq(unary("/test.B/Share", text, &answer), STATUS_OK);
    ck_assert_uint_eq(answer.size, sizeof share);
    memcpy(&share, answer.data, sizeof share);
    rpc_bytes_free(&answer);
    asked++;
    return share;
}

// The number of the flood's bytes only decreases. So it is between the first bound that it exceeds and the bound
// before, and the share of the flood and the caller is half of what is left of twice that bound.
static void expect_share_beside_flood(void)
{
    enum { STEP = 500000 };
    size_t all_bytes = 40 * STEP;
    uint64_t share;
    while ((share = ask_share(all_bytes)) == SIZE_MAX && all_bytes > STEP)
        all_bytes -= STEP;
    ck_assert_uint_le(share, all_bytes / 2);
    ck_assert_uint_ge(share, (all_bytes - STEP) / 2);
}

START_TEST(calls_share_what_may_be_unread)
{
    struct rpc_stream *streams[4] = {open_stream("/test.B/Flood", 0)};
    ck_assert_uint_eq(ask_share(500000), SIZE_MAX);
    wait_for(&closed, asked);
    send_number(streams[0], 0);
    wait_for(&flooded, 1);
    expect_share_beside_flood();
    wait_for(&closed, asked);
    for (int i = 1; i < 4; i++)
        streams[i] = open_stream("/test.A/Hang", 0);
    wait_for(&opened, asked + 4);
    expect_share_beside_flood(); // calls without queued bytes take no share
    for (int i = 0; i < 4; i++)
        rpc_stream_close(streams[i]);
}
END_TEST

static void expect_end_after_messages(struct rpc_stream *stream, enum status wanted, const char *text)
{
    struct rpc_bytes bytes;
    enum status status;
    while ((status = rpc_stream_read(stream, &bytes)) == STATUS_OK && bytes.data)
        rpc_bytes_free(&bytes);
    ck_assert_msg(status == wanted, "%s: %s", status_name(status), status_message());
    ck_assert_str_eq(status_message(), text);
}

START_TEST(a_finished_call_ends_although_the_client_does_not_read)
{
    struct rpc_stream *stream = open_stream("/test.B/FloodAndFinish", 0);
    send_number(stream, 0);
    wait_for(&flooded, 1);
    while (ask_share(500000) != SIZE_MAX) // each of these calls finds that too much is unread
        continue;
    wait_for(&cancelled, 1);
    expect_end_after_messages(stream, STATUS_EXHAUSTED, "the client reads its answers too slowly");
    rpc_stream_close(stream);
}
END_TEST

START_TEST(an_abandoned_call_ends_although_the_client_does_not_read)
{
    struct rpc_stream *stream = open_stream("/test.B/FloodAndAbandon", 0);
    send_number(stream, 0);
    wait_for(&cancelled, 1);
    expect_end_after_messages(stream, STATUS_EXHAUSTED, "the client does not read");
    rpc_stream_close(stream);
}
END_TEST

START_TEST(killed_client_is_seen)
{
    int ports[2];
    ck_assert_int_eq(pipe(ports), 0);
    pid_t child = fork(); // before gRPC starts in either process
    if (child == 0) {
        int port;
        if (read(ports[0], &port, sizeof port) != sizeof port) _exit(1);
        rpc_init();
        open_channel(port);
        open_stream("/test.A/Hang", 0);
        for (;;)
            pause();
    }
    setup();
    int port = rpc_server_port(server);
    ck_assert_int_eq(write(ports[1], &port, sizeof port), sizeof port);
    wait_for(&opened, 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    wait_for(&cancelled, 1);
    close(ports[0]);
    close(ports[1]);
    teardown();
}
END_TEST

// --- servers that come and go

START_TEST(taken_port_is_refused)
{
    int port = rpc_server_port(server);
    struct rpc_server *first = server;
    ck_assert_int_eq(open_server(port, 0), STATUS_UNAVAILABLE);
    ck_assert_ptr_eq(server, first);
    char wanted[64];
    snprintf(wanted, sizeof wanted, "port %d is in use", port);
    ck_assert_msg(strstr(status_message(), wanted), "%s", status_message());
}
END_TEST

START_TEST(bad_addresses_are_refused)
{
    static const struct {
        const char *address, *sentence;
        enum status status;
    } bad[] = {
        {"", "no address", STATUS_INVALID},
        {"localhost", "must be HOST:PORT", STATUS_INVALID},
        {"127.0.0.1:x", "must be HOST:PORT", STATUS_INVALID},
        {"127.0.0.1:70000", "must be HOST:PORT", STATUS_INVALID},
        {"192.0.2.1:5000", "cannot listen on 192.0.2.1:5000", STATUS_UNAVAILABLE},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct rpc_server *none;
        struct rpc_server_options options = {.address = bad[i].address, .methods = methods};
        ck_assert_int_eq(rpc_server_open(&options, &none), bad[i].status);
        ck_assert_msg(strstr(status_message(), bad[i].sentence), "%s", status_message());
    }
    static const char *const targets[] = {"", "localhost", ":50051", "localhost:", "localhost:0", "a:b"};
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        struct rpc_channel *none;
        ck_assert_int_eq(rpc_channel_open(targets[i], &none), STATUS_INVALID);
        ck_assert(strstr(status_message(), "must be HOST:PORT"));
    }
}
END_TEST

START_TEST(absent_server_is_named)
{
    int port = rpc_server_port(server);
    rpc_server_close(server, 0);
    server = NULL;
    struct rpc_bytes answer;
    char wanted[80];
    snprintf(wanted, sizeof wanted, "cannot reach 127.0.0.1:%d: is the server running there?", port);
    ck_assert_int_eq(unary("/test.A/Echo", "x", &answer), STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(status_message(), wanted), "%s", status_message());
}
END_TEST

START_TEST(waiting_call_survives_a_restart)
{
    struct rpc_bytes answer;
    int port = rpc_server_port(server);
    ck_assert_int_eq(unary("/test.A/Echo", "x", &answer), STATUS_OK);
    rpc_bytes_free(&answer);
    struct rpc_stream *lost = open_stream("/test.A/Hang", 0);
    wait_for(&opened, 2);
    rpc_server_close(server, 0);
    expect_end(lost, STATUS_UNAVAILABLE, NULL);
    rpc_stream_close(lost);
    wait_for(&cancelled, 1);

    struct rpc_stream *waiting;
    rpc_stream_open(channel, "/test.A/Echo", 60000, true, &waiting);
    send_number(waiting, 7);
    rpc_stream_half_close(waiting);
    ck_assert_msg(open_server(port, 0) == STATUS_OK, "%s", status_message());
    expect_bytes(waiting, &(uint32_t){7}, sizeof(uint32_t));
    expect_end(waiting, STATUS_OK, NULL);
    rpc_stream_close(waiting);
}
END_TEST

static void *close_server(void *argument)
{
    rpc_server_close(server, 60000);
    return NULL;
}

START_TEST(closing_server_lets_calls_end)
{
    struct rpc_stream *stream = open_stream("/test.A/Echo", 0);
    send_number(stream, 1);
    expect_bytes(stream, &(uint32_t){1}, sizeof(uint32_t));
    struct rpc_stream *watch = open_stream("/grpc.health.v1.Health/Watch", 0);
    rpc_stream_send(watch, NULL, 0);
    expect_bytes(watch, "\x08\x02", 2);
    pthread_t thread;
    pthread_create(&thread, NULL, close_server, NULL);
    expect_end(watch, STATUS_UNAVAILABLE, "the server is closing"); // watchers do not delay the end
    rpc_stream_close(watch);
    send_number(stream, 2);
    expect_bytes(stream, &(uint32_t){2}, sizeof(uint32_t));
    rpc_stream_half_close(stream);
    expect_end(stream, STATUS_OK, NULL);
    rpc_stream_close(stream);
    pthread_join(thread, NULL);
    server = NULL;
    ck_assert_int_eq(atomic_load(&closed), 1);
    ck_assert_int_eq(atomic_load(&cancelled), 0);
}
END_TEST

static struct rpc_call *referenced;

static void reference_call(struct rpc_call *call)
{
    rpc_call_ref(call);
    referenced = call;
    count_open(call);
}

START_TEST(referenced_calls_do_not_delay_the_end)
{
    static const struct rpc_method own[] = {
        {.path = "/test.C/Keep", .on_open = reference_call, .on_close = count_close}, {0}};
    rpc_server_close(server, 0);
    rpc_channel_close(channel);
    struct rpc_server_options options = {.address = "127.0.0.1:0", .methods = own, .context = &context, .threads = 1};
    ck_assert_int_eq(rpc_server_open(&options, &server), STATUS_OK);
    open_channel(rpc_server_port(server));
    struct rpc_stream *stream = open_stream("/test.C/Keep", 0);
    wait_for(&opened, 1);
    rpc_server_close(server, 10);
    server = NULL;
    ck_assert_int_eq(atomic_load(&cancelled), 1); // the call's last event has run
    ck_assert_uint_eq(rpc_call_send(referenced, (const uint8_t *)"x", 1), 0);
    rpc_call_finish(referenced, STATUS_OK, "too late");
    ck_assert_str_eq(rpc_call_path(referenced), "/test.C/Keep");
    ck_assert(strstr(rpc_call_peer(referenced), "127.0.0.1"));
    rpc_call_unref(referenced);
    expect_end(stream, STATUS_UNAVAILABLE, NULL);
    rpc_stream_close(stream);
}
END_TEST

SUITE("net")
{
    TCASE("pure");
    TIMEOUT(30);
    TEST(codes_map_both_ways);
    TEST(killed_client_is_seen); // forks before it starts gRPC

    TCASE("calls");
    TIMEOUT(30);
    FIXTURE(setup, teardown);
    TEST(unary_answers);
    TEST(server_stream_keeps_order);
    TEST(client_stream_keeps_order);
    TEST(both_directions_work_together);
    TEST(another_thread_answers_and_the_end_follows_what_is_queued);
    TEST(cancel_wakes_the_reader_and_is_seen);
    TEST(cancel_from_another_thread);
    TEST(deadline_ends_the_call_on_both_sides);
    TEST(refused_and_unknown_calls);
    TEST(status_text_is_short_utf8);
    TEST(large_messages_pass_and_too_large_ones_do_not);
    TEST(unread_bytes_are_reported_to_the_sender);
    TEST(calls_share_what_may_be_unread);
    TEST(a_finished_call_ends_although_the_client_does_not_read);
    TEST(an_abandoned_call_ends_although_the_client_does_not_read);
    TEST(taken_port_is_refused);
    TEST(bad_addresses_are_refused);
    TEST(absent_server_is_named);
    TEST(waiting_call_survives_a_restart);
    TEST(closing_server_lets_calls_end);
    TEST(referenced_calls_do_not_delay_the_end);
}
