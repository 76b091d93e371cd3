// SPDX-License-Identifier: Apache-2.0
// Ports for servers that a test closes and opens again.
#pragma once

#include <stdio.h>
#include <unistd.h>

#include "lib/base/address.h"

// Returns a free port of 127.0.0.1 below the range for outgoing connections. While no server listens there, no outgoing
// connection gets this port, not even that of a client that dials it.
static inline int test_port(void)
{
    static unsigned tries;
    for (;;) {
        int port = 20000 + (int)(((unsigned)getpid() * 131 + tries++ * 7919) % 12000);
        char address[32];
        snprintf(address, sizeof address, "127.0.0.1:%d", port);
        if (address_check(address) == STATUS_OK) return port;
    }
}
