// SPDX-License-Identifier: Apache-2.0
// Reads certificates, keys and authorities from PEM files, for gRPC and HTTP. Any thread may call.
#pragma once

#include <openssl/ssl.h>

#include "lib/base/status.h"

struct tls_pem { // contents of the files; NULL if the path was NULL
    char *cert, *key, *ca;
};

// Reads and checks the files. A path may be NULL, but `cert` and `key` only together. Refuses certificates that have
// expired, and keys that have a password, belong to another certificate, or can be read by every user. Returns
// NOT_FOUND or INVALID; the error message names the file. On failure `pem` is empty.
enum status tls_pem_read(const char *cert, const char *key, const char *ca, struct tls_pem *pem);
void tls_pem_free(struct tls_pem *pem);
// Returns the first certificate of a text, or NULL if there is none. The caller frees it.
X509 *tls_certificate_parse(const char *pem);
// A pem_password_cb that refuses keys with a password: OpenSSL's own would ask for it on the terminal.
int tls_no_password(char *buffer, int size, int writing, void *user);
