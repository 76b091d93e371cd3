// SPDX-License-Identifier: Apache-2.0
// Callers over gRPC, identified by the metadata `authorization: Bearer KEY` (lib/identity/identity.h). Without
// --api-keys every caller may do everything. I/O threads and the core's thread.
#pragma once

#include "lib/identity/identity.h"
#include "router/front/front.h"

// For rpc_server_options.authorise of clients. UNAUTHENTICATED.
enum status front_authorise(struct rpc_call *call);

// NULL: no keys are used. Valid while the call is referenced.
struct principal *grpc_principal(const struct rpc_call *call);
bool grpc_is_operator(const struct rpc_call *call); // also every caller where no keys are used

// Counts a call without a model's work, or refuses it: then it has ended, and false is returned.
bool grpc_admit_call(struct rpc_call *call);
