// SPDX-License-Identifier: Apache-2.0
// net/: a method's largest message, and that of health and reflection.
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/net/core.h"
#include "tests/suite.h"

enum { SMALL_BYTES = 1000 };

static struct rpc_server *server;
static struct rpc_channel *channel;
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
    {"/test/Small", .on_message = take_and_echo, .max_message_bytes = SMALL_BYTES},
    {0},
};

static void setup(void)
{
    rpc_init();
    const struct rpc_server_options options = {.address = "127.0.0.1:0", .methods = methods};
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

START_TEST(a_message_given_to_a_stream_is_sent_without_a_copy)
{
    struct rpc_bytes given = {(uint8_t *)mem_string("given"), 5}, late = {(uint8_t *)mem_string("late"), 4};
    struct rpc_stream *stream;
    ck_assert_int_eq(rpc_stream_open(channel, "/test/Small", 0, false, &stream), STATUS_OK);
    rpc_stream_give(stream, &given);
    ck_assert_ptr_null(given.data);
    ck_assert(!given.size);
    expect_text(stream, "given");
    rpc_stream_half_close(stream);
    rpc_stream_give(stream, &late); // dropped, but freed
    ck_assert_ptr_null(late.data);
    ck_assert(!late.size);
    expect_end(stream, STATUS_OK);
}
END_TEST

// Unpacking a message takes many times its size.
START_TEST(health_and_reflection_take_short_messages_only)
{
    static const char *const paths[] = {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
                                        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"};
    char fields[10001]; // unknown ones, of two bytes each
    for (size_t i = 0; i < sizeof fields; i++)
        fields[i] = i % 2 ? 1 : 0x78;
    fields[sizeof fields - 1] = 0;
    for (int i = 0; i < 3; i++)
        expect_end(send_to(paths[i], fields), STATUS_EXHAUSTED);
}
END_TEST

SUITE("net methods")
{
    TIMEOUT(30);
    FIXTURE(setup, teardown);
    TEST(health_and_reflection_take_short_messages_only);
    TEST(a_method_bounds_its_messages);
    TEST(a_message_given_to_a_stream_is_sent_without_a_copy);
}
