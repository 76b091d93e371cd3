// SPDX-License-Identifier: Apache-2.0
#include "lib/base/service_manager.h"

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/utf8.h"

enum { STATUS_BYTES = 512, SEND_TIMEOUT_S = 1 };

// Written by service_manager_open(), read-only afterwards.
static int manager = -1; // connected socket; -1: no manager listens
static int64_t watchdog_us;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards the members below
static char status_sent[STATUS_BYTES];
static int64_t alive_sent_us;

// Connects a socket to the address: a path, or '@' and a name in the abstract namespace. Returns -1 on failure.
static int address_connect(const char *address)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const size_t n = strlen(address);
    if ((*address != '/' && *address != '@') || n < 2 || n >= sizeof to.sun_path) return -1;
    memcpy(to.sun_path, address, n);
    if (*address == '@') to.sun_path[0] = 0;
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const struct timeval timeout = {.tv_sec = SEND_TIMEOUT_S}; // a manager that hangs must not stop this process
    if (fd < 0) return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) == 0 &&
        connect(fd, (const struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) == 0)
        return fd;
    close(fd);
    return -1;
}

// Returns the watchdog's time, or 0 if none expects messages of this process. The process that the manager started may
// be mpirun, the parent of rank 0.
static int64_t watchdog_read(void)
{
    const char *time = getenv("WATCHDOG_USEC"), *process = getenv("WATCHDOG_PID");
    const long long us = time ? atoll(time) : 0, pid = process ? atoll(process) : getpid();
    return us > 0 && (pid == getpid() || pid == getppid()) ? us : 0;
}

void service_manager_open(void)
{
    const char *address = getenv("NOTIFY_SOCKET");
    if (address) manager = address_connect(address);
    if (manager >= 0) watchdog_us = watchdog_read();
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

bool service_manager_listens(void)
{
    return manager >= 0;
}

static void message_send(const char *text)
{
    if (manager >= 0) (void)!send(manager, text, strlen(text), MSG_NOSIGNAL);
}

void service_manager_ready(void)
{
    message_send("READY=1");
}

// The manager compares the time with its own clock, to match it with the signal that it sent.
void service_manager_reloading(void)
{
    char text[64];
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%lld", (long long)clock_now_us());
    message_send(text);
}

void service_manager_stopping(void)
{
    message_send("STOPPING=1");
}

void service_manager_set_status(const char *format, ...)
{
    char text[STATUS_BYTES], message[STATUS_BYTES + 8];
    if (manager < 0) return;
    va_list args;
    va_start(args, format);
    utf8_format_list(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++)
        if (*c == '\n') *c = ' '; // a newline would end the message's field
    pthread_mutex_lock(&lock);
    const bool changed = strcmp(text, status_sent) != 0;
    memcpy(status_sent, text, sizeof text);
    pthread_mutex_unlock(&lock);
    snprintf(message, sizeof message, "STATUS=%s", text);
    if (changed) message_send(message);
}

void service_manager_extend_start(int64_t us)
{
    char text[64];
    snprintf(text, sizeof text, "EXTEND_TIMEOUT_USEC=%lld", (long long)us);
    message_send(text);
}

int64_t service_manager_interval_us(int64_t longest_us)
{
    return watchdog_us && watchdog_us / 4 < longest_us ? watchdog_us / 4 : longest_us;
}

void service_manager_alive(int64_t now_us)
{
    if (!watchdog_us) return;
    pthread_mutex_lock(&lock);
    const bool due = now_us - alive_sent_us >= watchdog_us / 2;
    if (due) alive_sent_us = now_us;
    pthread_mutex_unlock(&lock);
    if (due) message_send("WATCHDOG=1");
}
