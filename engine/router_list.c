// SPDX-License-Identifier: Apache-2.0
#include "engine/router_list.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/secret_file.h"

// --- the option

static bool is_address(const char *address)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    const long port = colon ? strtol(colon + 1, &end, 10) : 0;
    return colon && colon > address && end > colon + 1 && !*end && port >= 1 && port <= 65535;
}

static enum status entry_check(const struct router_entry *entry)
{
    if (entry->kind == ROUTER_FILE ? *entry->address : is_address(entry->address)) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--router '%s': must be HOST:PORT, dns:NAME:PORT or file:PATH", entry->address);
}

// Returns the length of the prefix that gives the kind of the entry.
static size_t kind_read(const char *from, size_t n, enum router_kind *kind_p)
{
    static const struct {
        const char *prefix;
        enum router_kind kind;
    } kinds[] = {{"dns:", ROUTER_NAME}, {"file:", ROUTER_FILE}};
    *kind_p = ROUTER_ADDRESS;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const size_t length = strlen(kinds[i].prefix);
        if (n <= length || strncmp(from, kinds[i].prefix, length) != 0) continue;
        *kind_p = kinds[i].kind;
        return length;
    }
    return 0;
}

static enum status entry_add(struct router_list *list, const char *from, size_t n)
{
    if (list->n == NODE_LINKS_MAX)
        return status_fail(STATUS_INVALID, "--router: at most %d routers are allowed", NODE_LINKS_MAX);
    struct router_entry *entry = &list->entries[list->n];
    const size_t prefix = kind_read(from, n, &entry->kind);
    from += prefix;
    n -= prefix;
    if (n >= sizeof entry->address)
        return status_fail(STATUS_INVALID, "--router: an address must have fewer than %zu bytes",
                           sizeof entry->address);
    memcpy(entry->address, from, n);
    entry->address[n] = 0;
    TRY(entry_check(entry));
    for (int i = 0; i < list->n; i++) {
        if (strcmp(list->entries[i].address, entry->address) == 0)
            return status_fail(STATUS_INVALID, "--router: %s is given twice", entry->address);
    }
    list->changes |= entry->kind != ROUTER_ADDRESS;
    list->has_files |= entry->kind == ROUTER_FILE;
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

// --- files

// Reads a router's address from a file of one line.
static enum status file_read(const char *path, char address[ROUTER_ADDRESS_MAX])
{
    static const char white[] = " \t\r\n";
    char *text;
    TRY(file_read_small(path, false, &text));
    const char *start = text + strspn(text, white);
    const size_t n = strcspn(start, white);
    bool valid = n < ROUTER_ADDRESS_MAX && !start[n + strspn(start + n, white)];
    if (valid) {
        memcpy(address, start, n);
        address[n] = 0;
        valid = is_address(address);
    }
    free(text);
    return valid ? STATUS_OK : status_fail(STATUS_INVALID, "%s: must have one line, the router's HOST:PORT", path);
}

// Finds out if a router that starts later may write the file: the file is absent, and its folder exists.
static bool file_may_appear(const char *path)
{
    if (access(path, F_OK) == 0 || errno != ENOENT) return false;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? mem_format("%.*s", (int)(slash - path + 1), path) : mem_string(".");
    const bool found = access(folder, F_OK) == 0;
    free(folder);
    return found;
}

enum status router_list_check_files(const struct router_list *list)
{
    char address[ROUTER_ADDRESS_MAX];
    for (int i = 0; i < list->n; i++) {
        const struct router_entry *entry = &list->entries[i];
        if (entry->kind == ROUTER_FILE && !file_may_appear(entry->address)) TRY(file_read(entry->address, address));
    }
    return STATUS_OK;
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

static bool file_look_up(const char *path, struct router_addresses *addresses)
{
    char address[ROUTER_ADDRESS_MAX];
    return file_read(path, address) == STATUS_OK && address_add(addresses, address, "");
}

static bool entry_look_up(const struct router_entry *entry, struct router_addresses *addresses)
{
    switch (entry->kind) {
    case ROUTER_NAME: return name_look_up(entry, addresses);
    case ROUTER_FILE: return file_look_up(entry->address, addresses);
    default: return address_add(addresses, entry->address, "");
    }
}

bool router_list_look_up(const struct router_list *list, struct router_addresses *addresses)
{
    bool complete = true;
    addresses->n = 0;
    for (int i = 0; i < list->n; i++)
        complete &= entry_look_up(&list->entries[i], addresses);
    return complete;
}
