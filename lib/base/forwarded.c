// SPDX-License-Identifier: Apache-2.0
#include "lib/base/forwarded.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAPPED_BITS = 96, ALL_BITS = 128 };

static struct in6_addr map_ipv4(struct in_addr v4)
{
    struct in6_addr mapped = {.s6_addr[10] = 0xff, .s6_addr[11] = 0xff};
    memcpy(mapped.s6_addr + 12, &v4, sizeof v4);
    return mapped;
}

// Reads an address without a port or brackets.
static bool read_address(const char *text, size_t size, struct in6_addr *address_p)
{
    char copy[INET6_ADDRSTRLEN];
    struct in_addr v4;
    if (size >= sizeof copy) return false;
    memcpy(copy, text, size);
    copy[size] = '\0';
    if (strlen(copy) != size) return false;
    if (inet_pton(AF_INET, copy, &v4) != 1) return inet_pton(AF_INET6, copy, address_p) == 1;
    *address_p = map_ipv4(v4);
    return true;
}

// --- networks

static enum status read_network(const char *text, size_t size, struct networks *networks)
{
    const char *slash = memchr(text, '/', size);
    size_t n = slash ? (size_t)(slash - text) : size;
    bool v4 = memchr(text, ':', n) == NULL;
    long most = v4 ? ALL_BITS - MAPPED_BITS : ALL_BITS, bits = most;
    char *end = NULL;
    if (slash) bits = slash[1] >= '0' && slash[1] <= '9' ? strtol(slash + 1, &end, 10) : -1;
    if (!read_address(text, n, &networks->list[networks->n].address) || bits < 0 || bits > most ||
        (end && end != text + size))
        return status_fail(STATUS_INVALID, "'%.*s': must be an address or a network such as 10.0.0.0/8 or fd00::/8",
                           (int)size, text);
    networks->list[networks->n++].bits = (int)bits + (v4 ? MAPPED_BITS : 0);
    return STATUS_OK;
}

enum status networks_parse(const char *text, struct networks *networks)
{
    networks->n = 0;
    for (const char *at = text; at; at = strchr(at, ','), at = at ? at + 1 : NULL) {
        if (networks->n == NETWORKS_MAX)
            return status_fail(STATUS_INVALID, "at most %d networks can be given", NETWORKS_MAX);
        TRY(read_network(at, strcspn(at, ","), networks));
    }
    return STATUS_OK;
}

bool networks_have(const struct networks *networks, const struct in6_addr *address)
{
    for (int i = 0; i < networks->n; i++) {
        const uint8_t *prefix = networks->list[i].address.s6_addr;
        int bytes = networks->list[i].bits / 8, rest = networks->list[i].bits % 8;
        if (memcmp(prefix, address->s6_addr, (size_t)bytes) != 0) continue;
        if (rest == 0 || (prefix[bytes] ^ address->s6_addr[bytes]) >> (8 - rest) == 0) return true;
    }
    return false;
}

// --- hops, from the client to the server

// Takes a hop without an address. Then the next trusted hop is the farthest that is known.
static void take_unknown(struct forwarded_hops *h)
{
    h->known = false;
}

// Takes the next hop. An untrusted one replaces all earlier ones, which it may have invented.
static void take_address(struct forwarded_hops *h, const struct in6_addr *address)
{
    if (h->known && networks_have(h->trusted, address)) return;
    h->known = true;
    h->client = *address;
}

// Takes an entry such as 192.0.2.7, 192.0.2.7:4711, 2001:db8::1 or [2001:db8::1]:4711.
static void take_node(struct forwarded_hops *h, const char *text, size_t size)
{
    struct in6_addr address;
    const char *colon = memchr(text, ':', size), *bracket = size && *text == '[' ? memchr(text, ']', size) : NULL;
    if (bracket) {
        size = (size_t)(bracket - ++text);
    } else if (colon && !memchr(colon + 1, ':', size - (size_t)(colon + 1 - text))) {
        size = (size_t)(colon - text);
    }
    if (read_address(text, size, &address))
        take_address(h, &address);
    else
        take_unknown(h);
}

static void trim(const char **at_p, const char **end_p)
{
    while (*at_p < *end_p && (**at_p == ' ' || **at_p == '\t'))
        ++*at_p;
    while (*end_p > *at_p && ((*end_p)[-1] == ' ' || (*end_p)[-1] == '\t'))
        --*end_p;
}

// Returns the end of the piece at `at`, which ends before a `separator` outside of quotes. Sets *open_p if a quote is
// not closed.
static const char *piece_end(const char *at, const char *end, char separator, bool *open_p)
{
    bool quoted = false;
    for (; at < end && (quoted || *at != separator); at++) {
        if (*at == '"') quoted = !quoted;
        if (quoted && *at == '\\' && at + 1 < end) at++;
    }
    *open_p |= quoted;
    return at;
}

// Takes an element of Forwarded, such as for="[2001:db8::1]:4711";proto=https.
static void take_pairs(struct forwarded_hops *h, const char *at, const char *end)
{
    bool open = false;
    for (const char *next; at <= end; at = next + 1) {
        const char *from = at, *to = next = piece_end(at, end, ';', &open);
        trim(&from, &to);
        if (to - from < 4 || strncasecmp(from, "for=", 4) != 0) continue;
        from += 4;
        if (to - from > 1 && *from == '"' && to[-1] == '"') from++, to--;
        take_node(h, from, (size_t)(to - from));
        return;
    }
    take_unknown(h);
}

static void take_forwarded(struct forwarded_hops *h, const char *at, const char *end)
{
    bool open = false;
    for (const char *next; at <= end; at = next + 1) {
        next = piece_end(at, end, ',', &open);
        take_pairs(h, at, next);
    }
    // A client may have opened the quote to hide the elements that proxies appended.
    if (open) take_unknown(h);
}

static void take_x_forwarded_for(struct forwarded_hops *h, const char *at, const char *end)
{
    for (const char *next; at <= end; at = next + 1) {
        next = memchr(at, ',', (size_t)(end - at));
        if (!next) next = end;
        const char *from = at, *to = next;
        trim(&from, &to);
        take_node(h, from, (size_t)(to - from));
    }
}

struct forwarded forwarded_begin(const struct networks *trusted)
{
    return (struct forwarded){.plain.trusted = trusted, .pairs.trusted = trusted};
}

void forwarded_take(struct forwarded *f, const char *name, const char *value)
{
    if (strcasecmp(name, "x-forwarded-for") == 0) {
        f->plain.present = true;
        take_x_forwarded_for(&f->plain, value, value + strlen(value));
    } else if (strcasecmp(name, "forwarded") == 0) {
        f->pairs.present = true;
        take_forwarded(&f->pairs, value, value + strlen(value));
    }
}

struct in6_addr forwarded_client(const struct forwarded *f, const struct in6_addr *peer)
{
    const struct forwarded_hops *plain = &f->plain, *pairs = &f->pairs, *h = plain->present ? plain : pairs;
    bool differ = plain->present && pairs->present &&
                  (plain->known != pairs->known || memcmp(&plain->client, &pairs->client, sizeof plain->client) != 0);
    return h->known && !differ ? h->client : *peer;
}
