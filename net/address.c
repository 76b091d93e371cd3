// SPDX-License-Identifier: Apache-2.0
// Addresses to listen on: their syntax, whether they are free, and whether other machines can reach them.
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "net/server.h"

const char *net_address_colon(const char *address)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : -1;
    if (colon && end > colon + 1 && !*end && port >= 0 && port <= 65535) return colon;
    status_fail(STATUS_INVALID, "address '%s': must be HOST:PORT with a port from 0 to 65535", address);
    return NULL;
}

// *found_p: freeaddrinfo() it.
static enum status address_resolve(const char *address, struct addrinfo **found_p)
{
    const char *colon = net_address_colon(address);
    if (!colon) return STATUS_INVALID;
    char *host = mem_string(address), *bare = host;
    host[colon - address] = 0;
    if (*host == '[' && colon[-1] == ']') {
        host[colon - address - 1] = 0;
        bare++;
    }
    struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    int error = getaddrinfo(*bare ? bare : NULL, colon + 1, &hints, found_p);
    free(host);
    return error ? status_fail(STATUS_INVALID, "address %s: %s", address, gai_strerror(error)) : STATUS_OK;
}

enum status rpc_address_check(const char *address)
{
    struct addrinfo *found;
    TRY(address_resolve(address, &found));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    // listen() too, because sockets with SO_REUSEADDR can share a port until one of them listens.
    bool failed = fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 1);
    int reason = failed ? errno : 0;
    if (fd >= 0) close(fd);
    freeaddrinfo(found);
    if (!reason) return STATUS_OK;
    if (reason == EADDRINUSE)
        return status_fail(STATUS_INVALID,
                           "port %s is in use: stop the program that listens there or choose another port",
                           strrchr(address, ':') + 1);
    return status_fail(STATUS_INVALID, "cannot listen on %s: %s", address, strerror(reason));
}

static bool socket_address_is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    if (address->sa_family != AF_INET6) return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == IN_LOOPBACKNET);
}

enum status rpc_address_is_loopback(const char *address, bool *loopback_p)
{
    struct addrinfo *found;
    TRY(address_resolve(address, &found));
    bool loopback = true;
    for (const struct addrinfo *one = found; one; one = one->ai_next)
        loopback &= socket_address_is_loopback(one->ai_addr);
    freeaddrinfo(found);
    *loopback_p = loopback;
    return STATUS_OK;
}
