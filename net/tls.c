// SPDX-License-Identifier: Apache-2.0
// Certificates: reading, checking and reloading.
//
// C-core calls tls_fetch() when a port is added and at the start of each handshake, one call at a time. Changed files
// are read then, or when net_tls_refresh() is called, and checked here, because C-core would only log, at each
// handshake, that it cannot use them.
#include "net/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/secret_file.h"

enum { N_FILES = 3 };

struct pem { // contents of the files; NULL: no such file
    char *cert, *key, *ca;
};

struct label {            // of a certificate, for logs
    char expires[16];     // its last day, such as 2027-02-20; empty: there is no certificate
    uint64_t fingerprint; // the first bytes of its SHA-256
};

struct net_tls {
    char *cert, *key, *ca; // paths; ca: NULL: clients need no certificate
    pthread_mutex_t mutex; // guards what follows
    struct file_stamp stamps[N_FILES];
    struct pem fresh; // read, and not fetched by C-core yet; cert NULL: none
    struct label label;
};

// --- checking

// An encrypted key would otherwise be asked for on the terminal.
static int no_password(char *buffer, int size, int writing, void *user)
{
    return -1;
}

static X509 *certificate_parse(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *certificate = PEM_read_bio_X509(bio, NULL, no_password, NULL);
    BIO_free(bio);
    return certificate;
}

static EVP_PKEY *key_parse(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL);
    BIO_free(bio);
    return key;
}

static enum status pair_check(const struct rpc_tls *files, const struct pem *pem)
{
    X509 *certificate = certificate_parse(pem->cert);
    EVP_PKEY *key = key_parse(pem->key);
    enum status status = STATUS_OK;
    if (!certificate)
        status = status_fail(STATUS_INVALID, "%s: must have a certificate in PEM", files->cert);
    else if (!key)
        status = status_fail(STATUS_INVALID, "%s: must have a private key in PEM, without a password", files->key);
    else if (!X509_check_private_key(certificate, key))
        status = status_fail(STATUS_INVALID, "%s is not the private key of %s", files->key, files->cert);
    else if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0)
        status = status_fail(STATUS_INVALID, "%s: the certificate has expired", files->cert);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return status;
}

// Of a checked certificate.
static struct label label_of(const char *pem)
{
    X509 *certificate = certificate_parse(pem);
    struct label label = {.fingerprint = 0};
    struct tm time = {0};
    unsigned char digest[EVP_MAX_MD_SIZE];
    ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &time);
    strftime(label.expires, sizeof label.expires, "%Y-%m-%d", &time);
    if (X509_digest(certificate, EVP_sha256(), digest, NULL))
        for (int i = 0; i < 8; i++)
            label.fingerprint = label.fingerprint << 8 | digest[i];
    X509_free(certificate);
    return label;
}

static enum status authorities_check(const char *path, const char *pem)
{
    X509 *certificate = certificate_parse(pem);
    X509_free(certificate);
    return certificate ? STATUS_OK : status_fail(STATUS_INVALID, "%s: must have certificates in PEM", path);
}

static enum status pem_check(const struct rpc_tls *files, const struct pem *pem)
{
    enum status status = pem->cert ? pair_check(files, pem) : STATUS_OK;
    if (status == STATUS_OK && pem->ca) status = authorities_check(files->ca, pem->ca);
    ERR_clear_error(); // C-core reads the same queue of errors
    return status;
}

// --- reading

static void pem_free(struct pem *pem)
{
    if (pem->key) explicit_bzero(pem->key, strlen(pem->key));
    free(pem->cert);
    free(pem->key);
    free(pem->ca);
    *pem = (struct pem){0};
}

static enum status pem_read(const struct rpc_tls *files, struct pem *pem)
{
    *pem = (struct pem){0};
    enum status status = STATUS_OK;
    if (files->cert) status = file_read_small(files->cert, false, &pem->cert);
    if (status == STATUS_OK && files->key) status = file_read_small(files->key, true, &pem->key);
    if (status == STATUS_OK && files->ca) status = file_read_small(files->ca, false, &pem->ca);
    if (status == STATUS_OK) status = pem_check(files, pem);
    if (status != STATUS_OK) pem_free(pem);
    return status;
}

static grpc_ssl_pem_key_cert_pair pem_pair(const struct pem *pem)
{
    return (grpc_ssl_pem_key_cert_pair){.private_key = pem->key, .cert_chain = pem->cert};
}

