// SPDX-License-Identifier: Apache-2.0
#include "bench/http_load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum { EVENTS = 256, READ_BYTES = 65536, CONNECTING_MAX = 256, STREAM_OPEN_US = 120000000 };

struct link {
    int fd; // -1: closed
    SSL *ssl;
    bool up;       // connected, including the TLS handshake
    int64_t got;   // bytes of the response so far
    int64_t whole; // size of the response; 0: its head has not come yet
    int64_t sent_us;
};

struct http_load {
    int port, n, epoll_fd;
    SSL_CTX *tls; // NULL: plain
    SSL_SESSION *session;
    bool resume;
    struct link *links; // [n]
    const char *request;
    char bytes[READ_BYTES + 1];
};

// --- one connection

static enum status load_fail(const char *what)
{
    return status_fail(STATUS_UNAVAILABLE, "the benchmark's client: %s: %s", what, strerror(errno));
}

static void link_close(struct link *l)
{
    if (l->fd < 0) return;
    if (l->ssl) {
        SSL_set_shutdown(l->ssl, SSL_SENT_SHUTDOWN); // otherwise OpenSSL does not resume the session
        SSL_free(l->ssl);
    }
    // A reset leaves no TIME_WAIT, so ports do not run out.
    const struct linger abort_now = {.l_onoff = 1};
    setsockopt(l->fd, SOL_SOCKET, SO_LINGER, &abort_now, sizeof abort_now);
    close(l->fd);
    *l = (struct link){.fd = -1};
}

static enum status link_open(struct http_load *load, struct link *l)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)load->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int one = 1;
    *l = (struct link){.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), .sent_us = clock_now_us()};
    if (l->fd < 0) return load_fail("socket");
    setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(l->fd, (struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS) return load_fail("connect");
    if (load->tls) {
        l->ssl = SSL_new(load->tls);
        SSL_set_fd(l->ssl, l->fd);
        SSL_set_connect_state(l->ssl);
        if (load->resume && load->session) SSL_set_session(l->ssl, load->session);
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = l};
    return epoll_ctl(load->epoll_fd, EPOLL_CTL_ADD, l->fd, &event) == 0 ? STATUS_OK : load_fail("epoll");
}

// Returns the number of bytes, 0 if there are none for now, or -1 if the connection has ended.
static int tls_read(SSL *ssl, char *bytes)
{
    int n = SSL_read(ssl, bytes, READ_BYTES);
    if (n > 0) return n;
    return SSL_get_error(ssl, n) == SSL_ERROR_WANT_READ ? 0 : -1;
}

static int link_read(struct link *l, char *bytes)
{
    if (l->ssl) return tls_read(l->ssl, bytes);
    ssize_t n = recv(l->fd, bytes, READ_BYTES, 0);
    if (n > 0) return (int)n;
    return n < 0 && errno == EAGAIN ? 0 : -1;
}

// Sends the request. Requests are small and their connection idle, so the socket accepts them whole.
static enum status link_send(struct http_load *load, struct link *l)
{
    int size = (int)strlen(load->request);
    int n =
        l->ssl ? SSL_write(l->ssl, load->request, size) : (int)send(l->fd, load->request, (size_t)size, MSG_NOSIGNAL);
    return n == size ? STATUS_OK : load_fail("send");
}

// Continues to connect. Sends the request once the connection is up.
static enum status link_rise(struct http_load *load, struct link *l, uint32_t events)
{
    bool connected = l->ssl || (events & EPOLLOUT);
    if (l->up || !connected) return STATUS_OK;
    if (l->ssl) {
        int n = SSL_do_handshake(l->ssl);
        if (n != 1) {
            int error = SSL_get_error(l->ssl, n);
            bool waits = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
            return waits ? STATUS_OK : load_fail("TLS handshake");
        }
    }
    l->up = true;
    return link_send(load, l);
}

// --- responses

static enum status response_check(const char *bytes)
{
    static const char ok[] = "HTTP/1.1 200 ";
    if (strncmp(bytes, ok, sizeof ok - 1) == 0) return STATUS_OK;
    return status_fail(STATUS_UNAVAILABLE, "the benchmark's client: the server answered %.*s",
                       (int)strcspn(bytes, "\r\n"), bytes);
}

static int64_t response_size(const char *bytes)
{
    const char *end = strstr(bytes, "\r\n\r\n"), *length = strstr(bytes, "Content-Length: ");
    return end && length && length < end ? end + 4 - bytes + atoll(length + 16) : 0;
}

// Reads the available bytes. *whole_p becomes true if these bytes end a response.
static enum status link_receive(struct http_load *load, struct link *l, bool *whole_p)
{
    int n;
    *whole_p = false;
    while (l->up && (n = link_read(l, load->bytes)) != 0) {
        if (n < 0) return load_fail("the server closed a connection");
        load->bytes[n] = '\0';
        if (l->got == 0) TRY(response_check(load->bytes));
        if (l->got == 0) l->whole = response_size(load->bytes);
        l->got += n;
        if (l->got < l->whole) continue;
        *whole_p = true;
        l->got = 0;
        return STATUS_OK;
    }
    return STATUS_OK;
}

struct loop {
    struct http_load *load;
    struct http_load_result *result;
    bool reconnect;
};

static enum status loop_event(const struct loop *loop, struct link *l, uint32_t events)
{
    bool whole;
    TRY(link_rise(loop->load, l, events));
    TRY(link_receive(loop->load, l, &whole));
    if (!whole) return STATUS_OK;
    int64_t now_us = clock_now_us();
    loop->result->done++;
    samples_add(&loop->result->ms, (double)(now_us - l->sent_us) / 1e3);
    if (loop->reconnect) {
        link_close(l);
        return link_open(loop->load, l);
    }
    l->sent_us = now_us;
    return link_send(loop->load, l);
}

