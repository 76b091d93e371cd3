// SPDX-License-Identifier: Apache-2.0
#include "engine/join_follower.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/join_link.h"
#include "engine/join_process.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/secret_file.h"
#include "lib/base/tls_files.h"
#include "lib/base/version.h"

enum { RETRY_MS = 500, REFUSED_MS = 3000, GREETING_US = 10000000, CONNECT_US = 5000000 };

enum state { GREETING, PROVING, JOINED };

struct follower {
    const struct join_options *options;
    int signals; // descriptor of signals
    bool ending; // a signal asks for the end
    struct join_link link;
    enum state state;
    int64_t deadline_us; // of the greeting
    uint8_t hello[JOIN_GREETING_MAX];
    size_t hello_bytes;
    struct join_keys keys;
    struct join_hello leader;
    pid_t daemon;      // orted; 0: none
    char reason[1024]; // logged last, so that a leader that is away is logged once
};

// --- signals and orted

static void daemon_ended(struct follower *f, int code)
{
    const uint8_t byte = (uint8_t)code;
    log_event(LOG_INFO, "daemon_ended", LOG_FIELD("exit_code", code));
    f->daemon = 0;
    if (f->state == JOINED)
        join_link_send(&f->link, JOIN_ENDED, (struct join_bytes){&byte, 1}); // else the leader is gone
}

static void signals_read(struct follower *f)
{
    struct signalfd_siginfo info;
    pid_t pid;
    int code;
    while (read(f->signals, &info, sizeof info) == sizeof info) {
        const bool ends = info.ssi_signo != SIGCHLD && info.ssi_signo != SIGHUP;
        if (ends && !f->ending)
            log_event(LOG_INFO, "follower_stopping", LOG_FIELD("waits_for_group", (bool)(f->daemon != 0)));
        f->ending |= ends;
    }
    while (join_process_reap(&pid, &code))
        if (pid == f->daemon) daemon_ended(f, code);
}

static bool finished(const struct follower *f)
{
    return f->ending && !f->daemon;
}

// Waits for `events` of `fd` (-1: none), handling signals. Returns false at the end of the time.
static bool wait_for(struct follower *f, int fd, short events, int64_t until_us)
{
    while (!finished(f)) {
        const int64_t left_us = until_us - clock_now_us();
        struct pollfd fds[] = {{.fd = f->signals, .events = POLLIN}, {.fd = fd, .events = events}};
        if (until_us && left_us <= 0) return false;
        poll(fds, 2, until_us ? (int)(left_us / 1000) + 1 : -1);
        if (fds[0].revents) signals_read(f);
        if (fds[1].revents) return true;
    }
    return false;
}

// --- the connection

static enum status tls_refuse(const char *path)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return status_fail(STATUS_INVALID, "%s: OpenSSL cannot use it: %s", path, reason ? reason : "no memory");
}

// The leader shows the certificate of a node, so its name and purpose are not those of a server. The token proves more.
static enum status tls_connect(const struct join_options *o, SSL **ssl_p)
{
    struct tls_pem pem;
    TRY(tls_pem_read(o->tls_cert, o->tls_key, o->tls_ca, &pem));
    tls_pem_free(&pem);
    ERR_clear_error();
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (!context) return status_fail(STATUS_INTERNAL, "OpenSSL cannot make a TLS context");
    enum status status = STATUS_OK;
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_purpose(context, X509_PURPOSE_ANY);
    SSL_CTX_set_default_passwd_cb(context, tls_no_password);
    if (SSL_CTX_load_verify_locations(context, o->tls_ca, NULL) != 1) status = tls_refuse(o->tls_ca);
    if (status == STATUS_OK && SSL_CTX_use_certificate_chain_file(context, o->tls_cert) != 1)
        status = tls_refuse(o->tls_cert);
    if (status == STATUS_OK && SSL_CTX_use_PrivateKey_file(context, o->tls_key, SSL_FILETYPE_PEM) != 1)
        status = tls_refuse(o->tls_key);
    if (status == STATUS_OK) *ssl_p = SSL_new(context);
    SSL_CTX_free(context);
    if (status != STATUS_OK || !*ssl_p) return status == STATUS_OK ? tls_refuse(o->tls_cert) : status;
    SSL_set_connect_state(*ssl_p);
    return STATUS_OK;
}

