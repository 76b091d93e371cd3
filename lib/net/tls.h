// SPDX-License-Identifier: Apache-2.0
// Loads TLS from the files of struct rpc_tls: OpenSSL contexts for a server, C-core credentials for a client. A server
// decrypts before C-core, so that the bytes of clients can be checked (socket.h). Private to net/.
#pragma once

#include <grpc/grpc_security.h>
#include <openssl/ssl.h>

#include "lib/net/rpc.h"

struct net_tls;

// Reads and checks the files: a server needs a certificate and a key, a client the authorities.
enum status net_tls_open_server(const struct rpc_tls *files, struct net_tls **tls_p);
// Returns a connection for a new handshake, after reading changed files. The caller SSL_free()s it. NULL: no memory.
SSL *net_tls_accept(struct net_tls *tls, int fd);
// Reads changed files now and logs the changes, instead of at the next handshake. Any thread.
void net_tls_refresh(struct net_tls *tls);
enum status net_tls_client_credentials(const struct rpc_tls *files, grpc_channel_credentials **credentials_p);
void net_tls_free(struct net_tls *tls); // NULL is allowed
