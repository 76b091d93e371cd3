// SPDX-License-Identifier: Apache-2.0
#include "lib/base/file_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"

enum status file_open_status(int error)
{
    switch (error) {
    case ENOENT: return STATUS_NOT_FOUND;
    case EIO:
    case EMFILE:
    case ENFILE:
    case ENOMEM: return STATUS_INTERNAL;
    default: return STATUS_INVALID;
    }
}

static enum status read_regular(int fd, const char *path, size_t max_bytes, char **text_p, size_t *n_bytes_p)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return status_fail(STATUS_DATA, "%s: not a regular file", path);
    if ((size_t)info.st_size > max_bytes)
        return status_fail(STATUS_DATA, "%s: %lld bytes: must be at most %zu", path, (long long)info.st_size,
                           max_bytes);
    size_t size = (size_t)info.st_size, n = 0;
    char *text = mem_alloc(size + 1);
    for (ssize_t got; n < size && (got = read(fd, text + n, size - n)) != 0; n += got > 0 ? (size_t)got : 0) {
        if (got > 0 || errno == EINTR) continue;
        free(text);
        return status_fail(STATUS_INTERNAL, "%s: %s", path, strerror(errno));
    }
    *text_p = text;
    *n_bytes_p = n;
    return STATUS_OK;
}

enum status file_text_read(const char *path, size_t max_bytes, char **text_p, size_t *n_bytes_p)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: a pipe must not block
    if (fd < 0) return status_fail(file_open_status(errno), "%s: %s", path, strerror(errno));
    enum status status = read_regular(fd, path, max_bytes, text_p, n_bytes_p);
    close(fd);
    return status;
}
