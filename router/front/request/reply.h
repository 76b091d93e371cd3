// SPDX-License-Identifier: Apache-2.0
// Sends on a client's or a node's call. A client that reads more slowly than its answers come is cut off, so that
// unread answers take a bounded amount of memory. Any thread.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "lib/net/rpc.h"

// Packs and queues a message. Returns the bytes that are now queued on the call.
size_t reply_send(struct rpc_call *call, const ProtobufCMessage *message);

// Sends a message of a stream to a client. When too many bytes are unread, the call ends with EXHAUSTED: queued and
// later messages are dropped, and the call's close event cancels its requests.
void reply_stream(struct rpc_call *call, const ProtobufCMessage *message);

// Sends the answer of a unary call and ends the call.
void reply_unary(struct rpc_call *call, const ProtobufCMessage *message);

// Ends the call. EXHAUSTED is sent with the trailer retry-after-ms, which is one second if the time is not known.
void reply_finish(struct rpc_call *call, enum status status, const char *message);

// Calls reply_finish() with status_message().
void reply_refuse(struct rpc_call *call, enum status status);
void reply_refuse_until(struct rpc_call *call, enum status status, int64_t retry_us); // 0: not known
