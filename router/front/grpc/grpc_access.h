// SPDX-License-Identifier: Apache-2.0
// Identifies callers over gRPC by the metadata `authorization: Bearer KEY` (lib/identity/identity.h). If
// --api-keys is not given, every caller may do everything. I/O threads and the core's thread.
#pragma once

#include "lib/identity/identity.h"
#include "router/front/front.h"

// The function rpc_server_options.authorise of the clients' server. Returns UNAUTHENTICATED if the key is missing or
// not known.
enum status front_authorise(struct rpc_call *call);

// Returns the caller, or NULL if no API keys are used. The caller is valid while the call is referenced.
struct principal *grpc_principal(const struct rpc_call *call);
bool grpc_is_operator(const struct rpc_call *call); // true for every caller where no keys are used

// Counts a call that needs no model against the limits of the caller's key. Returns false if the call was refused and
// has ended.
bool grpc_admit_call(struct rpc_call *call);
