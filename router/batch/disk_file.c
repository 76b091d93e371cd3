// SPDX-License-Identifier: Apache-2.0
#include "router/batch/disk_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/new_file.h"

enum status disk_fail(const char *what)
{
    bool full = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
    return status_fail(full ? STATUS_EXHAUSTED : STATUS_INTERNAL, "%s: %s", what, strerror(errno));
}

enum status disk_write(int fd, const char *bytes, size_t size)
{
    while (size) {
        ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return disk_fail("the folder of --batch-dir cannot be written");
        bytes += n;
        size -= (size_t)n;
    }
    return STATUS_OK;
}

enum status disk_save_json(const char *path, const json_t *object)
{
    struct new_file file;
    char *text = json_dumps(object, JSON_COMPACT);
    if (!text) return status_fail(STATUS_INTERNAL, "%s: a text is not UTF-8", path);
    enum status status = new_file_open(&file, path);
    if (status == STATUS_OK) {
        status = disk_write(file.fd, text, strlen(text));
        if (status == STATUS_OK)
            status = new_file_commit(&file);
        else
            new_file_discard(&file);
    }
    free(text);
    if (status == STATUS_INVALID) return status_fail(STATUS_EXHAUSTED, "%s: %s", path, status_message());
    return status;
}
