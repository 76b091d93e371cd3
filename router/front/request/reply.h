// SPDX-License-Identifier: Apache-2.0
// Sending on a client's or a node's call. Any thread. A client that reads more slowly than its answers come is cut off,
// so that unread answers take a bounded amount of memory.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "lib/net/rpc.h"

// Packs and queues a message; returns the bytes that are now queued on the call.
size_t reply_send(struct rpc_call *call, const ProtobufCMessage *message);

// reply_send() to a client. When too much is unread the call ends with EXHAUSTED: queued and later messages are
// dropped, and the call's close event cancels its requests.
void reply_stream(struct rpc_call *call, const ProtobufCMessage *message);

// Sends the answer of a unary call and ends the call.
void reply_unary(struct rpc_call *call, const ProtobufCMessage *message);

// Ends the call. EXHAUSTED is sent with the trailer retry-after-ms: a second, where the time is not known.
void reply_finish(struct rpc_call *call, enum status status, const char *message);

// reply_finish() with status_message().
void reply_refuse(struct rpc_call *call, enum status status);
void reply_refuse_until(struct rpc_call *call, enum status status, int64_t retry_us); // 0: not known
