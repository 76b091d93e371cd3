// SPDX-License-Identifier: Apache-2.0
// Ports for servers that tests close and open again.
#pragma once

#include <stdio.h>
#include <unistd.h>

#include "net/rpc.h"

// One of 127.0.0.1 that is free, and below those that the system hands out to outgoing connections: nobody else comes
// by it while no server listens there, not even the client that dials it.
static inline int test_port(void)
{
    static unsigned tries;
    for (;;) {
        int port = 20000 + (int)(((unsigned)getpid() * 131 + tries++ * 7919) % 12000);
        char address[32];
        snprintf(address, sizeof address, "127.0.0.1:%d", port);
        if (rpc_address_check(address) == STATUS_OK) return port;
    }
}
