// SPDX-License-Identifier: Apache-2.0
// Makes C-core credentials of a client's files. A server decrypts before C-core, so that the bytes of clients can be
// checked (lib/base/tls_server.h, tls_stream.h, socket.h). Private to net/.
#pragma once

#include <grpc/grpc_security.h>

#include "lib/net/rpc.h"

// Reads and checks the files; a client needs the authorities.
enum status net_tls_client_credentials(const struct rpc_tls *files, grpc_channel_credentials **credentials_p);
