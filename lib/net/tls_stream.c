// SPDX-License-Identifier: Apache-2.0
#include "lib/net/tls_stream.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "lib/base/mem.h"
#include "lib/base/ssl_bio.h"

enum {
    RECORD_BYTES = 16384, // the largest record
    RECORDS_MAX = 64,     // limit of records without data, such as new keys: OpenSSL would read them for ever
    SPIFFE_BYTES_MAX = 2048,
};

// --- the socket, as OpenSSL reads and writes it (OpenSSL's own socket functions raise SIGPIPE)

static struct net_tls_stream *stream_of(BIO *bio)
{
    return BIO_get_data(bio);
}

static int bio_read(BIO *bio, char *to, int size)
{
    struct net_tls_stream *s = stream_of(bio);
    if (size <= 0) return 0;
    if (s->paused) {
        errno = EAGAIN;
        return ssl_bio_result(bio, -1, BIO_FLAGS_READ);
    }
    ssize_t n = recv(s->fd, to, (size_t)size, 0);
    struct pollfd end = {.fd = s->fd, .events = POLLRDHUP}; // the end of the input that came with the last bytes
    s->drained = n > 0 && n < size && poll(&end, 1, 0) == 0;
    return ssl_bio_result(bio, n, BIO_FLAGS_READ);
}

static int bio_write(BIO *bio, const char *bytes, int size)
{
    return size <= 0
               ? 0
               : ssl_bio_result(bio, send(stream_of(bio)->fd, bytes, (size_t)size, MSG_NOSIGNAL), BIO_FLAGS_WRITE);
}

static struct ssl_bio_kind kind = {.read = bio_read, .write = bio_write};

// --- the client's name

// Returns the text of a name, or NULL if it is empty or contains zero bytes.
static char *asn1_text(const ASN1_STRING *string)
{
    unsigned char *utf8;
    int size = ASN1_STRING_to_UTF8(&utf8, string);
    if (size < 0) return NULL;
    char *text = size && strlen((const char *)utf8) == (size_t)size ? mem_string((const char *)utf8) : NULL;
    OPENSSL_free(utf8);
    return text;
}

// Returns true for a URI of the form spiffe://DOMAIN/PATH.
static bool is_spiffe_id(const char *uri)
{
    static const char scheme[] = "spiffe://";
    if (strncmp(uri, scheme, sizeof scheme - 1) != 0 || strlen(uri) > SPIFFE_BYTES_MAX) return false;
    const char *domain = uri + sizeof scheme - 1, *path = strchr(domain, '/');
    return path && path > domain && path[1];
}

// Returns the certificate's SPIFFE id, or NULL. A certificate with a SPIFFE id has no other URI.
static char *spiffe_id(X509 *certificate)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    char *id = NULL;
    int n_uris = 0;
    for (int i = 0; names && i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type == GEN_URI && n_uris++ == 0) id = asn1_text(name->d.uniformResourceIdentifier);
    }
    GENERAL_NAMES_free(names);
    if (id && n_uris == 1 && is_spiffe_id(id)) return id;
    free(id);
    return NULL;
}

