// SPDX-License-Identifier: Apache-2.0
#include "lib/base/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/file_text.h"
#include "lib/base/mem.h"

struct file_stamp file_stamp_get(const char *path)
{
    struct stat info;
    if (stat(path, &info)) return (struct file_stamp){0};
    return (struct file_stamp){
        .device = info.st_dev,
        .inode = info.st_ino,
        .size = (uint64_t)info.st_size,
        .changed_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec,
    };
}

bool file_stamp_update(struct file_stamp *stamp, const char *path)
{
    struct file_stamp now = file_stamp_get(path), old = *stamp;
    *stamp = now;
    return now.device != old.device || now.inode != old.inode || now.size != old.size ||
           now.changed_ns != old.changed_ns;
}

static enum status file_check(const char *path, bool secret, const struct stat *info)
{
    if (!S_ISREG(info->st_mode)) return status_fail(STATUS_INVALID, "%s: must be a file", path);
    if (secret && info->st_mode & S_IROTH)
        return status_fail(STATUS_INVALID, "%s: every user can read this secret: chmod o= it", path);
    if (info->st_size > FILE_SECRET_BYTES_MAX)
        return status_fail(STATUS_INVALID, "%s has %lld bytes: must have at most %d", path, (long long)info->st_size,
                           FILE_SECRET_BYTES_MAX);
    return STATUS_OK;
}

// Reads at most `room` bytes until the end of the file, which may have grown or shrunk meanwhile.
static enum status fd_read(int fd, const char *path, char *text, size_t room)
{
    size_t size = 0;
    for (ssize_t got; size < room && (got = read(fd, text + size, room - size)) != 0;) {
        if (got < 0 && errno != EINTR) return status_fail(STATUS_INVALID, "%s: %s", path, strerror(errno));
        size += got > 0 ? (size_t)got : 0;
    }
    return STATUS_OK;
}

enum status file_read_small(const char *path, bool secret, char **text_p)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: a pipe must not block
    struct stat info;
    if (fd < 0 || fstat(fd, &info)) {
        int reason = errno;
        if (fd >= 0) close(fd);
        return status_fail(file_open_status(reason), "%s: %s", path, strerror(reason));
    }
    enum status status = file_check(path, secret, &info);
    char *text = NULL;
    if (status == STATUS_OK) {
        text = mem_alloc((size_t)info.st_size + 1);
        status = fd_read(fd, path, text, (size_t)info.st_size);
    }
    close(fd);
    if (status == STATUS_OK)
        *text_p = text;
    else
        free(text);
    return status;
}

enum status secret_file_read(const char *path, char **secret_p)
{
    static const char white[] = " \t\r\n";
    char *text;
    TRY(file_read_small(path, true, &text));
    char *start = text + strspn(text, white);
    size_t size = strcspn(start, white);
    bool single = size && !start[size + strspn(start + size, white)];
    if (single) *secret_p = mem_format("%.*s", (int)size, start);
    explicit_bzero(text, strlen(text));
    free(text);
    return single ? STATUS_OK : status_fail(STATUS_INVALID, "%s: must have one line with one word, the secret", path);
}
