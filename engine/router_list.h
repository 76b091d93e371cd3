// SPDX-License-Identifier: Apache-2.0
// The routers of a node, as --router names them: HOST:PORT or dns:NAME:PORT, separated by commas. Every address of a
// DNS name is a router of its own.
#pragma once

#include <stdbool.h>

#include "engine/link_id.h"
#include "lib/base/status.h"

enum { ROUTER_ADDRESS_MAX = 280 };

struct router_entry {
    char address[ROUTER_ADDRESS_MAX]; // HOST:PORT or NAME:PORT
    bool is_name;                     // `dns:` was given: look up all addresses of the name
};

struct router_list {
    struct router_entry entries[NODE_LINKS_MAX];
    int n;
    bool has_names;
};

// Returns STATUS_INVALID if an entry is not an address, is given twice, or exceeds NODE_LINKS_MAX.
enum status router_list_parse(const char *text, struct router_list *list);

struct router_address {
    char address[ROUTER_ADDRESS_MAX];     // HOST:PORT
    char server_name[ROUTER_ADDRESS_MAX]; // name that the router's certificate must have; "": the host of `address`
};

struct router_addresses {
    struct router_address items[NODE_LINKS_MAX];
    int n;
};

// Looks up the names of the list. May take seconds. Returns false if an address may be missing: a name was not found,
// or there are more than NODE_LINKS_MAX addresses. status_message() gives the reason.
bool router_list_look_up(const struct router_list *list, struct router_addresses *addresses);
