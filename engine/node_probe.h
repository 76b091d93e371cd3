// SPDX-License-Identifier: Apache-2.0
// The probe port of a node, a small HTTP server:
//
//     GET /live     200 while the working thread makes progress, else 503
//     GET /ready    200 while the node is attached to a router, else 503
//     GET /metrics  the node's own numbers as Prometheus text
//
// Bodies have one sentence. The port is plain text and shows no text of clients, only load.
#pragma once

#include "engine/node_vitals.h"

struct node_probe;

// Checks an address, HOST:PORT or a port of loopback. An address beyond loopback needs `insecure`. Returns
// STATUS_INVALID or STATUS_UNAVAILABLE with an error message.
enum status node_probe_check(const char *address, bool insecure);

// Serves until node_probe_close(). Borrows the vitals and the address.
enum status node_probe_open(const char *address, struct node_vitals *vitals, const char *role,
                            struct node_probe **probe_p);
void node_probe_close(struct node_probe *probe); // NULL is allowed
