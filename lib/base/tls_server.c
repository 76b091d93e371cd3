// SPDX-License-Identifier: Apache-2.0
#include "lib/base/tls_server.h"

#include <openssl/err.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/secret_file.h"
#include "lib/base/tls_files.h"

enum { N_FILES = 3 };

struct label {            // describes a certificate in logs
    char expires[16];     // its last day, such as 2027-02-20; empty: there is no certificate
    uint64_t fingerprint; // the first bytes of its SHA-256
};

struct tls_server {
    char *cert, *key, *client_ca; // paths; client_ca may be NULL: clients need no certificate
    const char *protocol;         // see struct tls_server_options
    int64_t interval_us;
    pthread_mutex_t mutex;             // guards what follows
    struct file_stamp stamps[N_FILES]; // of the files that were read last, usable or not
    bool refused;                      // these files cannot be used
    int64_t check_us;                  // time of the next look at the files
    SSL_CTX *context;                  // from the last usable version of the files
    struct label label;
};

// --- a context from the files

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

static int choose_protocol(SSL *ssl, const unsigned char **chosen, unsigned char *chosen_size,
                           const unsigned char *offered, unsigned int offered_size, void *protocol)
{
    const unsigned char *ours = protocol;
    unsigned char *match;
    int found = SSL_select_next_proto(&match, chosen_size, ours, ours[0] + 1u, offered, offered_size);
    *chosen = match;
    return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

static void context_set_options(SSL_CTX *context, const char *protocol)
{
    static const unsigned char name[] = "forepack";
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                     SSL_OP_IGNORE_UNEXPECTED_EOF);
    // Idle connections release their buffers, 33 KiB each.
    SSL_CTX_set_mode(context,
                     SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF); // clients resume sessions with their tickets
    SSL_CTX_set_session_id_context(context, name, sizeof name - 1);
    SSL_CTX_set_num_tickets(context, 1);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, (void *)protocol);
    SSL_CTX_set_default_passwd_cb(context, tls_no_password);
}

static enum status file_refuse(const char *path)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return status_fail(STATUS_INVALID, "%s: OpenSSL cannot use it: %s", path, reason ? reason : "no memory");
}

static enum status context_set_authorities(SSL_CTX *context, const char *path)
{
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(path);
    if (!names || SSL_CTX_load_verify_locations(context, path, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return file_refuse(path);
    }
    SSL_CTX_set_client_CA_list(context, names); // takes ownership
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    // A resumed session would not show the client's certificate again, even if the certificate has expired.
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    SSL_CTX_set_num_tickets(context, 0);
    return STATUS_OK;
}

static enum status context_set_files(SSL_CTX *context, const struct tls_server *s)
{
    if (SSL_CTX_use_certificate_chain_file(context, s->cert) != 1) return file_refuse(s->cert);
    if (SSL_CTX_use_PrivateKey_file(context, s->key, SSL_FILETYPE_PEM) != 1) return file_refuse(s->key);
    return s->client_ca ? context_set_authorities(context, s->client_ca) : STATUS_OK;
}

// Reads the files. On failure nothing changes.
static enum status context_load(struct tls_server *s)
{
    struct tls_pem pem;
    TRY(tls_pem_read(s->cert, s->key, s->client_ca, &pem)); // OpenSSL would accept a certificate that has expired
    const struct label label = label_of(pem.cert);
    tls_pem_free(&pem);
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (!context) return status_fail(STATUS_INTERNAL, "OpenSSL cannot make a TLS context");
    context_set_options(context, s->protocol);
    enum status status = context_set_files(context, s);
    if (status != STATUS_OK) {
        SSL_CTX_free(context);
        return status;
    }
    SSL_CTX_free(s->context); // open connections have their own reference
    s->context = context;
    s->label = label;
    return STATUS_OK;
}

// --- changed files

static bool files_changed(struct tls_server *s)
{
    const char *const paths[N_FILES] = {s->cert, s->key, s->client_ca};
    bool changed = false;
    for (int i = 0; i < N_FILES; i++)
        changed |= paths[i] && file_stamp_update(&s->stamps[i], paths[i]);
    return changed;
}

static void log_loaded(const struct tls_server *s, const struct label *old)
{
    log_event(
        LOG_INFO, "certificate_loaded", LOG_FIELD("cert", s->cert),
        LOG_FIELD("expires", (const char *)s->label.expires), LOG_FINGERPRINT("fingerprint", s->label.fingerprint),
        LOG_FIELD("client_ca", s->client_ca ? s->client_ca : ""), LOG_FIELD("old_expires", (const char *)old->expires),
        LOG_FINGERPRINT("old_fingerprint", old->fingerprint));
}

// Reads the files if they have changed. The caller holds the mutex.
static enum status read_changed(struct tls_server *s)
{
    s->check_us = clock_now_us() + s->interval_us;
    if (!files_changed(s)) return STATUS_OK;
    const struct label old = s->label;
    enum status status = context_load(s);
    s->refused = status != STATUS_OK;
    if (status == STATUS_OK)
        log_loaded(s, &old);
    else
        log_event(LOG_ERROR, "certificate_refused", LOG_REASON,
                  LOG_FIELD("effect", "the last certificate stays in use"));
    return status;
}

enum status tls_server_reload(struct tls_server *s)
{
    pthread_mutex_lock(&s->mutex);
    if (s->refused) memset(s->stamps, 0, sizeof s->stamps); // reads them again
    enum status status = read_changed(s);
    pthread_mutex_unlock(&s->mutex);
    return status;
}

SSL *tls_server_accept(struct tls_server *s)
{
    pthread_mutex_lock(&s->mutex);
    if (clock_now_us() >= s->check_us) read_changed(s);
    SSL *ssl = SSL_new(s->context);
    pthread_mutex_unlock(&s->mutex);
    if (ssl) SSL_set_accept_state(ssl);
    return ssl;
}

enum status tls_server_open(const struct tls_server_options *o, struct tls_server **server_p)
{
    if (!o->cert || !o->key) return status_fail(STATUS_INVALID, "TLS needs a certificate and its private key");
    struct tls_server *s = mem_alloc(sizeof *s);
    s->cert = mem_string(o->cert);
    s->key = mem_string(o->key);
    s->client_ca = mem_string(o->client_ca);
    s->protocol = o->protocol;
    s->interval_us = o->check_us;
    s->check_us = clock_now_us() + o->check_us;
    pthread_mutex_init(&s->mutex, NULL);
    files_changed(s);
    enum status status = context_load(s);
    if (status == STATUS_OK) {
        log_loaded(s, &(struct label){.fingerprint = 0});
        *server_p = s;
    } else {
        tls_server_free(s);
    }
    return status;
}

void tls_server_free(struct tls_server *s)
{
    if (!s) return;
    SSL_CTX_free(s->context);
    pthread_mutex_destroy(&s->mutex);
    free(s->cert);
    free(s->key);
    free(s->client_ca);
    free(s);
}
