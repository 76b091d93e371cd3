// SPDX-License-Identifier: Apache-2.0
#include "engine/router_list.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

// --- the option

static enum status entry_check(const char *address)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    const long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (colon && colon > address && end > colon + 1 && !*end && port >= 1 && port <= 65535) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--router '%s': must be HOST:PORT or dns:NAME:PORT", address);
}

static enum status entry_add(struct router_list *list, const char *from, size_t n)
{
    if (list->n == NODE_LINKS_MAX)
        return status_fail(STATUS_INVALID, "--router: at most %d routers are allowed", NODE_LINKS_MAX);
    struct router_entry *entry = &list->entries[list->n];
    entry->is_name = n > 4 && strncmp(from, "dns:", 4) == 0;
    if (entry->is_name) {
        from += 4;
        n -= 4;
    }
    if (n >= sizeof entry->address)
        return status_fail(STATUS_INVALID, "--router: an address must have fewer than %zu bytes",
                           sizeof entry->address);
    memcpy(entry->address, from, n);
    entry->address[n] = 0;
    TRY(entry_check(entry->address));
    for (int i = 0; i < list->n; i++) {
        if (strcmp(list->entries[i].address, entry->address) == 0)
            return status_fail(STATUS_INVALID, "--router: %s is given twice", entry->address);
    }
    list->has_names |= entry->is_name;
    list->n++;
    return STATUS_OK;
}

enum status router_list_parse(const char *text, struct router_list *list)
{
    *list = (struct router_list){0};
    for (;;) {
        const size_t n = strcspn(text, ",");
        TRY(entry_add(list, text, n));
        if (!text[n]) return STATUS_OK;
        text += n + 1;
    }
}

// --- addresses

// Adds an address unless it is known. Returns false if there is no room.
static bool address_add(struct router_addresses *addresses, const char *address, const char *server_name)
{
    for (int i = 0; i < addresses->n; i++)
        if (strcmp(addresses->items[i].address, address) == 0) return true;
    if (addresses->n == NODE_LINKS_MAX) {
        (void)!status_fail(STATUS_EXHAUSTED, "more than %d addresses of routers", NODE_LINKS_MAX);
        return false;
    }
    struct router_address *to = &addresses->items[addresses->n++];
    snprintf(to->address, sizeof to->address, "%s", address);
    snprintf(to->server_name, sizeof to->server_name, "%s", server_name);
    return true;
}

static bool found_add(const struct addrinfo *found, const char *name, const char *port, struct router_addresses *to)
{
    char host[NI_MAXHOST], address[NI_MAXHOST + 16];
    if (getnameinfo(found->ai_addr, found->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0) return true;
    snprintf(address, sizeof address, found->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    return address_add(to, address, name);
}

static bool name_look_up(const struct router_entry *entry, struct router_addresses *addresses)
{
    char name[ROUTER_ADDRESS_MAX];
    snprintf(name, sizeof name, "%s", entry->address);
    char *port = strrchr(name, ':');
    *port++ = 0;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const int error = getaddrinfo(name, port, &hints, &found);
    if (error) {
        (void)!status_fail(STATUS_UNAVAILABLE, "%s: %s", name, gai_strerror(error));
        return false;
    }
    bool complete = true;
    for (const struct addrinfo *at = found; at; at = at->ai_next)
        complete &= found_add(at, name, port, addresses);
    freeaddrinfo(found);
    return complete;
}

bool router_list_look_up(const struct router_list *list, struct router_addresses *addresses)
{
    bool complete = true;
    addresses->n = 0;
    for (int i = 0; i < list->n; i++) {
        const struct router_entry *entry = &list->entries[i];
        complete &= entry->is_name ? name_look_up(entry, addresses) : address_add(addresses, entry->address, "");
    }
    return complete;
}
