// SPDX-License-Identifier: Apache-2.0
// Certificates of C-core: reading and reloading.
//
// C-core calls tls_fetch() when a port is added and at the start of each handshake, one call at a time. Changed files
// are read then, or when net_tls_refresh() is called, and checked here, because C-core would only log, at each
// handshake, that it cannot use them.
#include "lib/net/tls.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/secret_file.h"
#include "lib/base/tls_files.h"

enum { N_FILES = 3 };

struct label {            // of a certificate, for logs
    char expires[16];     // its last day, such as 2027-02-20; empty: there is no certificate
    uint64_t fingerprint; // the first bytes of its SHA-256
};

struct net_tls {
    char *cert, *key, *ca; // paths; ca: NULL: clients need no certificate
    pthread_mutex_t mutex; // guards what follows
    struct file_stamp stamps[N_FILES];
    struct tls_pem fresh; // read, and not fetched by C-core yet; cert NULL: none
    struct label label;
};

// --- reading

// Of a checked certificate.
static struct label label_of(const char *pem)
{
    X509 *certificate = tls_certificate_parse(pem);
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

static enum status pem_read(const struct rpc_tls *files, struct tls_pem *pem)
{
    return tls_pem_read(files->cert, files->key, files->ca, pem);
}

static grpc_ssl_pem_key_cert_pair pem_pair(const struct tls_pem *pem)
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
    struct tls_pem pem;
    if (pem_read(&files, &pem) != STATUS_OK) {
        log_event(LOG_ERROR, "certificate_refused", LOG_REASON,
                  LOG_FIELD("effect", "the last certificate stays in use"));
        return;
    }
    const struct label old = tls->label;
    tls_pem_free(&tls->fresh);
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
    struct tls_pem pem = tls->fresh;
    tls->fresh = (struct tls_pem){0};
    pthread_mutex_unlock(&tls->mutex);
    if (!pem.cert) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    grpc_ssl_pem_key_cert_pair pair = pem_pair(&pem);
    // C-core insists on authorities even if it asks clients for no certificate.
    *config_p = grpc_ssl_server_certificate_config_create(pem.ca ? pem.ca : pem.cert, &pair, 1);
    tls_pem_free(&pem);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

enum status net_tls_open_server(const struct rpc_tls *files, struct net_tls **tls_p)
{
    struct tls_pem pem;
    if (!files->cert || !files->key) return status_fail(STATUS_INVALID, "TLS needs a certificate and its private key");
    TRY(pem_read(files, &pem)); // here, because C-core does not return why it cannot use them
    tls_pem_free(&pem);
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
    tls_pem_free(&tls->fresh);
    pthread_mutex_destroy(&tls->mutex);
    free(tls->cert);
    free(tls->key);
    free(tls->ca);
    free(tls);
}

// --- clients

enum status net_tls_client_credentials(const struct rpc_tls *files, grpc_channel_credentials **credentials_p)
{
    struct tls_pem pem;
    if (!files->ca)
        return status_fail(STATUS_INVALID, "TLS needs the authorities that signed the server's certificate");
    if (!files->cert != !files->key)
        return status_fail(STATUS_INVALID, "a client's certificate and its private key must be given together");
    TRY(pem_read(files, &pem));
    grpc_ssl_pem_key_cert_pair pair = pem_pair(&pem);
    *credentials_p = grpc_ssl_credentials_create_ex(pem.ca, pem.cert ? &pair : NULL, NULL, NULL);
    tls_pem_free(&pem);
    return STATUS_OK;
}
