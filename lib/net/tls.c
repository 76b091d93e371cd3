// SPDX-License-Identifier: Apache-2.0
// Reads and reloads certificates. Changed files are read at the next handshake, or when net_tls_refresh() is called.
#include "lib/net/tls.h"

#include <openssl/err.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/secret_file.h"
#include "lib/base/tls_files.h"
#include "lib/net/tls_stream.h"

enum { N_FILES = 3 };

struct label {            // describes a certificate in logs
    char expires[16];     // its last day, such as 2027-02-20; empty: there is no certificate
    uint64_t fingerprint; // the first bytes of its SHA-256
};

struct net_tls {
    char *cert, *key, *ca; // paths; ca may be NULL: clients need no certificate
    pthread_mutex_t mutex; // guards what follows
    struct file_stamp stamps[N_FILES];
    SSL_CTX *context; // from the last usable version of the files
    struct label label;
};

// --- reading

// Returns the label of a checked certificate.
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

// Chooses HTTP/2, which gRPC requires, from the client's list of protocols.
static int choose_protocol(SSL *ssl, const unsigned char **chosen, unsigned char *chosen_size,
                           const unsigned char *offered, unsigned int offered_size, void *user)
{
    static const unsigned char ours[] = "\x02h2";
    unsigned char *match;
    int found = SSL_select_next_proto(&match, chosen_size, ours, sizeof ours - 1, offered, offered_size);
    *chosen = match;
    return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

static void context_set_options(SSL_CTX *context)
{
    tls_server_options_set(context);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
}

static bool context_set_authorities(SSL_CTX *context, const char *path)
{
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(path);
    if (!names) return false;
    SSL_CTX_set_client_CA_list(context, names); // takes ownership
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    // A resumed session would not show the client's certificate again, even if the certificate has expired.
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    SSL_CTX_set_num_tickets(context, 0);
    return SSL_CTX_load_verify_locations(context, path, NULL) == 1;
}

// Sets the context's certificate and key. pem_read() has checked the files: the key belongs to the certificate and has
// no password.
static bool context_set_files(SSL_CTX *context, const struct net_tls *tls)
{
    return SSL_CTX_use_certificate_chain_file(context, tls->cert) == 1 &&
           SSL_CTX_use_PrivateKey_file(context, tls->key, SSL_FILETYPE_PEM) == 1 &&
           (!tls->ca || context_set_authorities(context, tls->ca));
}

// Reads the files. On failure nothing changes.
static enum status context_load(struct net_tls *tls)
{
    const struct rpc_tls files = {tls->cert, tls->key, tls->ca};
    struct tls_pem pem;
    TRY(pem_read(&files, &pem)); // OpenSSL would accept a certificate that has expired
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    enum status status = STATUS_OK;
    if (context) context_set_options(context);
    if (!context || !context_set_files(context, tls)) {
        const char *reason = ERR_reason_error_string(ERR_peek_last_error());
        status = status_fail(STATUS_INVALID, "%s: OpenSSL cannot use it: %s", tls->cert, reason ? reason : "no memory");
        SSL_CTX_free(context);
    } else {
        SSL_CTX_free(tls->context); // open connections have their own reference
        tls->context = context;
        tls->label = label_of(pem.cert);
    }
    tls_pem_free(&pem);
    return status;
}

// Reads the files if they have changed. The caller holds the mutex. Files that cannot be used are read again only after
// another change, so each bad version is logged once.
static void tls_read_changed(struct net_tls *tls)
{
    if (!tls_files_changed(tls)) return;
    const struct label old = tls->label;
    if (context_load(tls) == STATUS_OK)
        log_loaded(tls, &old);
    else
        log_event(LOG_ERROR, "certificate_refused", LOG_REASON,
                  LOG_FIELD("effect", "the last certificate stays in use"));
}

void net_tls_refresh(struct net_tls *tls)
{
    pthread_mutex_lock(&tls->mutex);
    tls_read_changed(tls);
    pthread_mutex_unlock(&tls->mutex);
}

SSL *net_tls_accept(struct net_tls *tls, int fd)
{
    pthread_mutex_lock(&tls->mutex);
    tls_read_changed(tls);
    SSL *ssl = SSL_new(tls->context);
    pthread_mutex_unlock(&tls->mutex);
    if (!ssl) return NULL;
    SSL_set_accept_state(ssl);
    if (net_tls_attach(ssl, fd)) return ssl;
    SSL_free(ssl);
    return NULL;
}

enum status net_tls_open_server(const struct rpc_tls *files, struct net_tls **tls_p)
{
    if (!files->cert || !files->key) return status_fail(STATUS_INVALID, "TLS needs a certificate and its private key");
    struct net_tls *tls = mem_alloc(sizeof *tls);
    tls->cert = mem_string(files->cert);
    tls->key = mem_string(files->key);
    tls->ca = files->ca ? mem_string(files->ca) : NULL;
    pthread_mutex_init(&tls->mutex, NULL);
    tls_files_changed(tls);
    enum status status = context_load(tls);
    if (status == STATUS_OK) {
        log_loaded(tls, &(struct label){.fingerprint = 0});
        *tls_p = tls;
    } else {
        net_tls_free(tls);
    }
    return status;
}

void net_tls_free(struct net_tls *tls)
{
    if (!tls) return;
    SSL_CTX_free(tls->context);
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
