// SPDX-License-Identifier: Apache-2.0
// net/: the server keeps serving when clients open more connections than the process may have descriptors.
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/net/core.h"
#include "tests/suite.h"

// FEW is used under sanitizers, where C-core closes connections slowly.
enum { LIMIT = 1024, FEW = 256, SOCKETS = 2000, TIMEOUT_MS = 60000 };

static const char greeting[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"; // with empty SETTINGS

// A separate process, since it needs more descriptors than the server may have.
struct flood {
    pid_t pid;
    int to, from; // pipes: `to` sends the port, `from` reports that all sockets are open
};

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    _exit(1);
}

static void flood_run(int in, int out, bool greet)
{
    struct rlimit files = {SOCKETS + 100, SOCKETS + 100};
    int port;
    if (setrlimit(RLIMIT_NOFILE, &files) || read(in, &port, sizeof port) != sizeof port) _exit(77);
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < SOCKETS; i++) {
        int fd = connect_to(port);
        if (greet) send(fd, greeting, sizeof greeting - 1, MSG_NOSIGNAL); // fails if the server has closed it
    }
    if (write(out, "x", 1) != 1) _exit(1);
    (void)!read(in, &port, 1); // until the test closes its end
    _exit(0);
}

static struct flood flood_fork(bool greet)
{
    int to[2], from[2];
    ck_assert(!pipe(to));
    ck_assert(!pipe(from));
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        close(to[1]);
        close(from[0]);
        flood_run(to[0], from[1], greet);
    }
    close(to[0]);
    close(from[1]);
    return (struct flood){pid, to[1], from[0]};
}

static void flood_start(const struct flood *flood, int port)
{
    char done;
    ck_assert_int_eq(write(flood->to, &port, sizeof port), sizeof port);
    ck_assert_msg(read(flood->from, &done, 1) == 1, "the flood did not connect");
}

static void flood_end(struct flood *flood)
{
    close(flood->to);
    close(flood->from);
    waitpid(flood->pid, NULL, 0);
}

static void echo(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    rpc_call_send(call, bytes, size);
    rpc_call_finish(call, STATUS_OK, NULL);
}

static const struct rpc_method methods[] = {{"/test/Echo", .on_message = echo}, {0}};

static struct rpc_server *server_open(int limit)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = (rlim_t)limit;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    rpc_init();
    struct rpc_server *server;
    const struct rpc_server_options options = {.address = "127.0.0.1:0", .methods = methods};
    ck_assert_msg(rpc_server_open(&options, &server) == STATUS_OK, "%s", status_message());
    return server;
}

static enum status ask(int port)
{
    char target[64];
    struct rpc_channel *channel;
    struct rpc_bytes answer = {0};
    snprintf(target, sizeof target, "127.0.0.1:%d", port);
    ck_assert_int_eq(rpc_channel_open(target, &channel), STATUS_OK);
    enum status status = rpc_unary(channel, "/test/Echo", (const uint8_t *)"hello", 5, TIMEOUT_MS, &answer);
    rpc_bytes_free(&answer);
    rpc_channel_close(channel);
    return status;
}

static void serves(int limit, bool greet, bool leave)
{
    struct flood flood = flood_fork(greet);
    struct rpc_server *server = server_open(limit);
    int port = rpc_server_port(server);
    flood_start(&flood, port);
    if (leave) flood_end(&flood);
    enum status status;
    while ((status = ask(port)) == STATUS_UNAVAILABLE && leave)
        continue; // the server has not noticed yet that the connections are gone
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    if (!leave) flood_end(&flood);
    rpc_server_close(server, 0);
    rpc_shutdown();
}

START_TEST(a_request_is_answered_despite_silent_sockets)
{
    serves(LIMIT, false, false);
}
END_TEST

START_TEST(requests_are_answered_again_after_sockets_that_greeted)
{
    serves(FEW, true, true);
}
END_TEST

SUITE("net flood")
{
    TIMEOUT(30);
    TEST(a_request_is_answered_despite_silent_sockets);
    TEST(requests_are_answered_again_after_sockets_that_greeted);
}
