// SPDX-License-Identifier: Apache-2.0
// Messages of gRPC clients on their way to the handlers that unpack and tokenise them: short ones are read on the I/O
// thread, at less cost than waking another one; all others, and those whose grammar must be compiled, on the intake
// pool, so that streams never wait for them.
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
    bool at_once; // on the I/O thread: what takes long is postponed
    bool dropped; // while the message waited: do not read it
    // For grpc_message_postpone():
    void (*read)(const struct grpc_message *message);
    uint32_t tenant_field;
    struct intake_owner *owner;
};
typedef void grpc_read_fn(const struct grpc_message *message);

// Within on_message: calls `read` for the message, now or later, exactly once, on any thread; the call stays
// referenced. `tenant_field` is the number of its field with the tenant's name; 0: it has none. The tenant of the
// caller's key counts, if keys are used. UNAVAILABLE or EXHAUSTED: `read` will not be called.
// Whatever the status, `bytes` may not be used afterwards.
enum status grpc_message_read(struct rpc_call *call, const uint8_t *bytes, size_t size, uint32_t tenant_field,
                              struct intake_owner *owner, grpc_read_fn *read, void *user);

// To be called by the reader of a message that is read at once: the reader is called for it again, on the intake pool.
// EXHAUSTED: it will not be. Whatever the status, `bytes` may not be used afterwards.
enum status grpc_message_postpone(const struct grpc_message *message);

// A client's message; NULL and the reason (INVALID) when it is malformed or takes more memory than any honest message.
// Free it with the free_unpacked function of its type.
void *grpc_message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size);

// The call's deadline bounds a whole answer, and so the first token of `r`.
void grpc_bound_deadline(const struct rpc_call *call, struct request *r);
