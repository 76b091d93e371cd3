// SPDX-License-Identifier: Apache-2.0
// The routers of a node, as --router names them: HOST:PORT, dns:NAME:PORT or file:PATH, separated by commas. Every
// address of a DNS name is a router of its own. A file has one line, the HOST:PORT of a router that may move.
#pragma once

#include <stdbool.h>

#include "engine/link_id.h"
#include "lib/base/status.h"

enum { ROUTER_ADDRESS_MAX = 280 };

enum router_kind {
    ROUTER_ADDRESS,
    ROUTER_NAME, // `dns:` was given: look up all addresses of the name
    ROUTER_FILE, // `file:` was given: read the address from the file
};

struct router_entry {
    char address[ROUTER_ADDRESS_MAX]; // HOST:PORT, NAME:PORT or path
    enum router_kind kind;
};

struct router_list {
    struct router_entry entries[NODE_LINKS_MAX];
    int n;
    bool changes;   // has names or files, which must be looked up again
    bool has_files; // must be looked up often while no router is attached
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

// Checks the files of the list. A file may be absent, because its router may start later, but its folder must exist.
enum status router_list_check_files(const struct router_list *list);

// Looks up the names and files of the list. May take seconds. Returns false if an address may be missing: a name or
// file was not found, or there are more than NODE_LINKS_MAX addresses. status_message() gives the reason.
bool router_list_look_up(const struct router_list *list, struct router_addresses *addresses);
