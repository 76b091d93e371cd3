// SPDX-License-Identifier: Apache-2.0
// See address.h.
#include "lib/base/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/mem.h"

// Returns the colon between host and port, or NULL with the reason recorded.
static const char *address_colon(const char *address)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : -1;
    if (colon && end > colon + 1 && !*end && port >= 0 && port <= 65535) return colon;
    status_fail(STATUS_INVALID, "address '%s': must be HOST:PORT with a port from 0 to 65535", address);
    return NULL;
}

// Resolves the address. The caller frees *found_p by freeaddrinfo().
static enum status address_resolve(const char *address, struct addrinfo **found_p)
{
    const char *colon = address_colon(address);
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
    return error ? status_fail(STATUS_UNAVAILABLE, "address %s: %s", address, gai_strerror(error)) : STATUS_OK;
}

// Sets the options that gRPC sets on its own listeners. Accepted sockets inherit them. `both`: a socket for IPv6 serves
// IPv4, too.
static void listen_options_set(int fd, bool both)
{
    int on = 1, v6_only = !both, lost_peer_ms = 20000;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost_peer_ms, sizeof lost_peer_ms);
}

static enum status listen_fail(const char *address, int reason)
{
    if (reason == EADDRINUSE)
        return status_fail(STATUS_UNAVAILABLE,
                           "port %s is in use: stop the program that listens there or choose another port",
                           strrchr(address, ':') + 1);
    enum status status = reason == EADDRNOTAVAIL ? STATUS_UNAVAILABLE : STATUS_INVALID;
    return status_fail(status, "cannot listen on %s: %s", address, strerror(reason));
}

static in_port_t *port_of(struct sockaddr *address)
{
    return address->sa_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port
                                          : &((struct sockaddr_in *)address)->sin_port;
}

// Returns a listening socket, or -1 with errno. *port_p [network order] replaces port 0 and becomes the port in use.
static int listen_at(const struct addrinfo *one, bool both, in_port_t *port_p)
{
    enum { BACKLOG = 4096 };
    struct sockaddr_storage bound;
    socklen_t size = one->ai_addrlen;
    memcpy(&bound, one->ai_addr, size);
    if (!*port_of((struct sockaddr *)&bound)) *port_of((struct sockaddr *)&bound) = *port_p;
    int fd = socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    listen_options_set(fd, both);
    if (bind(fd, (struct sockaddr *)&bound, size) || listen(fd, BACKLOG) ||
        getsockname(fd, (struct sockaddr *)&bound, &size)) {
        int reason = errno;
        close(fd);
        errno = reason;
        return -1;
    }
    *port_p = *port_of((struct sockaddr *)&bound);
    return fd;
}

enum status address_listen(const char *address, int sockets[ADDRESS_SOCKETS_MAX], int *n_p, int *port_p)
{
    struct addrinfo *found;
    TRY(address_resolve(address, &found));
    in_port_t port = 0;
    int n = 0, reason = EADDRNOTAVAIL;
    bool failed = false, both = !found->ai_next; // [::] serves IPv4, too; an empty host has a socket for each
    for (const struct addrinfo *one = found; one && n < ADDRESS_SOCKETS_MAX && !failed; one = one->ai_next) {
        int fd = listen_at(one, both, &port);
        if (fd >= 0)
            sockets[n++] = fd;
        else
            reason = errno;
        // These two errors mean a machine without IPv6.
        failed = fd < 0 && reason != EAFNOSUPPORT && reason != EADDRNOTAVAIL;
    }
    freeaddrinfo(found);
    if (n && !failed) {
        *n_p = n;
        *port_p = ntohs(port);
        return STATUS_OK;
    }
    while (n)
        close(sockets[--n]);
    return listen_fail(address, reason);
}

bool address_listener_is_dead(int error)
{
    return error == EBADF || error == EINVAL || error == ENOTSOCK;
}

enum status address_check(const char *address)
{
    int sockets[ADDRESS_SOCKETS_MAX], n, port;
    TRY(address_listen(address, sockets, &n, &port));
    while (n)
        close(sockets[--n]);
    return STATUS_OK;
}

static bool socket_address_is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    if (address->sa_family != AF_INET6) return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == IN_LOOPBACKNET);
}

enum status address_is_loopback(const char *address, bool *loopback_p)
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
