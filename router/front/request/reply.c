// SPDX-License-Identifier: Apache-2.0
#include "router/front/request/reply.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/equal_share.h"
#include "lib/base/mem.h"

#define RETRY_US 1000000

// Limits of unread bytes: for one call, and for all calls together.
enum { UNREAD_MAX_MB = 16, ALL_UNREAD_MAX_MB = 256 };

size_t reply_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    uint8_t small[4096];
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = size <= sizeof small ? small : mem_alloc(size);
    protobuf_c_message_pack(message, bytes);
    size_t queued = rpc_call_send(call, bytes, size);
    if (bytes != small) free(bytes);
    return queued;
}

// Returns true if the call must end. If all calls together exceed their limit, calls with more than an equal share of
// the unread bytes end. Calls with few unread bytes continue.
static bool exceeds_share(struct rpc_call *call, size_t unread)
{
    return !equal_share_is_small(unread) && unread > rpc_call_share(call, (size_t)ALL_UNREAD_MAX_MB << 20);
}

void reply_stream(struct rpc_call *call, const ProtobufCMessage *message)
{
    size_t queued = reply_send(call, message);
    if (queued > (size_t)UNREAD_MAX_MB << 20) {
        status_fail(STATUS_EXHAUSTED, "the client reads too slowly: over %d MiB are unread", UNREAD_MAX_MB);
    } else if (exceeds_share(call, queued)) {
        status_fail(STATUS_EXHAUSTED,
                    "the client reads too slowly: %zu KiB are unread, and over %d MiB of all calls together",
                    queued >> 10, ALL_UNREAD_MAX_MB);
    } else {
        return;
    }
    rpc_call_abandon(call, STATUS_EXHAUSTED, status_message());
}

void reply_unary(struct rpc_call *call, const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    if (exceeds_share(call, size)) {
        status_fail(STATUS_EXHAUSTED,
                    "clients have left over %d MiB of answers unread, and this answer has %zu KiB: try again later",
                    ALL_UNREAD_MAX_MB, size >> 10);
        reply_refuse(call, STATUS_EXHAUSTED);
        return;
    }
    reply_send(call, message);
    rpc_call_finish(call, STATUS_OK, "");
}

static void finish(struct rpc_call *call, enum status status, const char *message, int64_t retry_us)
{
    char retry_ms[24];
    snprintf(retry_ms, sizeof retry_ms, "%lld", (long long)(retry_us + 999) / 1000);
    if (status == STATUS_EXHAUSTED || status == STATUS_KEY_LIMIT)
        rpc_call_add_trailer(call, "retry-after-ms", retry_ms);
    rpc_call_finish(call, status, message);
}

void reply_finish(struct rpc_call *call, enum status status, const char *message)
{
    finish(call, status, message, RETRY_US);
}

void reply_refuse(struct rpc_call *call, enum status status)
{
    reply_finish(call, status, status_message());
}

void reply_refuse_until(struct rpc_call *call, enum status status, int64_t retry_us)
{
    finish(call, status, status_message(), retry_us ? retry_us : RETRY_US);
}
