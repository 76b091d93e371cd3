// SPDX-License-Identifier: Apache-2.0
// Kills a listening socket, for tests of servers. A server must then end its process, so that a supervisor starts it
// again.
#pragma once

#include <arpa/inet.h>
#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEAD_LISTENER_FDS = 1024, DEAD_LISTENER_S = 60 };

// Shuts down the sockets of this process that listen on the port.
static void listener_kill(int port)
{
    for (int fd = 0; fd < DEAD_LISTENER_FDS; fd++) {
        struct sockaddr_in at = {0};
        socklen_t size = sizeof at;
        if (getsockname(fd, (struct sockaddr *)&at, &size) == 0 && ntohs(at.sin_port) == port) shutdown(fd, SHUT_RDWR);
    }
}

// Opens a server in a child process and kills its listener: the child must abort. open_server() returns the port.
static void expect_abort_without_listener(int (*open_server)(void))
{
    pid_t child = fork();
    if (child == 0) {
        alarm(DEAD_LISTENER_S);
        listener_kill(open_server());
        while (true)
            pause();
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFSIGNALED(status), "wait status %#x", status);
    ck_assert_int_eq(WTERMSIG(status), SIGABRT);
}
