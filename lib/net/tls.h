// SPDX-License-Identifier: Apache-2.0
// TLS from the files of struct rpc_tls: contexts of OpenSSL for a server, credentials of C-core for a client. A server
// decrypts on its side of C-core, so that what clients send is checked (socket.h). Private to net/.
#pragma once

#include <grpc/grpc_security.h>
#include <openssl/ssl.h>

#include "lib/net/rpc.h"

struct net_tls;

// Reads and checks the files: a server needs a certificate and a key, a client the authorities.
enum status net_tls_open_server(const struct rpc_tls *files, struct net_tls **tls_p);
// A connection that has not shaken hands yet; changed files are read first. SSL_free() it. NULL: no memory.
SSL *net_tls_accept(struct net_tls *tls, int fd);
// Looks at the files now, and logs what has changed, instead of at the next handshake. Any thread.
void net_tls_refresh(struct net_tls *tls);
enum status net_tls_client_credentials(const struct rpc_tls *files, grpc_channel_credentials **credentials_p);
void net_tls_free(struct net_tls *tls); // NULL is allowed