static enum status resolve(const char *address, struct addrinfo **found_p)
{
    const char *colon = strrchr(address, ':'); // join_check() has checked the form
    const bool brackets = *address == '[' && colon[-1] == ']';
    char *host = mem_format("%.*s", (int)(colon - address) - 2 * brackets, address + brackets);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const int error = getaddrinfo(host, colon + 1, &hints, found_p);
    free(host);
    return error ? status_fail(STATUS_UNAVAILABLE, "%s: %s", address, gai_strerror(error)) : STATUS_OK;
}

static int dial_one(struct follower *f, const struct addrinfo *one)
{
    int error = 0;
    socklen_t size = sizeof error;
    const int fd = socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, one->ai_addr, one->ai_addrlen)) {
        error = errno;
        if (error == EINPROGRESS) {
            const bool done = wait_for(f, fd, POLLOUT, clock_now_us() + CONNECT_US);
            error = ETIMEDOUT;
            if (done) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        }
    }
    if (!error) return fd;
    close(fd);
    errno = error;
    return -1;
}

static enum status dial(struct follower *f, int *fd_p)
{
    struct addrinfo *found;
    int fd = -1;
    TRY(resolve(f->options->join, &found));
    for (const struct addrinfo *one = found; one && fd < 0; one = one->ai_next)
        fd = dial_one(f, one);
    const int reason = errno;
    freeaddrinfo(found);
    if (fd < 0) return status_fail(STATUS_UNAVAILABLE, "%s: %s", f->options->join, strerror(reason));
    *fd_p = fd;
    return STATUS_OK;
}

static enum status greet(struct follower *f)
{
    struct join_hello hello = {.version = FOREPACK_VERSION};
    SSL *ssl = NULL;
    int fd = -1;
    char host[HOST_NAME_MAX + 1] = "localhost";
    TRY(dial(f, &fd));
    enum status status = f->options->tls_ca ? tls_connect(f->options, &ssl) : STATUS_OK;
    join_link_open(&f->link, fd, ssl);
    if (status != STATUS_OK) return status;
    gethostname(host, sizeof host - 1);
    memcpy(hello.host, host, strnlen(host, JOIN_TEXT_MAX));
    if (getrandom(hello.nonce, sizeof hello.nonce, 0) != sizeof hello.nonce)
        return status_fail(STATUS_INTERNAL, "getrandom: %s", strerror(errno));
    f->hello_bytes = join_hello_write(&hello, f->hello);
    f->state = GREETING;
    f->deadline_us = clock_now_us() + GREETING_US;
    return join_link_send(&f->link, JOIN_HELLO, (struct join_bytes){f->hello, f->hello_bytes});
}

// --- messages of the leader

static enum status prove(struct follower *f, const struct join_frame *frame)
{
    char *token;
    TRY(join_hello_read(frame->payload, frame->n, &f->leader));
    TRY(secret_file_read(f->options->token_file, &token));
    enum status status = join_link_keys(&f->link, token, (struct join_bytes){f->hello, f->hello_bytes},
                                        (struct join_bytes){frame->payload, frame->n}, &f->keys);
    explicit_bzero(token, strlen(token));
    free(token);
    f->state = PROVING;
    return status == STATUS_OK
               ? join_link_send(&f->link, JOIN_PROOF, (struct join_bytes){f->keys.follower_proof, JOIN_MAC_BYTES})
               : status;
}

static enum status refused(const struct join_frame *frame)
{
    char sentence[JOIN_GREETING_MAX];
    memcpy(sentence, frame->payload, frame->n);
    sentence[frame->n] = 0;
    return status_fail(STATUS_DENIED, "the leader refuses this host: %s", sentence);
}

static enum status accepted(struct follower *f, const struct join_frame *frame)
{
    if (frame->n != JOIN_MAC_BYTES || !join_mac_equal(frame->payload, f->keys.leader_proof))
        return status_fail(STATUS_UNAUTHENTICATED, "the leader does not know the cluster token of this host");
    if (strcmp(f->leader.version, FOREPACK_VERSION) != 0)
        return status_fail(STATUS_DENIED, "the leader has version %s and this host %s: install the same version",
                           f->leader.version, FOREPACK_VERSION);
    join_link_use_keys(&f->link, f->keys.follower_frames, f->keys.leader_frames);
    f->state = JOINED;
    *f->reason = 0;
    log_event(LOG_INFO, "group_joined", LOG_FIELD("leader", f->options->join),
              LOG_FIELD("leader_host", (const char *)f->leader.host), LOG_FIELD("tls", (bool)(f->link.ssl != NULL)));
    return STATUS_OK;
}

