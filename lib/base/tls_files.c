// SPDX-License-Identifier: Apache-2.0
#include "lib/base/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/secret_file.h"

int tls_no_password(char *buffer, int size, int writing, void *user)
{
    return -1;
}

X509 *tls_certificate_parse(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *certificate = PEM_read_bio_X509(bio, NULL, tls_no_password, NULL);
    BIO_free(bio);
    return certificate;
}

static EVP_PKEY *key_parse(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, tls_no_password, NULL);
    BIO_free(bio);
    return key;
}

static enum status pair_check(const char *cert, const char *key, const struct tls_pem *pem)
{
    X509 *certificate = tls_certificate_parse(pem->cert);
    EVP_PKEY *private_key = key_parse(pem->key);
    enum status status = STATUS_OK;
    if (!certificate)
        status = status_fail(STATUS_INVALID, "%s: must have a certificate in PEM", cert);
    else if (!private_key)
        status = status_fail(STATUS_INVALID, "%s: must have a private key in PEM, without a password", key);
    else if (!X509_check_private_key(certificate, private_key))
        status = status_fail(STATUS_INVALID, "%s is not the private key of %s", key, cert);
    else if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0)
        status = status_fail(STATUS_INVALID, "%s: the certificate has expired", cert);
    X509_free(certificate);
    EVP_PKEY_free(private_key);
    return status;
}

static enum status authorities_check(const char *path, const char *pem)
{
    X509 *certificate = tls_certificate_parse(pem);
    X509_free(certificate);
    return certificate ? STATUS_OK : status_fail(STATUS_INVALID, "%s: must have certificates in PEM", path);
}

enum status tls_pem_read(const char *cert, const char *key, const char *ca, struct tls_pem *pem)
{
    *pem = (struct tls_pem){0};
    enum status status = STATUS_OK;
    if (cert) status = file_read_small(cert, false, &pem->cert);
    if (status == STATUS_OK && key) status = file_read_small(key, true, &pem->key);
    if (status == STATUS_OK && ca) status = file_read_small(ca, false, &pem->ca);
    if (status == STATUS_OK && cert) status = pair_check(cert, key, pem);
    if (status == STATUS_OK && ca) status = authorities_check(ca, pem->ca);
    ERR_clear_error(); // the caller and gRPC's C-core read the same queue of errors
    if (status != STATUS_OK) tls_pem_free(pem);
    return status;
}

void tls_pem_free(struct tls_pem *pem)
{
    if (pem->key) explicit_bzero(pem->key, strlen(pem->key));
    free(pem->cert);
    free(pem->key);
    free(pem->ca);
    *pem = (struct tls_pem){0};
}
