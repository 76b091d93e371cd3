// SPDX-License-Identifier: Apache-2.0
#include "engine/wakeup_reception.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum {
    STRANGERS_MAX = 256,   // limit of strangers at the same time; one more replaces the oldest
    GREETING_US = 2000000, // time from connecting to the end of the greeting
    OPEN_TIMEOUT_S = 60,   // time for all followers to connect
};

struct stranger {
    int fd;
    int64_t until_us; // end of the time for the greeting
    size_t received;  // bytes of the greeting so far
    struct greeting greeting;
};

struct reception {
    struct pollfd polled[RECEPTION_LISTENERS_MAX + STRANGERS_MAX];
    int n_listeners, n_strangers, missing;
    struct stranger strangers[STRANGERS_MAX]; // oldest first
    bool (*take)(void *user, int fd, const struct greeting *greeting);
    void *user;
};

static void stranger_remove(struct reception *r, int at)
{
    r->n_strangers--;
    memmove(&r->strangers[at], &r->strangers[at + 1], (size_t)(r->n_strangers - at) * sizeof *r->strangers);
}

static void stranger_close(struct reception *r, int at)
{
    close(r->strangers[at].fd);
    stranger_remove(r, at);
}

static void stranger_accept(struct reception *r, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    if (r->n_strangers == STRANGERS_MAX) stranger_close(r, 0);
    r->strangers[r->n_strangers++] = (struct stranger){.fd = fd, .until_us = clock_now_us() + GREETING_US};
}

static void stranger_read(struct reception *r, int at)
{
    struct stranger *s = &r->strangers[at];
    ssize_t n = recv(s->fd, (char *)&s->greeting + s->received, sizeof s->greeting - s->received, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        stranger_close(r, at);
        return;
    }
    s->received += (size_t)n;
    if (s->received < sizeof s->greeting) return;
    fcntl(s->fd, F_SETFL, fcntl(s->fd, F_GETFL) & ~O_NONBLOCK);
    if (r->take(r->user, s->fd, &s->greeting)) {
        r->missing--;
        stranger_remove(r, at);
    } else {
        stranger_close(r, at);
    }
}

// Polls listeners and strangers until something happens or a time limit has passed. Returns false if poll() fails.
static bool reception_poll(struct reception *r, int64_t until_us)
{
    for (int i = 0; i < r->n_strangers; i++)
        r->polled[r->n_listeners + i] = (struct pollfd){.fd = r->strangers[i].fd, .events = POLLIN};
    if (r->n_strangers && r->strangers[0].until_us < until_us) until_us = r->strangers[0].until_us;
    int64_t left_us = until_us - clock_now_us();
    int n = r->n_listeners + r->n_strangers;
    return poll(r->polled, (nfds_t)n, left_us > 0 ? (int)(left_us / 1000) + 1 : 0) >= 0 || errno == EINTR;
}

static void reception_serve(struct reception *r)
{
    for (int i = r->n_strangers - 1; i >= 0; i--) // in descending order, because some are removed
        if (r->polled[r->n_listeners + i].revents) stranger_read(r, i);
    while (r->n_strangers && r->strangers[0].until_us <= clock_now_us())
        stranger_close(r, 0);
    for (int i = 0; i < r->n_listeners; i++)
        if (r->polled[i].revents) stranger_accept(r, r->polled[i].fd);
}

static enum status reception_wait(struct reception *r)
{
    int64_t until_us = clock_now_us() + (int64_t)OPEN_TIMEOUT_S * 1000000;
    while (r->missing > 0) {
        if (clock_now_us() >= until_us)
            return status_fail(STATUS_UNAVAILABLE, "wake-up sockets: %d followers did not connect within %d s",
                               r->missing, OPEN_TIMEOUT_S);
        if (!reception_poll(r, until_us))
            return status_fail(STATUS_INTERNAL, "wake-up sockets: poll: %s", strerror(errno));
        reception_serve(r);
    }
    return STATUS_OK;
}

enum status reception_run(const int *listeners, int n_listeners, int missing,
                          bool (*take)(void *user, int fd, const struct greeting *greeting), void *user)
{
    struct reception *r = mem_alloc(sizeof *r);
    r->n_listeners = n_listeners;
    r->missing = missing;
    r->take = take;
    r->user = user;
    for (int i = 0; i < n_listeners; i++)
        r->polled[i] = (struct pollfd){.fd = listeners[i], .events = POLLIN};
    enum status status = reception_wait(r);
    while (r->n_strangers)
        stranger_close(r, 0);
    free(r);
    return status;
}
