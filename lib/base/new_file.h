// SPDX-License-Identifier: Apache-2.0
// Files that are replaced in one step, and cache files that are only used if no other user can have written them.
//
//     struct new_file file;
//     TRY(new_file_open(&file, path));
//     ... write(file.fd) ...
//     status = new_file_commit(&file); // or new_file_discard(&file)
//
// Any thread. Paths are copied. A failure's message has only the reason: callers add the path.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"

struct new_file {
    int fd; // open for writing; owned
    char *path, *temporary;
};

// Creates a file of mode 0600 with a random name beside `path` (mkostemp: it follows no link and opens no existing
// file) and locks it (flock) until it is closed, where the file system has locks. INVALID if that fails, or if every
// user may replace files in the folder. After a failure do not call new_file_discard().
enum status new_file_open(struct new_file *file, const char *path);

// Syncs the file, renames it to `path` and syncs the folder. `file` is closed in any case; after INVALID
// `path` is unchanged.
enum status new_file_commit(struct new_file *file);
void new_file_discard(struct new_file *file);

// Removes what new_file_open() of this path and user has left behind in processes that were killed: files of its names
// that no process has locked.
void new_file_remove_leftovers(const char *path);

void folder_sync(const char *path); // the folder of this file: a rename in it survives a crash of the machine

// Opens a cache file of an earlier start for reading, without following a link. The file and its folder must belong to
// this user or root, and no other user may write it. trust_folder_owner: they may belong to any one user, for caches
// beside a model that this user owns. -1: *wrong_p is the reason, a constant string or strerror(errno); NULL if there
// is no file.
int cache_file_open(const char *path, bool trust_folder_owner, const char **wrong_p);
