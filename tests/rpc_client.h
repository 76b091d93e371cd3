// SPDX-License-Identifier: Apache-2.0
// A client of a gRPC server in the same process: its channel, and checks of calls.
#pragma once

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lib/net/core.h"

static struct rpc_channel *channel;
static char target[64];

static inline void open_channel(int port)
{
    snprintf(target, sizeof target, "127.0.0.1:%d", port);
    ck_assert_int_eq(rpc_channel_open(target, &channel), STATUS_OK);
}

static inline void wait_for_objects(int wanted)
{
    for (int i = 0; i < 20000 && rpc_live_objects() != wanted; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_int_eq(rpc_live_objects(), wanted);
}

static inline struct rpc_stream *open_stream(const char *method, int64_t timeout_ms)
{
    struct rpc_stream *stream;
    ck_assert_int_eq(rpc_stream_open(channel, method, timeout_ms, false, &stream), STATUS_OK);
    return stream;
}

static inline void expect_bytes(struct rpc_stream *stream, const void *wanted, size_t size)
{
    struct rpc_bytes bytes;
    enum status status = rpc_stream_read(stream, &bytes);
    ck_assert_msg(status == STATUS_OK, "%s: %s", status_name(status), status_message());
    ck_assert_msg(bytes.data != NULL, "the stream ended");
    ck_assert_mem_eq(bytes.data, wanted, size);
    ck_assert_uint_eq(bytes.size, size);
    rpc_bytes_free(&bytes);
}

static inline void expect_end(struct rpc_stream *stream, enum status wanted, const char *text)
{
    for (int i = 0; i < 2; i++) { // reading again returns the same end
        struct rpc_bytes bytes = {0};
        enum status status = rpc_stream_read(stream, &bytes);
        ck_assert_msg(status == wanted, "%s: %s", status_name(status), status_message());
        ck_assert_ptr_null(bytes.data);
        if (text) ck_assert_msg(strstr(status_message(), text), "%s", status_message());
    }
}

static inline enum status unary(const char *method, const char *text, struct rpc_bytes *answer_p)
{
    return rpc_unary(channel, method, (const uint8_t *)text, strlen(text), 0, answer_p);
}