static enum status start_daemon(struct follower *f, const struct join_frame *frame)
{
    const char *words[JOIN_WORDS_MAX + 1];
    if (f->daemon) return status_fail(STATUS_INVALID, "the leader starts a second daemon");
    enum status status = f->ending ? status_fail(STATUS_UNAVAILABLE, "the follower is stopping")
                                   : join_command_read(frame->payload, frame->n, words);
    if (status == STATUS_OK) status = join_process_start(words, &f->daemon);
    if (status == STATUS_OK) {
        log_event(LOG_INFO, "daemon_started", LOG_FIELD("pid", (int)f->daemon));
        return join_link_send(&f->link, JOIN_STARTED, (struct join_bytes){0});
    }
    f->daemon = 0;
    log_event(LOG_ERROR, "daemon_refused", LOG_REASON);
    const char *reason = status_message();
    return join_link_send(&f->link, JOIN_FAILED, (struct join_bytes){(const uint8_t *)reason, strlen(reason)});
}

static enum status handle(struct follower *f, const struct join_frame *frame)
{
    if (f->state == GREETING && frame->type == JOIN_HELLO) return prove(f, frame);
    if (f->state != JOINED && frame->type == JOIN_REFUSED) return refused(frame);
    if (f->state == PROVING && frame->type == JOIN_PROOF) return accepted(f, frame);
    if (f->state == JOINED && frame->type == JOIN_START) return start_daemon(f, frame);
    return status_fail(STATUS_INVALID, "the leader sends an unexpected message");
}

static enum status attend(struct follower *f)
{
    while (!finished(f)) {
        if (!wait_for(f, f->link.fd, f->link.events, f->state == JOINED ? 0 : f->deadline_us)) {
            if (finished(f)) break;
            return status_fail(STATUS_UNAVAILABLE, "the leader does not answer: give both the same --node-tls options");
        }
        enum status ended = join_link_read(&f->link), status = STATUS_OK;
        char *reason = ended == STATUS_OK ? NULL : mem_string(status_message());
        struct join_frame frame;
        for (bool whole = true; status == STATUS_OK && whole;) {
            status = join_link_next(&f->link, &frame, &whole);
            if (status == STATUS_OK && whole) status = handle(f, &frame);
        }
        // What the leader has sent says more than that it has ended the connection.
        if (status == STATUS_OK && ended != STATUS_OK)
            status = status_fail(
                ended, f->state == GREETING ? "%s before its greeting: give both the same --node-tls options" : "%s",
                reason);
        free(reason);
        TRY(status);
    }
    return STATUS_OK;
}

// --- one connection after another

static void log_failure(struct follower *f, bool was_joined)
{
    if (was_joined) {
        log_event(LOG_WARN, "leader_lost", LOG_REASON, LOG_FIELD("effect", "the ranks of this host end"));
        return;
    }
    if (strcmp(f->reason, status_message()) == 0) return;
    memccpy(f->reason, status_message(), 0, sizeof f->reason - 1);
    log_event(LOG_WARN, "leader_not_joined", LOG_FIELD("leader", f->options->join), LOG_REASON);
}

// Ends a group whose leader is lost.
static void leave(struct follower *f)
{
    join_link_close(&f->link);
    f->state = GREETING;
    join_process_end_all();
    if (f->daemon) log_event(LOG_INFO, "daemon_ended", LOG_FIELD("exit_code", 128 + SIGTERM));
    f->daemon = 0;
}

enum status join_follow(const struct join_options *options)
{
    struct follower *f = mem_alloc(sizeof *f);
    char *token;
    f->options = options;
    f->link.fd = -1;
    enum status status = join_program_check("orted");
    if (status == STATUS_OK) status = secret_file_read(options->token_file, &token);
    if (status == STATUS_OK) {
        explicit_bzero(token, strlen(token));
        free(token);
        status = join_signals_open(&f->signals);
    }
    while (status == STATUS_OK && !finished(f)) {
        enum status attempt = greet(f);
        if (attempt == STATUS_OK) attempt = attend(f);
        if (attempt != STATUS_OK && !finished(f)) log_failure(f, f->state == JOINED);
        leave(f);
        const bool soon = attempt == STATUS_UNAVAILABLE;
        wait_for(f, -1, 0, clock_now_us() + (soon ? RETRY_MS : REFUSED_MS) * INT64_C(1000));
    }
    free(f);
    return status;
}
