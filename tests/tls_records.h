// SPDX-License-Identifier: Apache-2.0
// Records of a TLS 1.3 client, encrypted here, because OpenSSL sends handshake messages whole. OpenSSL performs the
// client's handshake; afterwards it must send nothing itself.
#pragma once

#include <check.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>
#include <string.h>
#include <unistd.h>

#define TLS_RECORDS_CIPHER "TLS_AES_128_GCM_SHA256"
enum { TLS_HANDSHAKE = 22, TLS_APPLICATION = 23, TLS_RECORD_BYTES = 1024 };
enum { TLS_SECRET_BYTES = 32, TLS_KEY_BYTES = 16, TLS_NONCE_BYTES = 12, TLS_TAG_BYTES = 16, TLS_HEAD_BYTES = 5 };

struct tls_records {
    unsigned char key[TLS_KEY_BYTES], nonce[TLS_NONCE_BYTES];
    unsigned char n_sent;
};

static unsigned char client_secret[TLS_SECRET_BYTES];

// Keeps the client's secret, as a callback for SSL_CTX_set_keylog_callback().
static inline void tls_records_keep_secret(const SSL *ssl, const char *line)
{
    static const char name[] = "CLIENT_TRAFFIC_SECRET_0 ";
    if (strncmp(line, name, sizeof name - 1) != 0) return;
    const char *hex = strrchr(line, ' ') + 1;
    for (int i = 0; i < TLS_SECRET_BYTES; i++)
        ck_assert_int_eq(sscanf(hex + 2 * i, "%2hhx", &client_secret[i]), 1);
}

static inline void tls_records_derive(const char *label, unsigned char *out, size_t size)
{
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "TLS13-KDF", NULL);
    EVP_KDF_CTX *context = EVP_KDF_CTX_new(kdf);
    int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, "SHA256", 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, client_secret, sizeof client_secret),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_PREFIX, "tls13 ", 6),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_LABEL, (void *)label, strlen(label)),
        OSSL_PARAM_construct_end(),
    };
    ck_assert_int_eq(EVP_KDF_derive(context, out, size, params), 1);
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
}

// Starts writing records. Call it after the handshake, in which tls_records_keep_secret() kept the secret.
static inline struct tls_records tls_records_open(void)
{
    struct tls_records r = {.n_sent = 0};
    tls_records_derive("key", r.key, sizeof r.key);
    tls_records_derive("iv", r.nonce, sizeof r.nonce);
    return r;
}

// Appends a record of `type` with these bytes to `out` and returns its size.
static inline size_t tls_records_add(struct tls_records *r, int type, const char *bytes, size_t size,
                                     unsigned char *out)
{
    unsigned char inner[TLS_RECORD_BYTES], nonce[TLS_NONCE_BYTES];
    size_t sealed = size + 1 + TLS_TAG_BYTES;
    ck_assert_uint_le(TLS_HEAD_BYTES + sealed, TLS_RECORD_BYTES);
    memcpy(inner, bytes, size);
    inner[size] = (unsigned char)type;
    const unsigned char head[TLS_HEAD_BYTES] = {TLS_APPLICATION, 3, 3, (unsigned char)(sealed >> 8),
                                                (unsigned char)sealed};
    memcpy(out, head, sizeof head);
    memcpy(nonce, r->nonce, sizeof nonce);
    nonce[TLS_NONCE_BYTES - 1] ^= r->n_sent++;
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    unsigned char *body = out + TLS_HEAD_BYTES;
    int n;
    ck_assert_int_eq(EVP_EncryptInit_ex(context, EVP_aes_128_gcm(), NULL, r->key, nonce), 1);
    ck_assert_int_eq(EVP_EncryptUpdate(context, NULL, &n, head, sizeof head), 1);
    ck_assert_int_eq(EVP_EncryptUpdate(context, body, &n, inner, (int)size + 1), 1);
    ck_assert_int_eq(EVP_EncryptFinal_ex(context, body + n, &n), 1);
    ck_assert_int_eq(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, TLS_TAG_BYTES, body + size + 1), 1);
    EVP_CIPHER_CTX_free(context);
    return TLS_HEAD_BYTES + sealed;
}
