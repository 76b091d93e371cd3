// SPDX-License-Identifier: Apache-2.0
#include "cli/log_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/log_writer.h"

static _Noreturn void relay_copy(int from)
{
    static char bytes[65536]; // a pipe's capacity, so that bytes written together are copied together
    setpgid(0, 0);            // the terminal's Ctrl-C must not end the relay, because nodes log while they drain
    for (;;) {
        ssize_t n = read(from, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(0);
        log_write_stderr(bytes, (size_t)n);
    }
}

enum status log_relay_open(struct log_relay *relay)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return status_fail(STATUS_INTERNAL, "pipe: %s", strerror(errno));
    pid_t pid = fork();
    int error = errno;
    if (pid == 0) {
        close(ends[1]);
        relay_copy(ends[0]);
    }
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return status_fail(STATUS_INTERNAL, "fork: %s", strerror(error));
    }
    *relay = (struct log_relay){pid, ends[1]};
    return STATUS_OK;
}

void log_relay_close(struct log_relay *relay)
{
    close(relay->fd);
    for (int i = 0; i < 100 && waitpid(relay->pid, NULL, WNOHANG) == 0; i++)
        poll(NULL, 0, 10);
}
