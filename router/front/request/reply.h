// SPDX-License-Identifier: Apache-2.0
// Sends on a client's or a node's call. Ends the call of a client that leaves too many bytes unread, to bound the
// memory of unread answers. Any thread may call.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "lib/net/rpc.h"

// Packs and queues a message. Returns the number of bytes that are queued on the call, this message included.
size_t reply_send(struct rpc_call *call, const ProtobufCMessage *message);

// Sends a message of a stream to a client. If too many bytes are unread, ends the call with EXHAUSTED: queued and later
// messages are dropped, and the call's close event cancels its requests.
void reply_stream(struct rpc_call *call, const ProtobufCMessage *message);

// Sends the answer of a unary call and ends the call. Refuses the call with EXHAUSTED if clients leave too many bytes
// unread.
void reply_unary(struct rpc_call *call, const ProtobufCMessage *message);

// Ends the call. With EXHAUSTED and KEY_LIMIT, sends the trailer retry-after-ms with one second.
void reply_finish(struct rpc_call *call, enum status status, const char *message);

// Calls reply_finish() with status_message().
void reply_refuse(struct rpc_call *call, enum status status);
// Calls reply_refuse() with the time after which a retry may succeed. 0 means unknown, and one second is sent.
void reply_refuse_until(struct rpc_call *call, enum status status, int64_t retry_us);
