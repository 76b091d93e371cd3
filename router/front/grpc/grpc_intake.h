// SPDX-License-Identifier: Apache-2.0
// Passes messages of gRPC clients to the handlers that unpack and tokenise them. Short messages are read on the I/O
// thread, because waking another thread costs more. Longer messages, and messages whose grammar must be compiled, are
// read on the intake pool, so that streams never wait for them.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "router/front/front.h"
#include "router/front/request/intake_pool.h"

struct grpc_message {
    struct rpc_call *call;
    const uint8_t *bytes; // [size] valid until the reader returns
    size_t size;
    int64_t arrived_us;
    void *user;
    bool at_once; // `read` runs on the I/O thread: it should postpone a message that takes long
    bool dropped; // the pool dropped the waiting message: do not unpack it
    // For grpc_message_postpone():
    void (*read)(const struct grpc_message *message);
    uint32_t tenant_field;
    struct intake_owner *owner;
};
typedef void grpc_read_fn(const struct grpc_message *message);

// Calls `read` for the message, now or later, exactly once, on any thread. The call stays referenced until then. Call
// it within on_message. `tenant_field` is the number of the field with the tenant's name; 0: the message has no such
// field. If API keys are used, the tenant of the caller's key counts instead. On UNAVAILABLE or EXHAUSTED, `read` will
// not be called. With any status, the caller must not use `bytes` afterwards.
enum status grpc_message_read(struct rpc_call *call, const uint8_t *bytes, size_t size, uint32_t tenant_field,
                              struct intake_owner *owner, grpc_read_fn *read, void *user);

// Postpones a message that is being read on the I/O thread: `read` is called again on the intake pool. On EXHAUSTED,
// `read` will not be called again. With any status, the caller must not use `bytes` afterwards.
enum status grpc_message_postpone(const struct grpc_message *message);

// Unpacks a client's message. Returns NULL if the message is malformed, or takes more memory than any valid message
// (INVALID). status_message() says which. Free the message with the free_unpacked function of its type.
void *grpc_message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size);

// Sets the deadline of the first token of `r` to the deadline of the call, if the call's deadline is earlier.
void grpc_bound_deadline(const struct rpc_call *call, struct request *r);
