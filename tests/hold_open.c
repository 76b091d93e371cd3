// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program: an open() of the file $HOLD_OPEN waits until something has written to the FIFO
// $HOLD_OPEN.release, as on a file server that does not answer.
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, int) : 0;
    va_end(args);
    const char *held = getenv("HOLD_OPEN");
    if (held && strcmp(path, held) == 0) {
        char fifo[4096], byte;
        snprintf(fifo, sizeof fifo, "%s.release", held);
        const int fd = (int)syscall(SYS_openat, AT_FDCWD, fifo, O_RDONLY | O_CLOEXEC, 0);
        while (fd >= 0 && read(fd, &byte, 1) > 0)
            continue;
        close(fd);
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
