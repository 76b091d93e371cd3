// SPDX-License-Identifier: Apache-2.0
#include "cli/log_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/log_writer.h"

// Returns true for a log line of level info or debug. lib/base/log.h describes the two formats.
static bool line_is_quiet(const char *line, size_t n)
{
    static const char time[] = "0000-00-00T00:00:00.000",
                      object[] = "{\"time\":\"0000-00-00T00:00:00.000Z\",\"level\":\"";
    bool json = n > 0 && line[0] == '{';
    size_t at = json ? sizeof object - 1 : sizeof time - 1;
    if (n < at + 6 || (!json && (line[4] != '-' || line[10] != 'T' || line[19] != '.'))) return false;
    while (!json && at < n - 6 && line[at] != ' ') // the zone: Z or +01:00
        at++;
    at += !json;
    return memcmp(line + at, json ? "info\"" : "info ", 5) == 0 ||
           memcmp(line + at, json ? "debug\"" : "debug ", 6) == 0;
}

static void file_write(int file, const char *bytes, size_t n)
{
    static bool told;
    while (n) {
        ssize_t written = write(file, bytes, n);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            if (!told) dprintf(STDERR_FILENO, "the log file cannot be written: %s\n", strerror(errno));
            told = true;
            return;
        }
        bytes += written;
        n -= (size_t)written;
    }
}

// Writes the complete lines in `bytes` [n], or all bytes if `all` is true. Returns the number of bytes written.
static size_t relay_lines(int file, const char *bytes, size_t n, bool all)
{
    size_t done = 0;
    while (done < n) {
        const char *end = memchr(bytes + done, '\n', n - done);
        if (!end && !all) break;
        size_t length = end ? (size_t)(end + 1 - (bytes + done)) : n - done;
        file_write(file, bytes + done, length);
        if (!line_is_quiet(bytes + done, length)) log_write_stderr(bytes + done, length);
        done += length;
    }
    return done;
}

static _Noreturn void relay_copy(int from, int file)
{
    static char bytes[65536]; // the capacity of a pipe, so that bytes written together are copied together
    size_t held = 0;          // bytes of an unfinished line
    setpgid(0, 0);            // Ctrl-C in the terminal must not end the relay, because nodes log while they drain
    for (;;) {
        ssize_t n = read(from, bytes + held, sizeof bytes - held);
        if (n < 0 && errno == EINTR) continue;
        size_t all = held + (n > 0 ? (size_t)n : 0), done = all;
        if (file < 0) {
            log_write_stderr(bytes, all);
        } else {
            done = relay_lines(file, bytes, all, n <= 0 || all == sizeof bytes);
        }
        if (n <= 0) _exit(0);
        held = all - done;
        memmove(bytes, bytes + done, held);
    }
}

enum status log_relay_open(struct log_relay *relay, int file)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return status_fail(STATUS_INTERNAL, "pipe: %s", strerror(errno));
    pid_t pid = fork();
    int error = errno;
    if (pid == 0) {
        close(ends[1]);
        relay_copy(ends[0], file);
    }
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return status_fail(STATUS_INTERNAL, "fork: %s", strerror(error));
    }
    *relay = (struct log_relay){pid, ends[1], -1};
    return STATUS_OK;
}

enum status log_relay_take_stderr(struct log_relay *relay)
{
    relay->stderr_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (relay->stderr_fd >= 0 && dup2(relay->fd, STDERR_FILENO) >= 0) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "standard error: %s", strerror(errno));
}

void log_relay_close(struct log_relay *relay)
{
    log_flush();
    if (relay->stderr_fd >= 0) {
        dup2(relay->stderr_fd, STDERR_FILENO);
        close(relay->stderr_fd);
    }
    close(relay->fd);
    for (int i = 0; i < 100 && waitpid(relay->pid, NULL, WNOHANG) == 0; i++)
        poll(NULL, 0, 10);
}
