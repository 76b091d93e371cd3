// SPDX-License-Identifier: Apache-2.0
// Replaces libc's functions in this program and the libraries that it loads. Calls on a descriptor that is not in
// socket.h's table go straight to libc.
#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

#include "lib/net/socket.h"

// Finds libc's function at the first call, which may come before this program's constructors. Racing threads find the
// same function.
static void *libc_find(_Atomic(void *) *function, const char *name)
{
    void *found = atomic_load_explicit(function, memory_order_acquire);
    if (found) return found;
    found = dlsym(RTLD_NEXT, name);
    atomic_store_explicit(function, found, memory_order_release);
    return found;
}

ssize_t net_libc_recvmsg(int fd, struct msghdr *message, int flags)
{
    static _Atomic(void *) function;
    ssize_t (*libc)(int, struct msghdr *, int) = libc_find(&function, "recvmsg");
    return libc(fd, message, flags);
}

ssize_t net_libc_sendmsg(int fd, const struct msghdr *message, int flags)
{
    static _Atomic(void *) function;
    ssize_t (*libc)(int, const struct msghdr *, int) = libc_find(&function, "sendmsg");
    return libc(fd, message, flags);
}

__attribute__((visibility("default"))) ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    struct net_socket *s = net_socket_of(fd);
    return s ? net_socket_receive(s, message, flags) : net_libc_recvmsg(fd, message, flags);
}

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct net_socket *s = net_socket_of(fd);
    return s ? net_socket_send(s, message, flags) : net_libc_sendmsg(fd, message, flags);
}

__attribute__((visibility("default"))) int getpeername(int fd, __SOCKADDR_ARG address, socklen_t *restrict size)
{
    static _Atomic(void *) function;
    int (*libc)(int, struct sockaddr *, socklen_t *) = libc_find(&function, "getpeername");
    struct net_socket *s = net_socket_of(fd);
    if (!s) return libc(fd, address.__sockaddr__, size);
    net_socket_address(s, address.__sockaddr__, size);
    return 0;
}

__attribute__((visibility("default"))) int close(int fd)
{
    static _Atomic(void *) function;
    int (*libc)(int) = libc_find(&function, "close");
    struct net_socket *s = net_socket_of(fd);
    if (s) net_socket_closing(s);
    return libc(fd);
}

bool net_libc_is_taken(void)
{
    return dlsym(RTLD_DEFAULT, "recvmsg") == (void *)recvmsg && dlsym(RTLD_DEFAULT, "sendmsg") == (void *)sendmsg &&
           dlsym(RTLD_DEFAULT, "getpeername") == (void *)getpeername && dlsym(RTLD_DEFAULT, "close") == (void *)close;
}
