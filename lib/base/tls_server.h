// SPDX-License-Identifier: Apache-2.0
// The TLS of a port: its certificate, key and authorities of clients, which are read again when their files change. Any
// thread.
#pragma once

#include <openssl/ssl.h>
#include <stdint.h>

#include "lib/base/status.h"

struct tls_server;

struct tls_server_options {
    const char *cert, *key; // paths of PEM files
    const char *client_ca;  // authorities that sign the clients' certificates; NULL: clients need no certificate
    const char *protocol;   // the only one that is chosen from a client's list (ALPN), after its length: "\x02h2"; a
                            // constant, which connections use as long as they live
    int64_t check_us;       // least time between two looks at the files; 0: a look at each connection
};

// Reads, checks and logs the files. Returns NOT_FOUND or INVALID; the error message names the file.
enum status tls_server_open(const struct tls_server_options *options, struct tls_server **server_p);
// Returns a connection that awaits a client's handshake, after reading changed files. The caller SSL_free()s it. NULL:
// no memory.
SSL *tls_server_accept(struct tls_server *s);
// Reads changed files now, instead of at the next connection. Logs the changes, and files that cannot be used, once
// for each bad version; then the last certificate stays in use and the result is the failure. Files that could not be
// used are tried again.
enum status tls_server_reload(struct tls_server *s);
void tls_server_free(struct tls_server *s); // NULL is allowed
