// SPDX-License-Identifier: Apache-2.0
#include "lib/base/journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

// `stream` is DEVICE:INODE.
static bool file_is(const char *stream, const struct stat *file)
{
    unsigned long long device, inode;
    if (sscanf(stream, "%llu:%llu", &device, &inode) != 2) return false;
    return device == file->st_dev && inode == file->st_ino;
}

bool journal_is_stderr(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat file;
    char path[64];
    if (!stream) return false;
    if (fstat(STDERR_FILENO, &file) == 0 && file_is(stream, &file)) return true;
    if (!getenv("OMPI_COMM_WORLD_RANK")) return false;
    snprintf(path, sizeof path, "/proc/%d/fd/2", (int)getppid());
    return stat(path, &file) == 0 && file_is(stream, &file);
}
