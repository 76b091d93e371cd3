// SPDX-License-Identifier: Apache-2.0
// net/: what a method's row in the server's table promises: a thread of its own, a largest message.
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "net/core.h"

enum { IO_THREADS = 2, SMALL_BYTES = 1000 };

static struct rpc_server *server;
static struct rpc_channel *channel;
static atomic_int blocked;
static atomic_bool go_on;

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void block(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    atomic_fetch_add(&blocked, 1);
    while (!atomic_load(&go_on))
        nap();
    rpc_call_finish(call, STATUS_OK, NULL);
}

static void echo(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    rpc_call_send(call, bytes, size);
}

static void finish(struct rpc_call *call)
{
    rpc_call_finish(call, STATUS_OK, NULL);
}

// Answers from a copy that outlives the handler's message.
static void take_and_echo(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct rpc_bytes taken = rpc_call_take_message(call);
    ck_assert_ptr_eq(taken.data, bytes);
    ck_assert_uint_eq(taken.size, size);
    rpc_call_send(call, taken.data, taken.size);
    rpc_call_finish(call, STATUS_OK, NULL);
    rpc_bytes_free(&taken);
}

static const struct rpc_method methods[] = {
    {"/test/Block", .on_message = block},
    {"/test/Echo", .on_message = echo, .on_half_close = finish, .dedicated = true},
    {"/test/Other", .on_message = echo, .on_half_close = finish, .dedicated = true},
    {"/test/Small", .on_message = take_and_echo, .max_message_bytes = SMALL_BYTES},
    {0},
};

static void setup(void)
{
    rpc_init();
    const struct rpc_server_options options = {.address = "127.0.0.1:0", .methods = methods, .threads = IO_THREADS};
    ck_assert_msg(rpc_server_open(&options, &server) == STATUS_OK, "%s", status_message());
    char target[64];
    snprintf(target, sizeof target, "127.0.0.1:%d", rpc_server_port(server));
    ck_assert_int_eq(rpc_channel_open(target, &channel), STATUS_OK);
}

static void teardown(void)
{
    rpc_channel_close(channel);
    rpc_server_close(server, 0);
    ck_assert_int_eq(rpc_live_objects(), 0);
    rpc_shutdown();
}

static struct rpc_stream *send_to(const char *method, const char *text)
{
    struct rpc_stream *stream;
    ck_assert_int_eq(rpc_stream_open(channel, method, 0, false, &stream), STATUS_OK);
    rpc_stream_send(stream, (const uint8_t *)text, strlen(text));
    return stream;
}

static void expect_text(struct rpc_stream *stream, const char *text)
{
    struct rpc_bytes bytes;
    ck_assert_msg(rpc_stream_read(stream, &bytes) == STATUS_OK, "%s", status_message());
    ck_assert_ptr_nonnull(bytes.data);
    ck_assert_str_eq((const char *)bytes.data, text);
    rpc_bytes_free(&bytes);
}

static void expect_end(struct rpc_stream *stream, enum status wanted)
{
    struct rpc_bytes bytes;
    rpc_stream_half_close(stream);
    ck_assert_msg(rpc_stream_read(stream, &bytes) == wanted, "%s", status_message());
    rpc_stream_close(stream);
}

START_TEST(dedicated_methods_go_on_while_other_handlers_block)
{
    struct rpc_stream *blocking[IO_THREADS], *before = send_to("/test/Echo", "before");
    expect_text(before, "before");
    for (int i = 0; i < IO_THREADS; i++)
        blocking[i] = send_to("/test/Block", "");
    // Which thread gets a call is not ours to say: further calls, until all threads block.
    struct rpc_stream *more[100];
    int n_more = 0;
    for (int naps = 1; atomic_load(&blocked) < IO_THREADS; naps++) {
        nap();
        if (naps % 20 == 0 && n_more < 100) more[n_more++] = send_to("/test/Block", "");
    }
    struct rpc_stream *other = send_to("/test/Other", "other");
    expect_text(other, "other");
    rpc_stream_send(before, (const uint8_t *)"again", 5);
    expect_text(before, "again");
    expect_end(other, STATUS_OK);
    expect_end(before, STATUS_OK);
    atomic_store(&go_on, true);
    for (int i = 0; i < IO_THREADS; i++)
        expect_end(blocking[i], STATUS_OK);
    while (n_more)
        expect_end(more[--n_more], STATUS_OK);
}
END_TEST

START_TEST(a_method_bounds_its_messages)
{
    char text[SMALL_BYTES + 2];
    memset(text, 'x', sizeof text);
    text[SMALL_BYTES + 1] = 0;
    struct rpc_stream *large = send_to("/test/Small", text);
    expect_end(large, STATUS_EXHAUSTED);
    ck_assert_str_eq(status_message(), "the message has 1001 bytes: /test/Small takes at most 1000");
    text[SMALL_BYTES] = 0;
    struct rpc_stream *fits = send_to("/test/Small", text);
    expect_text(fits, text);
    expect_end(fits, STATUS_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("net methods");
    TCase *tcase = tcase_create("methods");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 30);
    tcase_add_test(tcase, dedicated_methods_go_on_while_other_handlers_block);
    tcase_add_test(tcase, a_method_bounds_its_messages);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
