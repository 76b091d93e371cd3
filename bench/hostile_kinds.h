// SPDX-License-Identifier: Apache-2.0
// The bytes of hostile clients: each kind breaks or nears one limit of a port.
#pragma once

#include <stdbool.h>

#include "bench/http2.h"

struct hostile_kind {
    const char *name;
    void (*first)(struct h2_bytes *to); // bytes sent immediately
    void (*more)(struct h2_bytes *to);  // bytes sent every `more_ms`; NULL: none
    int more_ms;
    bool raw; // sends its bytes without TLS on a port with TLS, too
};

// Returns the kinds for a port of gRPC or HTTP/1.1, which end with a name of NULL.
const struct hostile_kind *hostile_kinds(bool grpc);
