// SPDX-License-Identifier: Apache-2.0
#include "lib/base/handshakes.h"

#include <errno.h>
#include <openssl/err.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/address_counts.h"
#include "lib/base/mem.h"
#include "lib/base/ssl_bio.h"
#include "lib/base/thread.h"

// Where all cores are busy, the threads of open connections run first.
enum { NICE = 10 };

struct handshake_list {
    struct handshake *oldest, *newest;
};

struct handshakes {
    struct handshakes_options options;
    pthread_t thread;
    int epoll_fd, close_fd; // close_fd: an eventfd that becomes readable at the end

    pthread_mutex_t mutex; // guards what follows, and every handshake
    pthread_cond_t rested; // the thread has left `running`
    bool closing;
    struct handshake *running; // OpenSSL runs this handshake without the mutex
    struct handshake_list waiting, begun, ended;
    int n_begun, n_queued;
    struct address_counts *addresses; // NULL: no bound
};

// --- the socket, as OpenSSL reads and writes it

static int fd_of(BIO *bio)
{
    return ((const struct handshake *)BIO_get_data(bio))->fd;
}

static int bio_read(BIO *bio, char *to, int size)
{
    return size <= 0 ? 0 : ssl_bio_result(bio, recv(fd_of(bio), to, (size_t)size, 0), BIO_FLAGS_READ);
}

static int bio_write(BIO *bio, const char *bytes, int size)
{
    return size <= 0 ? 0 : ssl_bio_result(bio, send(fd_of(bio), bytes, (size_t)size, MSG_NOSIGNAL), BIO_FLAGS_WRITE);
}

static struct ssl_bio_kind kind = {.read = bio_read, .write = bio_write};

// --- lists and events

static void list_add(struct handshake_list *list, struct handshake *x)
{
    x->list = list;
    x->older = list->newest;
    x->newer = NULL;
    *(x->older ? &x->older->newer : &list->oldest) = x;
    list->newest = x;
}

static void list_remove(struct handshake *x)
{
    *(x->older ? &x->older->newer : &x->list->oldest) = x->newer;
    *(x->newer ? &x->newer->older : &x->list->newest) = x->older;
    x->list = NULL;
}

static void watch(struct handshakes *h, struct handshake *x, int operation, uint32_t events)
{
    epoll_ctl(h->epoll_fd, operation, x->fd, &(struct epoll_event){.events = events, .data.ptr = x});
}

// --- one handshake; the caller holds the mutex

// Lets the oldest queued handshake of the address begin, as soon as its bytes raise an event.
static void queue_release(struct handshakes *h, const struct in6_addr *address)
{
    for (struct handshake *x = h->waiting.oldest; x && h->n_queued; x = x->newer) {
        if (!x->is_queued || !address_counts_are_same(&x->address, address)) continue;
        x->is_queued = false;
        h->n_queued--;
        watch(h, x, EPOLL_CTL_MOD, EPOLLIN);
        return;
    }
}

// Removes the handshake from everything but memory.
static void leave(struct handshakes *h, struct handshake *x)
{
    watch(h, x, EPOLL_CTL_DEL, 0);
    list_remove(x);
    h->n_begun -= x->has_begun;
    h->n_queued -= x->is_queued;
    if (!x->is_counted) return;
    address_counts_remove(h->addresses, &x->address);
    queue_release(h, &x->address);
}

static void end(struct handshakes *h, struct handshake *x, enum handshake_result result)
{
    bool was_empty = !h->ended.oldest;
    leave(h, x);
    x->has_begun = x->is_queued = x->is_counted = false;
    x->result = result;
    if (result != HANDSHAKE_DONE) {
        SSL_free(x->ssl);
        x->ssl = NULL;
    }
    list_add(&h->ended, x);
    if (was_empty) h->options.wake(h->options.owner);
}

// Returns false if the handshake cannot begin: the client has closed, or the address has a handshake in progress.
static bool begin(struct handshakes *h, struct handshake *x)
{
    char first;
    if (x->is_queued || recv(x->fd, &first, 1, MSG_PEEK) != 1) { // an event of a queued handshake is its client's end
        end(h, x, HANDSHAKE_FAILED);
        return false;
    }
    x->is_counted = x->is_limited && address_counts_add(h->addresses, &x->address);
    if (x->is_limited && !x->is_counted) {
        x->is_queued = true;
        h->n_queued++;
        watch(h, x, EPOLL_CTL_MOD, 0);
        return false;
    }
    if (h->n_begun == HANDSHAKES_MAX) end(h, h->begun.oldest, HANDSHAKE_CROWDED_OUT);
    x->has_begun = true;
    h->n_begun++;
    list_remove(x);
    list_add(&h->begun, x);
    return true;
}

