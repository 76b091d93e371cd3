// SPDX-License-Identifier: Apache-2.0
// Finishes compressions on the intake pool, because choosing and counting tokens takes too long for the core's thread.
#pragma once

#include "router/front/request/answer.h"
#include "router/front/request/compression.h"

// Sends the compression to the client. If `status` is not OK, sends the error of status_message() instead. Called
// exactly once, on any thread. `to` is the client's HTTP exchange or gRPC call; the function releases the reference to
// it.
typedef void compress_send_fn(void *to, const struct compression *c, enum status status);

// Ends a compression whose request has ended well. Takes `a->data`, the compression, and calls `send` for it later.
// Call it within client_ops.done.
void compress_finish(struct answer *a, const struct request *r, compress_send_fn *send, void *to);

// client_ops.release of clients whose answers have a compression or nothing as their data.
void compress_release(struct answer *a);
