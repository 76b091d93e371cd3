// SPDX-License-Identifier: Apache-2.0
// A temporary folder for tests of files and batches, and whole files in it.
#pragma once

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "router/batch/file_store.h"
#include "tests/suite.h"

static char batch_folder[64];
static struct file_store *store;

static const struct file_store_options store_defaults = {.folder = batch_folder,
                                                         .file_bytes = 1 << 20,
                                                         .tenant_bytes = 3 << 20,
                                                         .total_bytes = 4 << 20,
                                                         .tenant_files = 8,
                                                         .total_files = 12};

static inline void store_open(const struct file_store_options *options)
{
    ck_assert_msg(file_store_open(options, &store) == STATUS_OK, "%s", status_message());
}

static inline void folder_create(void)
{
    snprintf(batch_folder, sizeof batch_folder, "/tmp/check_batch.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(batch_folder));
    store_open(&store_defaults);
}

static inline int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    return remove(path);
}

static inline void folder_remove(void)
{
    file_store_close(store);
    store = NULL;
    nftw(batch_folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static inline void store_reopen(void)
{
    file_store_close(store);
    store_open(&store_defaults);
}

// Stores a file and returns its id in `id`.
static inline enum status store_text(const char *tenant, const char *name, const char *text, char id[BATCH_ID_ROOM])
{
    struct file_upload *upload;
    struct file_info info = {.name = mem_string(name), .purpose = mem_string("batch")};
    enum status status = file_upload_begin(store, tenant, &upload);
    if (status == STATUS_OK) {
        status = file_upload_write(upload, text, strlen(text));
        if (status == STATUS_OK)
            status = file_upload_commit(upload, &info);
        else
            file_upload_discard(upload);
    }
    if (status == STATUS_OK) memcpy(id, info.id, sizeof info.id);
    file_info_fini(&info);
    return status;
}

// Returns the text of a stored file, or NULL. The caller frees it.
static inline char *stored_text(const char *tenant, const char *id)
{
    int fd;
    if (file_store_read(store, tenant, id, &fd) != STATUS_OK) return NULL;
    char *text = mem_alloc(4 << 20);
    ssize_t n = 0, size = 0;
    while ((n = read(fd, text + size, (4 << 20) - 1 - (size_t)size)) > 0)
        size += n;
    close(fd);
    return text;
}