// Runs OpenSSL without the mutex. Returns the error as SSL_get_error() does.
static int run(struct handshakes *h, struct handshake *x)
{
    int error = SSL_ERROR_SSL;
    h->running = x;
    pthread_mutex_unlock(&h->mutex);
    ERR_clear_error();
    if (!x->ssl) x->ssl = tls_server_accept(h->options.tls);
    if (x->ssl && (SSL_get_rbio(x->ssl) || ssl_bio_attach(&kind, x->ssl, x)))
        error = SSL_get_error(x->ssl, SSL_accept(x->ssl));
    x->error = ERR_peek_error();
    pthread_mutex_lock(&h->mutex);
    h->running = NULL;
    pthread_cond_signal(&h->rested);
    return error;
}

static void handle(struct handshakes *h, struct handshake *x)
{
    if (!x->has_begun && !begin(h, x)) return;
    switch (run(h, x)) {
    case SSL_ERROR_NONE: end(h, x, HANDSHAKE_DONE); break;
    case SSL_ERROR_WANT_READ: watch(h, x, EPOLL_CTL_MOD, EPOLLIN); break;
    case SSL_ERROR_WANT_WRITE: watch(h, x, EPOLL_CTL_MOD, EPOLLOUT); break;
    default: end(h, x, HANDSHAKE_FAILED); break;
    }
}

// --- the thread

// Waits without the mutex and takes an event under it. So the event's handshake still exists: handshake_cancel()
// removes the descriptor under the mutex.
static void *handshakes_run(void *argument)
{
    struct handshakes *h = argument;
    struct pollfd ready = {.fd = h->epoll_fd, .events = POLLIN};
    struct epoll_event event;
    setpriority(PRIO_PROCESS, 0, NICE); // Linux applies it to this thread alone
    pthread_mutex_lock(&h->mutex);
    while (!h->closing) {
        pthread_mutex_unlock(&h->mutex);
        poll(&ready, 1, -1);
        pthread_mutex_lock(&h->mutex);
        if (epoll_wait(h->epoll_fd, &event, 1, 0) == 1 && event.data.ptr) handle(h, event.data.ptr);
    }
    pthread_mutex_unlock(&h->mutex);
    return NULL;
}

// --- public

enum status handshakes_open(const struct handshakes_options *options, struct handshakes **handshakes_p)
{
    struct handshakes *h = mem_alloc(sizeof *h);
    struct epoll_event event = {.events = EPOLLIN};
    h->options = *options;
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->close_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (h->epoll_fd < 0 || h->close_fd < 0 || epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, h->close_fd, &event) != 0) {
        enum status status = status_fail(STATUS_INTERNAL, "cannot watch TLS handshakes: %s", strerror(errno));
        if (h->epoll_fd >= 0) close(h->epoll_fd);
        if (h->close_fd >= 0) close(h->close_fd);
        free(h);
        return status;
    }
    pthread_mutex_init(&h->mutex, NULL);
    pthread_cond_init(&h->rested, NULL);
    h->addresses = address_counts_open(options->one_per_address ? 1 : 0);
    thread_start(&h->thread, "handshakes", handshakes_run, h);
    *handshakes_p = h;
    return STATUS_OK;
}

void handshakes_close(struct handshakes *h)
{
    if (!h) return;
    pthread_mutex_lock(&h->mutex);
    h->closing = true;
    pthread_mutex_unlock(&h->mutex);
    (void)!write(h->close_fd, &(uint64_t){1}, sizeof(uint64_t));
    pthread_join(h->thread, NULL);
    close(h->epoll_fd);
    close(h->close_fd);
    address_counts_close(h->addresses);
    pthread_mutex_destroy(&h->mutex);
    pthread_cond_destroy(&h->rested);
    free(h);
}

void handshake_start(struct handshakes *h, struct handshake *x, int fd, const struct in6_addr *address)
{
    *x = (struct handshake){.fd = fd, .is_limited = address != NULL};
    if (address) x->address = *address;
    pthread_mutex_lock(&h->mutex);
    list_add(&h->waiting, x);
    watch(h, x, EPOLL_CTL_ADD, EPOLLIN);
    pthread_mutex_unlock(&h->mutex);
}

void handshake_cancel(struct handshakes *h, struct handshake *x)
{
    pthread_mutex_lock(&h->mutex);
    while (h->running == x)
        pthread_cond_wait(&h->rested, &h->mutex);
    if (x->list) {
        leave(h, x);
        SSL_free(x->ssl);
        x->ssl = NULL;
    }
    pthread_mutex_unlock(&h->mutex);
}

struct handshake *handshakes_take(struct handshakes *h)
{
    pthread_mutex_lock(&h->mutex);
    struct handshake *x = h->ended.oldest;
    if (x) list_remove(x);
    pthread_mutex_unlock(&h->mutex);
    return x;
}

const char *handshake_reason(const struct handshake *x)
{
    const char *reason = ERR_reason_error_string(x->error);
    return reason ? reason : "the client closed";
}
