// SPDX-License-Identifier: Apache-2.0
// Credentials of C-core from the files of struct rpc_tls. Private to net/.
#pragma once

#include <grpc/grpc_security.h>

#include "lib/net/rpc.h"

struct net_tls;

// Reads and checks the files: a server needs a certificate and a key, a client the authorities.
enum status net_tls_open_server(const struct rpc_tls *files, struct net_tls **tls_p);
// The credentials of a port. C-core asks `tls` for changed files at each handshake: it must outlive the server.
grpc_server_credentials *net_tls_server_credentials(struct net_tls *tls);
// Looks at the files now, and logs what has changed, instead of at the next handshake. Any thread.
void net_tls_refresh(struct net_tls *tls);
enum status net_tls_client_credentials(const struct rpc_tls *files, grpc_channel_credentials **credentials_p);
void net_tls_free(struct net_tls *tls); // NULL is allowed
