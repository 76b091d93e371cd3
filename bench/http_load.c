// SPDX-License-Identifier: Apache-2.0
#include "bench/http_load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "bench/client_link.h"
#include "bench/http2.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum { EVENTS = 256, READ_BYTES = 65536, CONNECTING_MAX = 256, STREAM_OPEN_US = 120000000, ANSWER_US = 60000000 };

struct link {
    struct client_link client;
    int64_t got;   // bytes of the response so far
    int64_t whole; // size of the response; 0: its head has not come yet
    int64_t sent_us;
    uint32_t stream; // gRPC: stream of the next call
    struct h2_reader reader;
};

struct http_load {
    int port, n, epoll_fd;
    SSL_CTX *tls; // NULL: plain
    SSL_SESSION *session;
    bool resume;
    struct link *links;  // [n]
    const char *request; // NULL: a new connection sends nothing
    bool grpc;
    struct h2_bytes call, reply; // gRPC: the frames of a call; frames that the client owes the server
    size_t call_data;            // where the second frame of `call` begins
    char bytes[READ_BYTES + 1];
};

// --- one connection

static enum status link_open(struct http_load *load, struct link *l)
{
    *l = (struct link){.sent_us = clock_now_us(), .stream = 1};
    return client_link_open(&l->client, 1, load->port, load->tls, load->resume ? load->session : NULL, load->epoll_fd,
                            l);
}

// Requests are small and their connection idle, so the socket takes them whole.
static enum status bytes_send(struct link *l, const void *bytes, size_t size)
{
    int n = size ? client_link_write(&l->client, bytes, (int)size) : 0;
    return n == (int)size ? STATUS_OK : client_link_fail("send");
}

static void stream_write(uint8_t *frame, uint32_t stream)
{
    for (int i = 0; i < 4; i++)
        frame[5 + i] = (uint8_t)(stream >> (24 - 8 * i));
}

static enum status call_send(struct http_load *load, struct link *l)
{
    stream_write(load->call.data, l->stream);
    stream_write(load->call.data + load->call_data, l->stream);
    l->stream += 2;
    return bytes_send(l, load->call.data, load->call.size);
}

static enum status link_send(struct http_load *load, struct link *l)
{
    return load->grpc ? call_send(load, l) : bytes_send(l, load->request, strlen(load->request));
}

