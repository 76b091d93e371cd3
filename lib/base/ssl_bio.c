// SPDX-License-Identifier: Apache-2.0
#include "lib/base/ssl_bio.h"

#include <errno.h>
#include <pthread.h>

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
    return command == BIO_CTRL_FLUSH; // nothing is buffered
}

static BIO_METHOD *method_create(const struct ssl_bio_kind *kind)
{
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "connection");
    if (!method) return NULL;
    BIO_meth_set_read(method, kind->read);
    BIO_meth_set_write(method, kind->write);
    BIO_meth_set_ctrl(method, bio_control);
    return method;
}

static BIO_METHOD *method_of(struct ssl_bio_kind *kind)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!kind->method) kind->method = method_create(kind);
    BIO_METHOD *method = kind->method;
    pthread_mutex_unlock(&lock);
    return method;
}

bool ssl_bio_attach(struct ssl_bio_kind *kind, SSL *ssl, void *connection)
{
    BIO_METHOD *method = method_of(kind);
    BIO *bio = method ? BIO_new(method) : NULL;
    if (!bio) return false;
    BIO_set_data(bio, connection);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio); // takes ownership
    return true;
}

int ssl_bio_result(BIO *bio, ssize_t n, int retry)
{
    BIO_clear_retry_flags(bio);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
    if (n == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    return (int)n;
}