static void close_links(struct http_load *load)
{
    for (int i = 0; i < load->n; i++)
        link_close(&load->links[i]);
}

static enum status run_loop(struct loop *loop, double seconds)
{
    struct http_load *load = loop->load;
    struct epoll_event events[EVENTS];
    int64_t start_us = clock_now_us(), until_us = start_us + (int64_t)(seconds * 1e6);
    enum status status = STATUS_OK;
    for (int i = 0; i < load->n && status == STATUS_OK; i++)
        status = link_open(load, &load->links[i]);
    while (status == STATUS_OK && clock_now_us() < until_us) {
        int n = epoll_wait(load->epoll_fd, events, EVENTS, 100);
        for (int i = 0; i < n && status == STATUS_OK; i++)
            status = loop_event(loop, events[i].data.ptr, events[i].events);
    }
    loop->result->seconds = (double)(clock_now_us() - start_us) / 1e6;
    close_links(load);
    return status;
}

enum status http_load_requests(struct http_load *load, const char *request, double seconds,
                               struct http_load_result *result_p)
{
    *result_p = (struct http_load_result){0};
    load->request = request;
    load->resume = false;
    return run_loop(&(struct loop){.load = load, .result = result_p}, seconds);
}

enum status http_load_connections(struct http_load *load, const char *request, bool resume, double seconds,
                                  struct http_load_result *result_p)
{
    *result_p = (struct http_load_result){0};
    load->request = request;
    load->resume = resume;
    return run_loop(&(struct loop){.load = load, .result = result_p, .reconnect = true}, seconds);
}

// --- streams

// Reads the head of a stream. *open_p becomes true if these bytes end the head.
static enum status stream_open_event(struct http_load *load, struct link *l, uint32_t events, bool *open_p)
{
    *open_p = false;
    TRY(link_rise(load, l, events));
    int n;
    while (l->up && (n = link_read(l, load->bytes)) != 0) {
        if (n < 0) return load_fail("the server closed a stream");
        load->bytes[n] = '\0';
        *open_p |= strstr(load->bytes, "\r\n\r\n") != NULL;
    }
    return STATUS_OK;
}

enum status http_load_open_streams(struct http_load *load, const char *request)
{
    struct epoll_event events[EVENTS];
    int opened = 0, started = 0;
    int64_t until_us = clock_now_us() + STREAM_OPEN_US;
    load->request = request;
    while (opened < load->n) {
        while (started < load->n && started - opened < CONNECTING_MAX)
            TRY(link_open(load, &load->links[started++]));
        int n = epoll_wait(load->epoll_fd, events, EVENTS, 1000);
        for (int i = 0; i < n; i++) {
            bool open;
            TRY(stream_open_event(load, events[i].data.ptr, events[i].events, &open));
            opened += open;
        }
        if (clock_now_us() > until_us) return status_fail(STATUS_DEADLINE, "%d of %d streams opened", opened, load->n);
    }
    return STATUS_OK;
}

// Counts events. Their number follows from the bytes, since all chunks have one size. An event that two reads share has
// no latency.
static void count_events(const char *bytes, int64_t now_us, struct http_load_result *result)
{
    for (const char *at = bytes; (at = strstr(at, "at=")); at += 3)
        if (strlen(at) >= 19) samples_add(&result->ms, (double)(now_us - (int64_t)strtoull(at + 3, NULL, 16)) / 1e3);
}

enum status http_load_read_events(struct http_load *load, int chunk_bytes, int64_t until_us, int64_t expected,
                                  struct http_load_result *result)
{
    struct epoll_event events[EVENTS];
    while (clock_now_us() < until_us && (expected < 0 || result->done < expected)) {
        int n = epoll_wait(load->epoll_fd, events, EVENTS, 10);
        for (int i = 0; i < n; i++) {
            struct link *l = events[i].data.ptr;
            int size;
            while ((size = link_read(l, load->bytes)) != 0) {
                if (size < 0) return load_fail("the server closed a stream");
                load->bytes[size] = '\0';
                count_events(load->bytes, clock_now_us(), result);
                result->done -= l->got / chunk_bytes;
                l->got += size;
                result->done += l->got / chunk_bytes;
            }
        }
    }
    return STATUS_OK;
}

// --- open and close

static int keep_session(SSL *ssl, SSL_SESSION *session)
{
    struct http_load *load = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    SSL_SESSION_free(load->session);
    load->session = session;
    return 1;
}

enum status http_load_open(int port, bool tls, int n, struct http_load **load_p)
{
    struct http_load *load = mem_alloc(sizeof *load);
    load->port = port;
    load->n = n;
    load->links = mem_alloc_array((size_t)n, sizeof *load->links);
    for (int i = 0; i < n; i++)
        load->links[i].fd = -1;
    load->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (load->epoll_fd < 0) {
        http_load_close(load);
        return load_fail("epoll");
    }
    if (tls) {
        load->tls = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_mode(load->tls, SSL_MODE_RELEASE_BUFFERS);
        SSL_CTX_set_session_cache_mode(load->tls, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(load->tls, keep_session);
        SSL_CTX_set_app_data(load->tls, load);
    }
    *load_p = load;
    return STATUS_OK;
}

void http_load_close(struct http_load *load)
{
    if (!load) return;
    close_links(load);
    if (load->epoll_fd >= 0) close(load->epoll_fd);
    SSL_SESSION_free(load->session);
    SSL_CTX_free(load->tls);
    free(load->links);
    free(load);
}