// Continues to connect. Sends the request once the connection is up.
static enum status link_rise(struct http_load *load, struct link *l, uint32_t events)
{
    if (l->client.up) return STATUS_OK;
    TRY(client_link_rise(&l->client, events));
    if (!l->client.up) return STATUS_OK;
    if (load->grpc) {
        load->reply.size = 0;
        h2_add_greeting(&load->reply);
        TRY(bytes_send(l, load->reply.data, load->reply.size));
    }
    return load->request ? link_send(load, l) : STATUS_OK;
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

// Sets *whole_p to true if the bytes end a response.
static enum status response_add(struct http_load *load, struct link *l, int n, bool *whole_p)
{
    load->bytes[n] = '\0';
    if (l->got == 0) TRY(response_check(load->bytes));
    if (l->got == 0) l->whole = response_size(load->bytes);
    l->got += n;
    *whole_p = l->got >= l->whole;
    if (*whole_p) l->got = 0;
    return STATUS_OK;
}

// Sets *whole_p to true if the bytes end a call.
static enum status call_add(struct http_load *load, struct link *l, int n, bool *whole_p)
{
    load->reply.size = 0;
    int ended = h2_read(&l->reader, (const uint8_t *)load->bytes, (size_t)n, &load->reply);
    if (ended < 0) return status_fail(STATUS_UNAVAILABLE, "the benchmark's client: a call failed");
    *whole_p = ended > 0;
    return bytes_send(l, load->reply.data, load->reply.size);
}

// Reads the available bytes. *whole_p becomes true if these bytes end a response.
static enum status link_receive(struct http_load *load, struct link *l, bool *whole_p)
{
    int n;
    *whole_p = false;
    while (l->client.up && !*whole_p && (n = client_link_read(&l->client, load->bytes, READ_BYTES)) != 0) {
        if (n < 0) return client_link_fail("the server closed a connection");
        TRY(load->grpc ? call_add(load, l, n, whole_p) : response_add(load, l, n, whole_p));
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
        client_link_close(&l->client);
        return link_open(loop->load, l);
    }
    l->sent_us = now_us;
    return link_send(loop->load, l);
}

static void close_links(struct http_load *load)
{
    for (int i = 0; i < load->n; i++)
        client_link_close(&load->links[i].client);
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

// --- requests at a fixed rate

void http_load_use_grpc(struct http_load *load, const char *path, const void *message, size_t size)
{
    struct h2_bytes headers = {0}, data = {0};
    const uint8_t prefix[5] = {0, (uint8_t)(size >> 24), (uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size};
    h2_add_call_headers(&headers, path);
    h2_add(&data, prefix, sizeof prefix);
    h2_add(&data, message, size);
    load->grpc = true;
    load->call.size = 0;
    h2_add_frame(&load->call, H2_HEADERS, H2_END_HEADERS, 1, headers.data, headers.size);
    load->call_data = load->call.size;
    h2_add_frame(&load->call, H2_DATA, H2_END_STREAM, 1, data.data, data.size);
    free(headers.data);
    free(data.data);
}

// Connections without a request, in the order in which they became free.
struct idle {
    struct link **links; // [size], a ring
    int size, first, n;
};

static void idle_add(struct idle *idle, struct link *l)
{
    idle->links[(idle->first + idle->n++) % idle->size] = l;
}

static struct link *idle_take(struct idle *idle)
{
    struct link *l = idle->links[idle->first];
    idle->first = (idle->first + 1) % idle->size;
    idle->n--;
    return l;
}

// Waits for events until `until_us`. epoll_wait() would round this time to milliseconds.
static int events_await(struct http_load *load, struct epoll_event events[EVENTS], int64_t until_us)
{
    int64_t us = until_us - clock_now_us();
    const struct timespec wait = {.tv_sec = us > 0 ? us / 1000000 : 0, .tv_nsec = us > 0 ? us % 1000000 * 1000 : 0};
    return epoll_pwait2(load->epoll_fd, events, EVENTS, &wait, NULL);
}

static enum status links_open_all(struct http_load *load, struct idle *idle)
{
    struct epoll_event events[EVENTS];
    int64_t until_us = clock_now_us() + ANSWER_US;
    load->request = NULL;
    for (int i = 0; i < load->n; i++)
        TRY(link_open(load, &load->links[i]));
    while (idle->n < load->n) {
        int n = events_await(load, events, until_us);
        for (int i = 0; i < n; i++) {
            struct link *l = events[i].data.ptr;
            if (l->client.up) continue;
            TRY(link_rise(load, l, events[i].events));
            if (l->client.up) idle_add(idle, l);
        }
        if (clock_now_us() > until_us)
            return status_fail(STATUS_DEADLINE, "%d of %d connections opened", idle->n, load->n);
    }
    return STATUS_OK;
}

static enum status due_send(struct http_load *load, struct idle *idle, int64_t due_us)
{
    struct link *l = idle_take(idle);
    l->sent_us = due_us;
    return link_send(load, l);
}

static enum status paced_event(struct http_load *load, struct link *l, struct idle *idle,
                               struct http_load_result *result)
{
    bool whole;
    TRY(link_receive(load, l, &whole));
    if (!whole) return STATUS_OK;
    result->done++;
    samples_add(&result->ms, (double)(clock_now_us() - l->sent_us) / 1e3);
    idle_add(idle, l);
    return STATUS_OK;
}

static enum status paced_run(struct http_load *load, double rate, int64_t n_requests, struct idle *idle,
                             struct http_load_result *result)
{
    struct epoll_event events[EVENTS];
    int64_t start_us = clock_now_us(), sent = 0, due_us = start_us;
    int64_t until_us = start_us + (int64_t)((double)n_requests / rate * 1e6) + ANSWER_US;
    while (result->done < n_requests) {
        while (idle->n && sent < n_requests && due_us <= clock_now_us()) {
            TRY(due_send(load, idle, due_us));
            due_us = start_us + (int64_t)((double)++sent / rate * 1e6);
        }
        int n = events_await(load, events, idle->n && sent < n_requests ? due_us : until_us);
        for (int i = 0; i < n; i++)
            TRY(paced_event(load, events[i].data.ptr, idle, result));
        if (clock_now_us() > until_us)
            return status_fail(STATUS_DEADLINE, "%lld of %lld requests were answered", (long long)result->done,
                               (long long)n_requests);
    }
    result->seconds = (double)(clock_now_us() - start_us) / 1e6;
    return STATUS_OK;
}

enum status http_load_paced(struct http_load *load, const char *request, double rate, double seconds,
                            struct http_load_result *result_p)
{
    struct idle idle = {.links = mem_alloc_array((size_t)load->n, sizeof *idle.links), .size = load->n};
    *result_p = (struct http_load_result){0};
    load->resume = false;
    enum status status = links_open_all(load, &idle);
    load->request = request;
    if (status == STATUS_OK) status = paced_run(load, rate, (int64_t)(rate * seconds), &idle, result_p);
    close_links(load);
    free(idle.links);
    return status;
}

// --- streams

// Reads the head of a stream. *open_p becomes true if these bytes end the head.
static enum status stream_open_event(struct http_load *load, struct link *l, uint32_t events, bool *open_p)
{
    *open_p = false;
    TRY(link_rise(load, l, events));
    int n;
    while (l->client.up && (n = client_link_read(&l->client, load->bytes, READ_BYTES)) != 0) {
        if (n < 0) return client_link_fail("the server closed a stream");
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
            while ((size = client_link_read(&l->client, load->bytes, READ_BYTES)) != 0) {
                if (size < 0) return client_link_fail("the server closed a stream");
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
        load->links[i].client.fd = -1;
    load->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (load->epoll_fd < 0) {
        http_load_close(load);
        return client_link_fail("epoll");
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
    free(load->call.data);
    free(load->reply.data);
    free(load->links);
    free(load);
}
