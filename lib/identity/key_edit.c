// SPDX-License-Identifier: Apache-2.0
// See key_file.h. Changes the file: the new text is written to a new file in the same folder, checked, synced and
// renamed over the old file. So a reader finds the old file or the new file.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/new_file.h"
#include "lib/identity/key_text.h"

// --- the lock is on the file itself, and another process may have renamed a new file over the opened file

static bool is_current(int fd, const char *path)
{
    struct stat mine, now;
    return fstat(fd, &mine) == 0 && lstat(path, &now) == 0 && mine.st_ino == now.st_ino && mine.st_dev == now.st_dev;
}

static enum status open_failed(const char *path)
{
    if (errno == ELOOP)
        return status_fail(STATUS_INVALID, "%s is a symbolic link: name the file that it points to", path);
    return status_fail(errno == ENOENT ? STATUS_NOT_FOUND : STATUS_INVALID, "%s: %s", path, strerror(errno));
}

enum status key_file_lock(const char *path, bool create, int *fd_p)
{
    for (;;) {
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0), S_IRUSR | S_IWUSR);
        if (fd < 0) return open_failed(path);
        while (flock(fd, LOCK_EX) && errno == EINTR)
            continue;
        if (is_current(fd, path)) {
            *fd_p = fd;
            return STATUS_OK;
        }
        close(fd);
    }
}

void key_file_unlock(int fd)
{
    close(fd);
}

// --- replacing the file

static enum status write_all(int fd, const char *text, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, text + done, size - done);
        if (n < 0 && errno != EINTR) return status_fail(STATUS_INVALID, "%s", strerror(errno));
        if (n > 0) done += (size_t)n;
    }
    return STATUS_OK;
}

// Fills the new file. The new file gets the old file's owner and permissions if this process may change the owner.
// Otherwise only this user may read it.
static enum status fill(int fd, int old_fd, const char *text, size_t size)
{
    struct stat old;
    if (fstat(old_fd, &old)) return status_fail(STATUS_INVALID, "%s", strerror(errno));
    if (fchown(fd, old.st_uid, old.st_gid) == 0) fchmod(fd, old.st_mode & (S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH));
    return write_all(fd, text, size);
}

static enum status replace(const char *path, int old_fd, const char *text, size_t size)
{
    struct key_file check;
    TRY(key_file_parse(text, size, &check));
    key_file_fini(&check);
    struct new_file file;
    TRY(new_file_open(&file, path));
    enum status status = fill(file.fd, old_fd, text, size);
    if (status == STATUS_OK) return new_file_commit(&file);
    new_file_discard(&file);
    return status;
}

// --- edits

static const struct api_key *find(const struct key_file *file, const char *id, const uint8_t *hash)
{
    for (int i = 0; i < file->n; i++) {
        const struct api_key *key = &file->keys[i];
        if (strcmp(key->id, id) == 0 || (hash && memcmp(key->hash, hash, KEY_HASH_BYTES) == 0)) return key;
    }
    return NULL;
}

// Reads and checks the locked file, then calls `edit`, which makes the new text. The caller owns the text.
typedef enum status edit_fn(const struct key_file *keys, const char *text, size_t size, const void *user, char **new_p);

static enum status edit(const char *path, int fd, edit_fn *change, const void *user)
{
    char *text, *changed = NULL;
    size_t size;
    struct key_file keys;
    enum status status = key_fd_read(fd, &text, &size);
    if (status != STATUS_OK) return status_context(status, "%s", path);
    status = key_file_parse(text, size, &keys);
    if (status == STATUS_OK) {
        status = change(&keys, text, size, user, &changed);
        key_file_fini(&keys);
    }
    if (status == STATUS_OK) status = replace(path, fd, changed, strlen(changed));
    free(changed);
    free(text);
    return status == STATUS_OK ? status : status_context(status, "%s", path);
}

static enum status add_line(const struct key_file *keys, const char *text, size_t size, const void *user, char **new_p)
{
    const struct api_key *key = user;
    if (find(keys, key->id, key->hash))
        return status_fail(STATUS_INVALID, "the id %s is taken: choose another one", key->id);
    char *line = api_key_format(key);
    *new_p = mem_format("%.*s%s%s\n", (int)size, text, size && text[size - 1] != '\n' ? "\n" : "", line);
    free(line);
    return STATUS_OK;
}

enum status key_file_add(const char *path, int fd, const struct api_key *key)
{
    return edit(path, fd, add_line, key);
}

// Returns the offset of the end of the key's line. The id is the first word of the line.
static size_t line_end(const char *text, size_t size, const char *id)
{
    size_t length = strlen(id), at = 0;
    while (at < size) {
        const char *feed = memchr(text + at, '\n', size - at);
        size_t end = feed ? (size_t)(feed - text) : size, start = at + strspn(text + at, " \t");
        if (end - start > length && memcmp(text + start, id, length) == 0 && strchr(" \t", text[start + length]))
            return end > start && text[end - 1] == '\r' ? end - 1 : end;
        at = end + 1;
    }
    return size;
}

static enum status mark_revoked(const struct key_file *keys, const char *text, size_t size, const void *user,
                                char **new_p)
{
    const char *id = user;
    const struct api_key *key = find(keys, id, NULL);
    if (!key) return status_fail(STATUS_NOT_FOUND, "there is no key with the id %s: forepack keys list shows them", id);
    size_t end = line_end(text, size, id);
    *new_p = mem_format("%.*s%s%.*s", (int)end, text, key->revoked ? "" : " revoked", (int)(size - end), text + end);
    return STATUS_OK;
}

enum status key_file_revoke(const char *path, int fd, const char *id)
{
    return edit(path, fd, mark_revoked, id);
}
