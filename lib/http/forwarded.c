// SPDX-License-Identifier: Apache-2.0
#include "lib/http/forwarded.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/http/parse.h"

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

static enum status read_network(const char *text, size_t size, struct http_networks *networks)
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

enum status http_networks_parse(const char *text, struct http_networks *networks)
{
    networks->n = 0;
    for (const char *at = text; at; at = strchr(at, ','), at = at ? at + 1 : NULL) {
        if (networks->n == HTTP_NETWORKS_MAX)
            return status_fail(STATUS_INVALID, "at most %d networks can be given", HTTP_NETWORKS_MAX);
        TRY(read_network(at, strcspn(at, ","), networks));
    }
    return STATUS_OK;
}

bool http_networks_have(const struct http_networks *networks, const struct in6_addr *address)
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

struct walk {
    const struct http_networks *trusted;
    struct in6_addr client;
    bool known;
};

// Takes a hop without an address. Then the next trusted hop is the farthest that is known.
static void take_unknown(struct walk *w)
{
    w->known = false;
}

// Takes the next hop. An untrusted one replaces all earlier ones, which it may have invented.
static void take_address(struct walk *w, const struct in6_addr *address)
{
    if (w->known && http_networks_have(w->trusted, address)) return;
    w->known = true;
    w->client = *address;
}

// Takes an entry such as 192.0.2.7, 192.0.2.7:4711, 2001:db8::1 or [2001:db8::1]:4711.
static void take_node(struct walk *w, const char *text, size_t size)
{
    struct in6_addr address;
    const char *colon = memchr(text, ':', size), *bracket = size && *text == '[' ? memchr(text, ']', size) : NULL;
    if (bracket) {
        size = (size_t)(bracket - ++text);
    } else if (colon && !memchr(colon + 1, ':', size - (size_t)(colon + 1 - text))) {
        size = (size_t)(colon - text);
    }
    if (read_address(text, size, &address))
        take_address(w, &address);
    else
        take_unknown(w);
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
static void take_pairs(struct walk *w, const char *at, const char *end)
{
    bool open = false;
    for (const char *next; at <= end; at = next + 1) {
        const char *from = at, *to = next = piece_end(at, end, ';', &open);
        trim(&from, &to);
        if (to - from < 4 || strncasecmp(from, "for=", 4) != 0) continue;
        from += 4;
        if (to - from > 1 && *from == '"' && to[-1] == '"') from++, to--;
        take_node(w, from, (size_t)(to - from));
        return;
    }
    take_unknown(w);
}

static void take_forwarded(struct walk *w, const char *at, const char *end)
{
    bool open = false;
    for (const char *next; at <= end; at = next + 1) {
        next = piece_end(at, end, ',', &open);
        take_pairs(w, at, next);
    }
    // A client may have opened the quote to hide the elements that proxies appended.
    if (open) take_unknown(w);
}

static void take_x_forwarded_for(struct walk *w, const char *at, const char *end)
{
    for (const char *next; at <= end; at = next + 1) {
        next = memchr(at, ',', (size_t)(end - at));
        if (!next) next = end;
        const char *from = at, *to = next;
        trim(&from, &to);
        take_node(w, from, (size_t)(to - from));
    }
}

// Takes all headers of this name, in their order. Returns true if there is one.
static bool walk_header(struct walk *w, const char *fields, const char *name,
                        void (*take)(struct walk *w, const char *at, const char *end))
{
    const char *value = http_pair(fields, name);
    bool present = value != NULL;
    for (; value; value = http_pair(value + strlen(value) + 1, name))
        take(w, value, value + strlen(value));
    return present;
}

struct in6_addr http_forwarded_client(const struct http_networks *trusted, const struct in6_addr *peer,
                                      const char *fields)
{
    struct walk plain = {.trusted = trusted}, pairs = plain;
    bool has_plain = walk_header(&plain, fields, "x-forwarded-for", take_x_forwarded_for);
    bool has_pairs = walk_header(&pairs, fields, "forwarded", take_forwarded);
    const struct walk *w = has_plain ? &plain : &pairs;
    bool differ = has_plain && has_pairs &&
                  (plain.known != pairs.known || memcmp(&plain.client, &pairs.client, sizeof plain.client) != 0);
    return w->known && !differ ? w->client : *peer;
}
