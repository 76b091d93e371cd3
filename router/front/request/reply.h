// SPDX-License-Identifier: Apache-2.0
// Sends on a client's or a node's call. The call of a client that leaves too many bytes unread is ended, which bounds
// the memory of unread answers. Any thread.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "lib/net/rpc.h"

// Packs and queues a message. Returns the number of bytes that are queued on the call, this message included.
size_t reply_send(struct rpc_call *call, const ProtobufCMessage *message);

// Sends a message of a stream to a client. If too many bytes are unread, ends the call with EXHAUSTED: queued and later
// messages are dropped, and the call's close event cancels its requests.
void reply_stream(struct rpc_call *call, const ProtobufCMessage *message);

// Sends the answer of a unary call and ends the call. Refuses the call (EXHAUSTED) if clients leave too much unread.
void reply_unary(struct rpc_call *call, const ProtobufCMessage *message);

// Ends the call. EXHAUSTED and KEY_LIMIT are sent with the trailer retry-after-ms, here with one second.
void reply_finish(struct rpc_call *call, enum status status, const char *message);

// Calls reply_finish() with status_message().
void reply_refuse(struct rpc_call *call, enum status status);
// The same with the time after which a retry may succeed; 0: not known, then one second.
void reply_refuse_until(struct rpc_call *call, enum status status, int64_t retry_us);