static char *common_name(const X509 *certificate)
{
    const X509_NAME *subject = X509_get_subject_name(certificate);
    int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    return at < 0 ? NULL : asn1_text(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
}

char *net_tls_peer_name(const SSL *ssl)
{
    X509 *certificate = SSL_get_verify_result(ssl) == X509_V_OK ? SSL_get0_peer_certificate(ssl) : NULL;
    if (!certificate) return NULL;
    char *id = spiffe_id(certificate);
    return id ? id : common_name(certificate);
}

// --- bytes

// Counts records. After too many records without data it shuts the socket down, so that OpenSSL finds the end of input.
static void count_record(int writing, int version, int type, const void *bytes, size_t size, SSL *ssl, void *argument)
{
    struct net_tls_stream *stream = argument;
    if (writing || type != SSL3_RT_HEADER || ++stream->n_records <= RECORDS_MAX + 1) return; // one more may have data
    shutdown(stream->fd, SHUT_RDWR);
}

bool net_tls_stream_init(struct net_tls_stream *stream, SSL *ssl, int fd)
{
    if (ssl && !ssl_bio_attach(&kind, ssl, stream)) return false;
    *stream = (struct net_tls_stream){.ssl = ssl, .fd = fd};
    if (ssl) SSL_set_msg_callback(ssl, count_record);
    if (ssl) SSL_set_msg_callback_arg(ssl, stream);
    return true;
}

void net_tls_stream_read_ahead(struct net_tls_stream *stream)
{
    if (stream->ssl) SSL_set_read_ahead(stream->ssl, 1);
}

void net_tls_stream_fini(struct net_tls_stream *stream)
{
    SSL_free(stream->ssl);
}

static ssize_t stream_fail(const SSL *ssl, int result, int error)
{
    int found = SSL_get_error(ssl, result);
    errno = found == SSL_ERROR_WANT_READ || found == SSL_ERROR_WANT_WRITE ? EAGAIN : error;
    return -1;
}

bool net_tls_stream_is_drained(const struct net_tls_stream *stream)
{
    return stream->drained && !SSL_has_pending(stream->ssl);
}

ssize_t net_tls_stream_read(struct net_tls_stream *stream, const struct iovec *parts, size_t n_parts)
{
    size_t i = 0, n = 0;
    if (n_parts == 0) return 0; // C-core has filled all parts that it offered
    while (i + 1 < n_parts && parts[i].iov_len == 0)
        i++;
    ERR_clear_error();
    int result = SSL_read_ex(stream->ssl, parts[i].iov_base, parts[i].iov_len, &n);
    if (result == 1) {
        stream->n_records = 0;
        return (ssize_t)n;
    }
    if (SSL_get_error(stream->ssl, result) == SSL_ERROR_ZERO_RETURN) return 0;
    return stream_fail(stream->ssl, result, ECONNRESET);
}

// Returns the next bytes of the parts, at most one record. Copies them to `room` unless one part contains them.
static const uint8_t *record_gather(const struct iovec *parts, size_t n_parts, size_t at, uint8_t *room, size_t *size_p)
{
    size_t i = 0, n = 0;
    for (; i < n_parts && at >= parts[i].iov_len; i++)
        at -= parts[i].iov_len;
    if (i < n_parts && (parts[i].iov_len - at >= RECORD_BYTES || i + 1 == n_parts)) {
        *size_p = parts[i].iov_len - at < RECORD_BYTES ? parts[i].iov_len - at : RECORD_BYTES;
        return (const uint8_t *)parts[i].iov_base + at;
    }
    for (; i < n_parts && n < RECORD_BYTES; i++, at = 0) {
        size_t part = parts[i].iov_len - at < RECORD_BYTES - n ? parts[i].iov_len - at : RECORD_BYTES - n;
        memcpy(room + n, (const uint8_t *)parts[i].iov_base + at, part);
        n += part;
    }
    *size_p = n;
    return room;
}

// Writes the parts record by record. OpenSSL keeps a record that the socket does not take, and expects the same bytes
// again. C-core sends the same bytes again, and they are cut into the same records.

ssize_t net_tls_stream_write(struct net_tls_stream *stream, const struct iovec *parts, size_t n_parts)
{
    uint8_t room[RECORD_BYTES];
    size_t sent = 0, size, n;
    for (;;) {
        const uint8_t *bytes = record_gather(parts, n_parts, sent, room, &size);
        if (size == 0) return (ssize_t)sent;
        ERR_clear_error();
        int result = SSL_write_ex(stream->ssl, bytes, size, &n);
        stream->half_sent = result != 1;
        if (result != 1) return sent ? (ssize_t)sent : stream_fail(stream->ssl, result, EPIPE);
        sent += n;
    }
}

void net_tls_stream_write_last(struct net_tls_stream *stream, const void *bytes, size_t size)
{
    const struct iovec part = {(void *)bytes, size};
    if (!stream->half_sent) net_tls_stream_write(stream, &part, 1);
}
