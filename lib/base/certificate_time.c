// SPDX-License-Identifier: Apache-2.0
#include "lib/base/certificate_time.h"

#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <time.h>

#include "lib/base/tls_files.h"

// Returns the Unix time, or 0 for a malformed time.
static int64_t unix_time(const ASN1_TIME *text)
{
    struct tm parts;
    return ASN1_TIME_to_tm(text, &parts) ? (int64_t)timegm(&parts) : 0;
}

// Returns the first expiry of all certificates in the text: a chain is refused once one of its certificates expires.
static int64_t first_expiry(const char *pem)
{
    int64_t first_s = 0;
    X509 *certificate;
    BIO *bio = BIO_new_mem_buf(pem, -1);
    while ((certificate = PEM_read_bio_X509(bio, NULL, tls_no_password, NULL))) {
        int64_t expires_s = unix_time(X509_get0_notAfter(certificate));
        if (expires_s && (!first_s || expires_s < first_s)) first_s = expires_s;
        X509_free(certificate);
    }
    BIO_free(bio);
    ERR_clear_error(); // gRPC's C-core reads the same queue of errors
    return first_s;
}

void certificate_time_update(struct certificate_time *time)
{
    char *pem;
    if (!file_stamp_update(&time->stamp, time->path)) return;
    if (file_read_small(time->path, false, &pem) != STATUS_OK) return;
    int64_t expires_s = first_expiry(pem);
    if (expires_s) time->expires_s = expires_s;
    free(pem);
}
