// SPDX-License-Identifier: Apache-2.0
// Identifies callers over gRPC by the metadata `authorization: Bearer KEY` (lib/identity/identity.h). Every caller may
// do everything if --api-keys is not given. I/O threads and the core's thread.
#pragma once

#include "lib/identity/identity.h"
#include "router/front/front.h"

// rpc_server_options.authorise of the clients' server. UNAUTHENTICATED: the key is missing or not known.
enum status front_authorise(struct rpc_call *call);

// Returns the caller, valid while the call is referenced. NULL: no keys are used.
struct principal *grpc_principal(const struct rpc_call *call);
bool grpc_is_operator(const struct rpc_call *call); // true for every caller where no keys are used

// Counts a call without a model's work. False: the call was refused, and has ended.
bool grpc_admit_call(struct rpc_call *call);
