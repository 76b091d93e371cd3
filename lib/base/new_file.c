// SPDX-License-Identifier: Apache-2.0
#include "lib/base/new_file.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"

static int folder_open(const char *path)
{
    char *copy = mem_string(path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = errno;
    free(copy);
    errno = error;
    return fd;
}

void folder_sync(const char *path)
{
    int fd = folder_open(path);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

// Returns NULL, or the reason why files in the folder of `path` are not trusted. Sets `folder` if the folder exists.
static const char *folder_check(const char *path, struct stat *folder)
{
    int fd = folder_open(path);
    if (fd < 0) return strerror(errno);
    bool known = fstat(fd, folder) == 0;
    close(fd);
    if (!known) return "the owner of its folder is unknown";
    bool replaceable = folder->st_mode & S_IWOTH && !(folder->st_mode & S_ISVTX);
    return replaceable ? "every user may replace files in its folder: chmod o-w it" : NULL;
}

// --- writing

#define TEMPORARY ".new-"
enum { RANDOM_LETTERS = 6 };

// Creates and locks a temporary file. The lock shows that the writer lives. Returns NULL if the caller has to try
// again: before the file was locked, another process took it for a leftover and removed it.
static char *temporary_create(const char *path, int *fd_p)
{
    char *name = mem_format("%s" TEMPORARY "XXXXXX", path);
    struct stat info;
    *fd_p = mkostemp(name, O_CLOEXEC);
    if (*fd_p < 0) return name;
    bool taken = flock(*fd_p, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!taken && (fstat(*fd_p, &info) != 0 || info.st_nlink > 0)) return name;
    close(*fd_p);
    free(name);
    return NULL;
}

enum status new_file_open(struct new_file *file, const char *path)
{
    struct stat folder;
    const char *wrong = folder_check(path, &folder);
    if (wrong) return status_fail(STATUS_INVALID, "%s", wrong);
    do {
        file->temporary = temporary_create(path, &file->fd);
    } while (!file->temporary);
    if (file->fd < 0) {
        enum status status = status_fail(STATUS_INVALID, "%s", strerror(errno));
        free(file->temporary);
        return status;
    }
    file->path = mem_string(path);
    return STATUS_OK;
}

void new_file_share(const struct new_file *file)
{
    const mode_t mask = umask(0);
    umask(mask);
    fchmod(file->fd, 0644 & ~mask);
}

static void new_file_end(struct new_file *file)
{
    close(file->fd);
    free(file->path);
    free(file->temporary);
}

void new_file_discard(struct new_file *file)
{
    unlink(file->temporary);
    new_file_end(file);
}

enum status new_file_commit(struct new_file *file)
{
    if (fsync(file->fd) != 0 || rename(file->temporary, file->path) != 0) {
        enum status status = status_fail(STATUS_INVALID, "%s", strerror(errno));
        new_file_discard(file);
        return status;
    }
    folder_sync(file->path);
    new_file_end(file);
    return STATUS_OK;
}

static bool is_temporary(const char *name, const char *of)
{
    size_t n = strlen(of), mark = strlen(TEMPORARY);
    if (strncmp(name, of, n) != 0 || strncmp(name + n, TEMPORARY, mark) != 0) return false;
    const char *letters = name + n + mark;
    for (int i = 0; i < RANDOM_LETTERS; i++)
        if (!isalnum((unsigned char)letters[i])) return false;
    return letters[RANDOM_LETTERS] == 0;
}

static void leftover_remove(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); // over NFS a lock needs write access
    struct stat info;
    if (fd < 0) return;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(folder, name, 0);
    close(fd);
}

void new_file_remove_leftovers(const char *path)
{
    int folder = folder_open(path);
    DIR *entries = folder >= 0 ? fdopendir(folder) : NULL;
    if (!entries) {
        if (folder >= 0) close(folder);
        return;
    }
    char *copy = mem_string(path);
    const char *of = basename(copy);
    for (const struct dirent *entry; (entry = readdir(entries));)
        if (is_temporary(entry->d_name, of)) leftover_remove(folder, entry->d_name);
    free(copy);
    closedir(entries);
}

// --- reading

static bool is_trusted(uid_t user)
{
    return user == geteuid() || user == 0;
}

static const char *cache_file_check(int fd, const char *path, bool trust_folder_owner)
{
    struct stat info, folder;
    const char *wrong = folder_check(path, &folder);
    if (wrong) return wrong;
    if (fstat(fd, &info) != 0) return strerror(errno);
    if (!S_ISREG(info.st_mode)) return "not a regular file";
    if (!trust_folder_owner && !is_trusted(folder.st_uid)) return "its folder belongs to another user";
    if (!is_trusted(info.st_uid) && !(trust_folder_owner && info.st_uid == folder.st_uid))
        return "it belongs to another user";
    return info.st_mode & (S_IWGRP | S_IWOTH) ? "other users may write it" : NULL;
}

int cache_file_open(const char *path, bool trust_folder_owner, const char **wrong_p)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); // O_NONBLOCK: open() of a pipe must not block
    *wrong_p = fd >= 0 ? cache_file_check(fd, path, trust_folder_owner) : errno == ENOENT ? NULL : strerror(errno);
    if (fd < 0 || !*wrong_p) return fd;
    close(fd);
    return -1;
}