// --- servers

static bool tls_files_changed(struct net_tls *tls)
{
    const char *const paths[N_FILES] = {tls->cert, tls->key, tls->ca};
    bool changed = false;
    for (int i = 0; i < N_FILES; i++)
        changed |= paths[i] && file_stamp_update(&tls->stamps[i], paths[i]);
    return changed;
}

static void log_loaded(const struct net_tls *tls, const struct label *old)
{
    log_event(LOG_INFO, "certificate_loaded", LOG_FIELD("cert", tls->cert),
              LOG_FIELD("expires", (const char *)tls->label.expires),
              LOG_FINGERPRINT("fingerprint", tls->label.fingerprint), LOG_FIELD("client_ca", tls->ca ? tls->ca : ""),
              LOG_FIELD("old_expires", (const char *)old->expires),
              LOG_FINGERPRINT("old_fingerprint", old->fingerprint));
}

// With the mutex held. Files that cannot be used are read again once they have changed: each version of them is logged
// once.
static void tls_read_changed(struct net_tls *tls)
{
    if (!tls_files_changed(tls)) return;
    const struct rpc_tls files = {tls->cert, tls->key, tls->ca};
    struct pem pem;
    if (pem_read(&files, &pem) != STATUS_OK) {
        log_event(LOG_ERROR, "certificate_refused", LOG_REASON,
                  LOG_FIELD("effect", "the last certificate stays in use"));
        return;
    }
    const struct label old = tls->label;
    pem_free(&tls->fresh);
    tls->fresh = pem;
    tls->label = label_of(pem.cert);
    log_loaded(tls, &old);
}

void net_tls_refresh(struct net_tls *tls)
{
    pthread_mutex_lock(&tls->mutex);
    tls_read_changed(tls);
    pthread_mutex_unlock(&tls->mutex);
}

static grpc_ssl_certificate_config_reload_status tls_fetch(void *user, grpc_ssl_server_certificate_config **config_p)
{
    struct net_tls *tls = user;
    pthread_mutex_lock(&tls->mutex);
    tls_read_changed(tls);
    struct pem pem = tls->fresh;
    tls->fresh = (struct pem){0};
    pthread_mutex_unlock(&tls->mutex);
    if (!pem.cert) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    grpc_ssl_pem_key_cert_pair pair = pem_pair(&pem);
    // C-core insists on authorities even if it asks clients for no certificate.
    *config_p = grpc_ssl_server_certificate_config_create(pem.ca ? pem.ca : pem.cert, &pair, 1);
    pem_free(&pem);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

enum status net_tls_open_server(const struct rpc_tls *files, struct net_tls **tls_p)
{
    struct pem pem;
    if (!files->cert || !files->key) return status_fail(STATUS_INVALID, "TLS needs a certificate and its private key");
    TRY(pem_read(files, &pem)); // here, because C-core does not return why it cannot use them
    pem_free(&pem);
    struct net_tls *tls = mem_alloc(sizeof *tls);
    tls->cert = mem_string(files->cert);
    tls->key = mem_string(files->key);
    tls->ca = files->ca ? mem_string(files->ca) : NULL;
    pthread_mutex_init(&tls->mutex, NULL);
    *tls_p = tls;
    return STATUS_OK;
}

grpc_server_credentials *net_tls_server_credentials(struct net_tls *tls)
{
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            tls->ca ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                    : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            tls_fetch, tls));
}

void net_tls_free(struct net_tls *tls)
{
    if (!tls) return;
    pem_free(&tls->fresh);
    pthread_mutex_destroy(&tls->mutex);
    free(tls->cert);
    free(tls->key);
    free(tls->ca);
    free(tls);
}

// --- clients

enum status net_tls_client_credentials(const struct rpc_tls *files, grpc_channel_credentials **credentials_p)
{
    struct pem pem;
    if (!files->ca)
        return status_fail(STATUS_INVALID, "TLS needs the authorities that signed the server's certificate");
    if (!files->cert != !files->key)
        return status_fail(STATUS_INVALID, "a client's certificate and its private key must be given together");
    TRY(pem_read(files, &pem));
    grpc_ssl_pem_key_cert_pair pair = pem_pair(&pem);
    *credentials_p = grpc_ssl_credentials_create_ex(pem.ca, pem.cert ? &pair : NULL, NULL, NULL);
    pem_free(&pem);
    return STATUS_OK;
}
