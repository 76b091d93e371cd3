// SPDX-License-Identifier: Apache-2.0
// Sets up the server's TLS: certificate, key and client CA. Reads them again when their files change.
#include "lib/http/internal.h"

#include <openssl/err.h>
#include <pthread.h>
#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/secret_file.h"
#include "lib/base/tls_files.h"

enum { N_FILES = 3 };

struct http_tls {
    char *file[N_FILES]; // certificate, key, client CA; owned, the last may be NULL
    BIO_METHOD *bio_method;
    pthread_mutex_t lock; // guards the members below
    SSL_CTX *context;
    struct file_stamp stamps[N_FILES]; // of the files that were read last, usable or not
    int64_t check_us;                  // time of the next check of the files
    int64_t interval_us;
};

// --- a context from the files

static enum status tls_fail(const char *what, const char *file)
{
    unsigned long error = ERR_peek_last_error();
    const char *reason = error ? ERR_reason_error_string(error) : NULL;
    ERR_clear_error();
    return status_fail(STATUS_INVALID, "%s %s: %s", what, file, reason ? reason : "cannot be used");
}

// Refuses a key with a password. OpenSSL's default would ask for the password on the terminal.
static int no_password(char *text, int size, int writing, void *user)
{
    return -1;
}

static int choose_protocol(SSL *ssl, const unsigned char **chosen, unsigned char *chosen_size,
                           const unsigned char *offered, unsigned int offered_size, void *user)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *match;
    int found = SSL_select_next_proto(&match, chosen_size, ours, sizeof ours - 1, offered, offered_size);
    *chosen = match;
    return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

static enum status set_files(SSL_CTX *context, char *const file[N_FILES])
{
    if (SSL_CTX_use_certificate_chain_file(context, file[0]) != 1) return tls_fail("TLS certificate", file[0]);
    if (SSL_CTX_use_PrivateKey_file(context, file[1], SSL_FILETYPE_PEM) != 1) return tls_fail("TLS key", file[1]);
    if (SSL_CTX_check_private_key(context) != 1) return tls_fail("TLS key", file[1]);
    if (!file[2]) return STATUS_OK;
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(file[2]);
    if (!names || SSL_CTX_load_verify_locations(context, file[2], NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return tls_fail("TLS client CA", file[2]);
    }
    SSL_CTX_set_client_CA_list(context, names); // takes ownership
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    // A resumed session would not show the client's certificate again, even if the certificate has expired.
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    SSL_CTX_set_num_tickets(context, 0);
    return STATUS_OK;
}

static void set_options(SSL_CTX *context)
{
    tls_server_options_set(context);
    SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY); // see read_input() in connection.c
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    SSL_CTX_set_default_passwd_cb(context, no_password);
}

static enum status make_context(char *const file[N_FILES], SSL_CTX **context_p)
{
    struct tls_pem pem;
    TRY(tls_pem_read(file[0], file[1], file[2], &pem)); // OpenSSL would accept a certificate that has expired
    tls_pem_free(&pem);
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (!context) return status_fail(STATUS_INTERNAL, "OpenSSL cannot make a TLS context");
    set_options(context);
    enum status status = set_files(context, file);
    if (status == STATUS_OK)
        *context_p = context;
    else
        SSL_CTX_free(context);
    return status;
}

// --- reading changed files

static bool files_changed(struct http_tls *tls)
{
    bool changed = false;
    for (int i = 0; i < N_FILES; i++)
        changed |= tls->file[i] && file_stamp_update(&tls->stamps[i], tls->file[i]);
    return changed;
}

// Reads the files again if they have changed. The caller holds the lock.
static void reload_changed(struct http_tls *tls)
{
    tls->check_us = clock_now_us() + tls->interval_us;
    if (!files_changed(tls)) return;
    SSL_CTX *context;
    if (make_context(tls->file, &context) != STATUS_OK) {
        log_event(LOG_ERROR, "certificate_refused", LOG_REASON,
                  LOG_FIELD("effect", "the last certificate stays in use"));
        return;
    }
    SSL_CTX_free(tls->context); // open connections have their own reference
    tls->context = context;
    log_event(LOG_INFO, "certificate_loaded", LOG_FIELD("cert", tls->file[0]));
}

SSL *http_tls_accept(struct http_tls *tls, struct connection *c)
{
    pthread_mutex_lock(&tls->lock);
    if (clock_now_us() >= tls->check_us) reload_changed(tls);
    SSL *ssl = SSL_new(tls->context);
    pthread_mutex_unlock(&tls->lock);
    if (!ssl) return NULL;
    SSL_set_accept_state(ssl);
    if (tls_bio_attach(ssl, tls->bio_method, c)) return ssl;
    SSL_free(ssl);
    return NULL;
}

void http_tls_reload(struct http_tls *tls)
{
    pthread_mutex_lock(&tls->lock);
    reload_changed(tls);
    pthread_mutex_unlock(&tls->lock);
}

enum status http_tls_open(const struct http_tls_files *files, int64_t check_ms, struct http_tls **tls_p)
{
    struct http_tls *tls = mem_alloc(sizeof *tls);
    tls->interval_us = 1000 * check_ms;
    pthread_mutex_init(&tls->lock, NULL);
    tls->file[0] = mem_string(files->cert);
    tls->file[1] = mem_string(files->key);
    tls->file[2] = mem_string(files->client_ca);
    files_changed(tls);
    tls->check_us = clock_now_us() + tls->interval_us;
    tls->bio_method = tls_bio_method_create();
    enum status status = tls->bio_method ? make_context(tls->file, &tls->context)
                                         : status_fail(STATUS_INTERNAL, "OpenSSL cannot make a BIO");
    if (status == STATUS_OK)
        *tls_p = tls;
    else
        http_tls_close(tls);
    return status;
}

void http_tls_close(struct http_tls *tls)
{
    if (!tls) return;
    SSL_CTX_free(tls->context);
    BIO_meth_free(tls->bio_method);
    pthread_mutex_destroy(&tls->lock);
    for (int i = 0; i < N_FILES; i++)
        free(tls->file[i]);
    free(tls);
}
