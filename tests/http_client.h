// SPDX-License-Identifier: Apache-2.0
// A plain blocking client for tests of the HTTP server. It sends the bytes of the test unchanged and returns the bytes
// that arrive.
#pragma once

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"

enum { CLIENT_WAIT_MS = 60000 };

// Connects without a test failure. `receive_bytes`: size of the kernel's receive buffer; 0: the default.
static inline int client_try_connect_with(int port, int receive_bytes)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (receive_bytes) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
    close(fd);
    return -1;
}

static inline int client_try_connect(int port)
{
    return client_try_connect_with(port, 0);
}

static inline int client_connect_with(int port, int receive_bytes)
{
    int fd = client_try_connect_with(port, receive_bytes);
    ck_assert_msg(fd >= 0, "connect to port %d: %s", port, strerror(errno));
    return fd;
}

static inline int client_connect(int port)
{
    return client_connect_with(port, 0);
}

// Returns false if the server has closed the connection.
static inline bool client_send_bytes(int fd, const char *bytes, size_t size)
{
    while (size) {
        ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
        if (n < 0) return false;
        bytes += n;
        size -= (size_t)n;
    }
    return true;
}

static inline bool client_send(int fd, const char *text)
{
    return client_send_bytes(fd, text, strlen(text));
}

struct client_text {
    char *bytes; // NUL-terminated; owned
    size_t size;
    bool ended; // the server has closed its side
    bool reset;
};

// Appends the next bytes. Returns false at the end.
static inline bool client_receive_some(int fd, struct client_text *text)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    ck_assert_msg(poll(&poll_fd, 1, CLIENT_WAIT_MS) == 1, "no answer; so far: %s",
                  text->bytes ? text->bytes : "nothing");
    text->bytes = realloc(text->bytes, text->size + 65537);
    ssize_t n = recv(fd, text->bytes + text->size, 65536, 0);
    text->reset = n < 0;
    text->ended = n <= 0;
    if (n > 0) text->size += (size_t)n;
    text->bytes[text->size] = '\0';
    return n > 0;
}

// Reads until `end` has arrived. The test fails if the connection ends earlier.
static inline struct client_text client_receive_until(int fd, const char *end)
{
    struct client_text text = {0};
    while (!text.bytes || !memmem(text.bytes, text.size, end, strlen(end)))
        ck_assert_msg(client_receive_some(fd, &text), "'%s' is missing: %s", end, text.bytes);
    return text;
}

// Reads until the server closes.
static inline struct client_text client_receive_all(int fd)
{
    struct client_text text = {0};
    while (client_receive_some(fd, &text))
        ;
    return text;
}

// Sends one request on a new connection. Returns all bytes that arrive. The caller frees them.
static inline char *client_ask_raw(int port, const char *request)
{
    int fd = client_connect(port);
    client_send(fd, request);
    struct client_text text = client_receive_all(fd);
    close(fd);
    return text.bytes;
}

// Waits until the condition holds.
#define AWAIT(condition)                                                                                               \
    do {                                                                                                               \
        int64_t until_us = clock_now_us() + 1000 * (int64_t)CLIENT_WAIT_MS;                                            \
        while (!(condition)) {                                                                                         \
            ck_assert_msg(clock_now_us() < until_us, "never true: %s", #condition);                                    \
            usleep(500);                                                                                               \
        }                                                                                                              \
    } while (0)
