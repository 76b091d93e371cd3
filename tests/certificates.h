// SPDX-License-Identifier: Apache-2.0
// Certificates that a test makes for itself: an authority, and certificates that it signs, as PEM files.
#pragma once

#include <check.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

struct identity {
    EVP_PKEY *key;
    X509 *cert;
};

static inline void certificate_extend(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    ck_assert_ptr_nonnull(extension);
    X509_add_ext(cert, extension, -1);
    X509_EXTENSION_free(extension);
}

static inline void identity_sign(struct identity *id, const struct identity *by)
{
    ck_assert_int_gt(X509_sign(id->cert, by ? by->key : id->key, EVP_sha256()), 0);
}

// Makes a certificate for `name` and 127.0.0.1, signed by `by`, or an authority if `by` is NULL.
static inline struct identity identity_create(const char *name, const struct identity *by)
{
    static long serial = 1;
    struct identity id = {.key = EVP_EC_gen("P-256"), .cert = X509_new()};
    X509_set_version(id.cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(id.cert), serial++);
    X509_gmtime_adj(X509_getm_notBefore(id.cert), -60);
    X509_gmtime_adj(X509_getm_notAfter(id.cert), 3600);
    X509_set_pubkey(id.cert, id.key);
    X509_NAME *subject = X509_get_subject_name(id.cert);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(id.cert, by ? X509_get_subject_name(by->cert) : subject);
    certificate_extend(id.cert, by ? by->cert : id.cert, NID_basic_constraints, by ? "CA:FALSE" : "critical,CA:TRUE");
    if (by) certificate_extend(id.cert, by->cert, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    identity_sign(&id, by);
    return id;
}

// Makes a certificate like identity_create(), but one that expired a minute ago.
static inline struct identity identity_create_expired(const char *name, const struct identity *by)
{
    struct identity id = identity_create(name, by);
    X509_gmtime_adj(X509_getm_notBefore(id.cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(id.cert), -60);
    identity_sign(&id, by);
    return id;
}

static inline void identity_free(struct identity *id)
{
    EVP_PKEY_free(id->key);
    X509_free(id->cert);
}

// Writes the key. Replaces the file by renaming, as tools that renew certificates do. The key is not encrypted if
// `password` is NULL.
static inline void identity_write_key(const struct identity *id, const char *path, const char *password)
{
    char made[512];
    snprintf(made, sizeof made, "%s.new", path);
    FILE *file = fopen(made, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fchmod(fileno(file), 0600), 0);
    PEM_write_PrivateKey(file, id->key, password ? EVP_aes_256_cbc() : NULL, (const unsigned char *)password,
                         password ? (int)strlen(password) : 0, NULL, NULL);
    fclose(file);
    ck_assert_int_eq(rename(made, path), 0);
}

static inline void identity_write_cert(const struct identity *id, const char *path)
{
    char made[512];
    snprintf(made, sizeof made, "%s.new", path);
    FILE *file = fopen(made, "w");
    ck_assert_ptr_nonnull(file);
    PEM_write_X509(file, id->cert);
    fclose(file);
    ck_assert_int_eq(rename(made, path), 0);
}
