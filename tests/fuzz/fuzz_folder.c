// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

static char folder[64];
static int folder_fd = -1;

static int file_remove(const char *path, const struct stat *info, int type, struct FTW *place)
{
    return remove(path);
}

static void folder_remove(void)
{
    nftw(folder, file_remove, 4, FTW_DEPTH | FTW_PHYS);
}

const char *fuzz_folder(void)
{
    if (folder_fd >= 0) return folder;
    snprintf(folder, sizeof folder, "%s/forepack-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    FUZZ_CHECK(mkdtemp(folder));
    folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    FUZZ_CHECK(folder_fd >= 0);
    atexit(folder_remove);
    return folder;
}

void fuzz_folder_make(const char *name)
{
    fuzz_folder();
    FUZZ_CHECK(mkdirat(folder_fd, name, 0700) == 0 || errno == EEXIST);
}

void fuzz_folder_put(const char *name, const uint8_t *bytes, size_t n)
{
    fuzz_folder();
    int fd = openat(folder_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && close(fd) == 0);
}

void fuzz_folder_drop(const char *name)
{
    fuzz_folder();
    unlinkat(folder_fd, name, 0);
}
