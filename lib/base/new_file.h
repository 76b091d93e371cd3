// SPDX-License-Identifier: Apache-2.0
// Replaces files in one step, and opens cache files only if no other user can have written them.
//
//     struct new_file file;
//     TRY(new_file_open(&file, path));
//     ... write(file.fd) ...
//     status = new_file_commit(&file); // or new_file_discard(&file)
//
// Any thread may call. Paths are copied. The message of a failure has only the reason: callers add the path.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"

struct new_file {
    int fd; // open for writing; owned
    char *path, *temporary;
};

// Creates a file of mode 0600 with a random name next to `path` (mkostemp follows no link and opens no existing file).
// Locks it (flock) until it is closed, if the file system has locks. Returns INVALID if the file cannot be created, or
// if every user may replace files in the folder. After a failure do not call new_file_discard().
enum status new_file_open(struct new_file *file, const char *path);

// Lets other users read the file, if the umask allows it. The umask can be read only by changing it for a moment, so no
// other thread may create files meanwhile.
void new_file_share(const struct new_file *file);

// Syncs the file, renames it to `path` and syncs the folder. Closes `file` in any case. After INVALID, `path` is
// unchanged.
enum status new_file_commit(struct new_file *file);
void new_file_discard(struct new_file *file);

// Removes temporary files for `path` that were left by killed processes of this user. Such files have names as
// new_file_open() makes them, and no process has locked them.
void new_file_remove_leftovers(const char *path);

// Syncs the folder of this file, so that a rename in it survives a crash of the machine.
void folder_sync(const char *path);

// Opens a cache file that an earlier process wrote, for reading and without following a link. The file and its folder
// must belong to this user or root, and no other user may be able to write the file. With trust_folder_owner, the
// folder may belong to any user, and that user may also own the file. This is for caches next to a model. Returns -1
// with the reason in *wrong_p, a constant string or strerror(errno). *wrong_p is NULL if there is no file.
int cache_file_open(const char *path, bool trust_folder_owner, const char **wrong_p);
