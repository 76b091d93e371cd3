// SPDX-License-Identifier: Apache-2.0
// Certificates, keys and authorities in PEM files, for gRPC and HTTP. Any thread.
#pragma once

#include <openssl/x509.h>

#include "lib/base/status.h"

struct tls_pem { // contents of the files; NULL: no such file
    char *cert, *key, *ca;
};

// Reads and checks the files; a path may be NULL, `key` is given with `cert`. Refused are certificates that have
// expired, and keys that have a password, belong to another certificate, or can be read by every user.
// NOT_FOUND, INVALID; the sentence names the file. On failure `pem` is empty.
enum status tls_pem_read(const char *cert, const char *key, const char *ca, struct tls_pem *pem);
void tls_pem_free(struct tls_pem *pem);
// The first certificate of a text; the caller frees it. NULL: there is none.
X509 *tls_certificate_parse(const char *pem);
