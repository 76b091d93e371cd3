// SPDX-License-Identifier: Apache-2.0
// Checks the sockets that C-core uses for the connections of a server. C-core 1.51 has no limits for some things that
// clients send. A relay between clients and C-core would cost two more system calls and a thread switch per read. So
// C-core keeps the socket, and this module replaces the recvmsg(), sendmsg(), getpeername() and close() that C-core
// calls (socket_libc.c). Bytes are decrypted and checked (frames.h) before C-core gets them. To C-core, a connection
// that breaks a limit looks reset by its peer. Private to net/.
//
// Threads: C-core receives on one thread at a time and sends on one thread at a time. The two threads may run at the
// same time.
#pragma once

#include <netinet/in.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "lib/base/forwarded.h"
#include "lib/base/peer_budget.h"
#include "lib/net/frames.h"

struct net_socket;
struct net_sockets; // all sockets of a server; reference-counted, because C-core closes the last sockets late

enum { NET_UNFINISHED_US = 10000000 }; // limit for a header block, a frame without data, and the preface

struct net_sockets_options {
    struct frames_limits limits;
    int port;                // for logs
    int max_per_address;     // connections of an address and calls of a client of trusted proxies; 0: no bound
    struct networks proxies; // trusted ones: their connections do not count
    int shared_calls;        // cost of calls that connections without credit may open in 2 s, together (turns.h)
    bool proof;              // clients must show a key or token in a call; until then they share PEER_UNPROVEN_BYTES
};

struct net_sockets *net_sockets_create(const struct net_sockets_options *options);
void net_sockets_unref(struct net_sockets *sockets); // NULL is allowed
int net_sockets_count(struct net_sockets *sockets);
bool net_sockets_trust(const struct net_sockets *sockets, const struct in6_addr *address); // a trusted proxy
// Returns true if the address gets no new connection for now, because its connections broke limits again and again.
bool net_sockets_bar(struct net_sockets *sockets, const struct in6_addr *address, int64_t now_us);
// Counts a connection, for its address. Returns false if the address has the maximum. Connections of trusted proxies do
// not count, but each of their calls does.
bool net_sockets_count_connection(struct net_sockets *sockets, const struct in6_addr *address);
void net_sockets_drop_connection(struct net_sockets *sockets, const struct in6_addr *address);
// Counts a call for the address of its client.
bool net_sockets_count_call(struct net_sockets *sockets, const struct in6_addr *client);
void net_sockets_drop_call(struct net_sockets *sockets, const struct in6_addr *client);
// Ends connections with a frame, header block or preface that is unfinished for NET_UNFINISHED_US, unless they wait for
// their turn.
void net_sockets_expire(struct net_sockets *sockets, int64_t now_us);

// Connections that have to wait for their turn to open calls (turns.h). The listener calls net_sockets_next_turn() at
// net_sockets_turn_due_us(), and after `wake`, until it returns NULL. The result is the `holder` of a socket whose
// first calls had to wait. They are paid now.
void net_sockets_start_turns(struct net_sockets *sockets, void (*wake)(void *owner), void *owner);
void net_sockets_stop_turns(struct net_sockets *sockets); // no connection waits any more
int64_t net_sockets_turn_due_us(struct net_sockets *sockets);
void *net_sockets_next_turn(struct net_sockets *sockets, int64_t now_us);

// Checks what is received and sent on `fd` from now on, until `fd` is closed. The socket takes ownership of `ssl`
// (NULL: plain text). The caller has counted the connection for `address`; the socket removes it from the counts at its
// end. Returns NULL, without effect, if `fd` is out of range or there is no memory.
struct net_socket *net_socket_open(struct net_sockets *sockets, int fd, SSL *ssl, const struct sockaddr_in6 *address);

// The listener receives the first bytes (net_socket_receive()) and keeps them until C-core may have the connection.
void net_socket_keep(struct net_socket *socket, size_t early_bytes); // counts the kept bytes in the memory budget
bool net_socket_may_pass(struct net_socket *socket);                 // as frames_may_pass()
// Pays for the calls in these bytes. Returns false if they have to wait for their turn. Then the listener reads nothing
// until net_sockets_next_turn() returns `holder`.
bool net_socket_pay(struct net_socket *socket, void *holder);
void net_socket_pass(struct net_socket *socket); // C-core receives from now on

// Finds the socket that carries a call. `core_peer` is C-core's name for the call's peer. Returns NULL if the socket is
// closed. The caller unreferences the socket.
struct net_socket *net_socket_find(const char *core_peer);
void net_socket_unref(struct net_socket *socket);             // NULL is allowed
const char *net_socket_peer(const struct net_socket *socket); // address, for logs: "ipv4:127.0.0.1:1234"
const char *net_socket_name(const struct net_socket *socket); // name in the client's verified certificate, or NULL
// Returns the address of a trusted proxy, which is the peer. NULL: the peer is another client.
const struct in6_addr *net_socket_proxy(const struct net_socket *socket);
void net_socket_prove(struct net_socket *socket); // the socket's client has shown a key or token

// The functions that socket_libc.c calls in place of libc's. net_socket_of() returns NULL if `fd` is not such a socket.
struct net_socket *net_socket_of(int fd);
ssize_t net_socket_receive(struct net_socket *socket, struct msghdr *message, int flags);
ssize_t net_socket_send(struct net_socket *socket, const struct msghdr *message, int flags);
void net_socket_address(const struct net_socket *socket, struct sockaddr *address, socklen_t *size);
void net_socket_closing(struct net_socket *socket); // call it before the descriptor is closed
// Call libc's own functions.
ssize_t net_libc_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t net_libc_sendmsg(int fd, const struct msghdr *message, int flags);
// Returns false if the program was linked so that C-core calls libc's functions directly.
bool net_libc_is_taken(void);
