// SPDX-License-Identifier: Apache-2.0
// The files of POST /v1/files in the folder of --batch-dir. Each file belongs to a tenant.
//
//   files/ID        the content; its name makes the file exist
//   files/ID.json   tenant, name, purpose and times; written before the content gets its name
//   files/ID.part   the content of an unfinished upload
//
// A crash at any point leaves a whole file or none: file_store_open() removes what an unfinished upload or deletion
// left. The name that a client gave is stored as text and is never part of a path.
//
// The bytes and files of a tenant and of all tenants are bounded. A full disk and a reached bound give EXHAUSTED.
//
// Threads: any thread may call. Functions that read or write the disk may block; file_store_get() and file_store_list()
// do not.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "router/batch/batch_id.h"

enum { FILE_NAME_BYTES = 1024 }; // longest name of a file

struct file_store;
struct file_upload;

struct file_store_options {
    const char *folder;
    uint64_t file_bytes, tenant_bytes, total_bytes; // limits of one file, of a tenant, of all tenants
    int tenant_files, total_files;
};

// A file as the API shows it. file_info_fini() frees the texts.
struct file_info {
    char id[BATCH_ID_ROOM];
    char *tenant, *name, *purpose;
    uint64_t bytes;
    int64_t created_us; // Unix time
    int64_t expires_s;  // Unix time; 0: never
};
void file_info_fini(struct file_info *info);

struct file_query {
    const char *tenant, *purpose; // purpose NULL: any
    const char *after;            // id after which the list starts; NULL: the start
    int limit;
    bool oldest_first;
};

// Opens the folder and creates it if it does not exist. Returns INVALID if it cannot be used, or if another router uses
// it.
enum status file_store_open(const struct file_store_options *options, struct file_store **store_p);
void file_store_close(struct file_store *store); // NULL is allowed
const char *file_store_folder(const struct file_store *store);

// --- uploads
enum status file_upload_begin(struct file_store *store, const char *tenant, struct file_upload **upload_p);
enum status file_upload_write(struct file_upload *upload, const char *bytes, size_t size);
// Stores the file. Uses name, purpose and expires_s of `info`, and sets the other members. The upload ends in any case.
enum status file_upload_commit(struct file_upload *upload, struct file_info *info);
void file_upload_discard(struct file_upload *upload); // NULL is allowed

// --- files; NOT_FOUND if the tenant has no such file
enum status file_store_get(struct file_store *store, const char *tenant, const char *id, struct file_info *info_p);
enum status file_store_delete(struct file_store *store, const char *tenant, const char *id);
enum status file_store_read(struct file_store *store, const char *tenant, const char *id, int *fd_p);
// Gives the content a second name (a hard link), which stays when the file is deleted.
enum status file_store_link(struct file_store *store, const char *tenant, const char *id, const char *path);
// Returns up to query->limit files [*n_p]; the caller frees each and the list. Returns NOT_FOUND if `after` is no file
// of the tenant.
enum status file_store_list(struct file_store *store, const struct file_query *query, struct file_info **list_p,
                            int *n_p, bool *more_p);
void file_store_expire(struct file_store *store, int64_t now_s); // deletes expired files

// --- results of batches, which grow outside the store until their batch ends
// Adds to the bytes of a tenant. Returns EXHAUSTED if a bound is reached.
enum status file_store_charge(struct file_store *store, const char *tenant, uint64_t bytes);
void file_store_note(struct file_store *store, const char *tenant, uint64_t bytes); // charges without a check
void file_store_refund(struct file_store *store, const char *tenant, uint64_t bytes);
// Makes the file at `path` the content of the new file info->id. Its bytes were charged. Does nothing if the file
// exists.
enum status file_store_adopt(struct file_store *store, const char *path, const struct file_info *info);

struct file_store_use {
    int files;
    uint64_t bytes;
};
struct file_store_use file_store_get_use(struct file_store *store);
