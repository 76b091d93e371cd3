// SPDX-License-Identifier: Apache-2.0
#include "router/batch/file_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/new_file.h"
#include "lib/text/json_file.h"
#include "router/batch/disk_file.h"

enum { RECORD_BYTES_MAX = 64 << 10 };

struct tenant_use {
    char *tenant;
    uint64_t bytes;
    int files;
};

struct file_store {
    struct file_store_options o;
    char *folder, *files; // DIR, DIR/files
    int lock_fd;
    pthread_mutex_t lock;   // guards the members below
    struct file_info *list; // [n] oldest first
    int n, capacity;
    struct tenant_use *uses; // [n_uses] tenants that have files
    int n_uses, uses_capacity;
    uint64_t bytes;
    int uploads; // they count as files
};

struct file_upload {
    struct file_store *store;
    char id[BATCH_ID_ROOM];
    char *tenant, *part; // path of the unfinished content
    int fd;
    uint64_t bytes;
};

void file_info_fini(struct file_info *info)
{
    free(info->tenant);
    free(info->name);
    free(info->purpose);
    *info = (struct file_info){.bytes = 0};
}

static struct file_info info_copy(const struct file_info *from)
{
    struct file_info info = *from;
    info.tenant = mem_string(from->tenant);
    info.name = mem_string(from->name);
    info.purpose = mem_string(from->purpose);
    return info;
}

static char *path_of(const struct file_store *store, const char *id, const char *suffix)
{
    return mem_format("%s/%s%s", store->files, id, suffix);
}

// --- use of the bounds. The caller holds the lock.

static struct tenant_use *use_of(struct file_store *store, const char *tenant)
{
    for (int i = 0; i < store->n_uses; i++)
        if (strcmp(store->uses[i].tenant, tenant) == 0) return &store->uses[i];
    MEM_GROW(store->uses, store->n_uses, store->uses_capacity);
    store->uses[store->n_uses] = (struct tenant_use){.tenant = mem_string(tenant)};
    return &store->uses[store->n_uses++];
}

static void use_drop(struct file_store *store, const char *tenant, uint64_t bytes, int files)
{
    struct tenant_use *use = use_of(store, tenant);
    use->bytes -= bytes < use->bytes ? bytes : use->bytes;
    use->files -= files;
    store->bytes -= bytes < store->bytes ? bytes : store->bytes;
    if (use->bytes || use->files > 0) return;
    free(use->tenant);
    *use = store->uses[--store->n_uses];
}

static void use_add(struct file_store *store, const char *tenant, uint64_t bytes, int files)
{
    struct tenant_use *use = use_of(store, tenant);
    use->bytes += bytes;
    use->files += files;
    store->bytes += bytes;
}

static enum status check_bytes(struct file_store *store, const char *tenant, uint64_t bytes)
{
    const struct file_store_options *o = &store->o;
    if (use_of(store, tenant)->bytes + bytes > o->tenant_bytes)
        return status_fail(STATUS_EXHAUSTED, "your files and results may have %llu MiB together: delete files",
                           (unsigned long long)o->tenant_bytes >> 20);
    if (store->bytes + bytes > o->total_bytes)
        return status_fail(STATUS_EXHAUSTED, "the files of all tenants may have %llu MiB together: try again later",
                           (unsigned long long)o->total_bytes >> 20);
    return STATUS_OK;
}

enum status file_store_charge(struct file_store *store, const char *tenant, uint64_t bytes)
{
    pthread_mutex_lock(&store->lock);
    enum status status = check_bytes(store, tenant, bytes);
    if (status == STATUS_OK) use_add(store, tenant, bytes, 0);
    pthread_mutex_unlock(&store->lock);
    return status;
}

void file_store_note(struct file_store *store, const char *tenant, uint64_t bytes)
{
    pthread_mutex_lock(&store->lock);
    use_add(store, tenant, bytes, 0);
    pthread_mutex_unlock(&store->lock);
}

void file_store_refund(struct file_store *store, const char *tenant, uint64_t bytes)
{
    pthread_mutex_lock(&store->lock);
    use_drop(store, tenant, bytes, 0);
    pthread_mutex_unlock(&store->lock);
}

static enum status files_reserve(struct file_store *store, const char *tenant)
{
    const struct file_store_options *o = &store->o;
    pthread_mutex_lock(&store->lock);
    bool own = use_of(store, tenant)->files < o->tenant_files, all = store->n + store->uploads < o->total_files;
    if (own && all) {
        use_add(store, tenant, 0, 1);
        store->uploads++;
    }
    pthread_mutex_unlock(&store->lock);
    if (!own)
        return status_fail(STATUS_EXHAUSTED, "you have %d files, the limit: delete files that you no longer need",
                           o->tenant_files);
    return all ? STATUS_OK
               : status_fail(STATUS_EXHAUSTED, "all tenants have %d files, the limit: try again later", o->total_files);
}

// --- the list. The caller holds the lock.

static bool is_older(const struct file_info *a, const struct file_info *b)
{
    return a->created_us != b->created_us ? a->created_us < b->created_us : strcmp(a->id, b->id) < 0;
}

static void list_add(struct file_store *store, const struct file_info *info)
{
    MEM_GROW(store->list, store->n, store->capacity);
    int at = store->n++;
    for (; at > 0 && is_older(info, &store->list[at - 1]); at--)
        store->list[at] = store->list[at - 1];
    store->list[at] = *info;
}

static int list_find(const struct file_store *store, const char *tenant, const char *id)
{
    int64_t now_s = (int64_t)time(NULL);
    for (int i = 0; i < store->n; i++) {
        const struct file_info *info = &store->list[i];
        if (strcmp(info->id, id) != 0) continue;
        bool expired = info->expires_s && info->expires_s <= now_s;
        return strcmp(info->tenant, tenant) == 0 && !expired ? i : -1;
    }
    return -1;
}

static enum status no_file(const char *id)
{
    return status_fail(STATUS_NOT_FOUND, "there is no file '%.64s'", id);
}

// --- records

static enum status record_save(const struct file_store *store, const struct file_info *info)
{
    char *path = path_of(store, info->id, ".json");
    json_t *record = json_pack("{ss, ss, ss, sI, sI, sI}", "tenant", info->tenant, "filename", info->name, "purpose",
                               info->purpose, "bytes", (json_int_t)info->bytes, "created_us",
                               (json_int_t)info->created_us, "expires_at", (json_int_t)info->expires_s);
    enum status status = disk_save_json(path, record);
    json_decref(record);
    free(path);
    return status;
}

static enum status record_read(const char *path, struct file_info *info)
{
    json_t *record;
    const char *tenant, *name, *purpose;
    json_int_t bytes, created_us, expires_s;
    TRY(json_file_read(path, RECORD_BYTES_MAX, &record));
    bool sound = json_unpack(record, "{ss, ss, ss, sI, sI, sI}", "tenant", &tenant, "filename", &name, "purpose",
                             &purpose, "bytes", &bytes, "created_us", &created_us, "expires_at", &expires_s) == 0;
    if (sound) {
        info->tenant = mem_string(tenant);
        info->name = mem_string(name);
        info->purpose = mem_string(purpose);
        info->bytes = (uint64_t)bytes;
        info->created_us = created_us;
        info->expires_s = expires_s;
    }
    json_decref(record);
    return sound ? STATUS_OK : status_fail(STATUS_DATA, "%s: a member is missing or has a wrong type", path);
}

static void remove_names(const struct file_store *store, const char *id)
{
    static const char *const suffixes[] = {"", ".json", ".part"}; // the content first: without it there is no file
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        char *path = path_of(store, id, suffixes[i]);
        unlink(path);
        free(path);
    }
}

// --- opening

// Loads the file of a record. Removes what is left of a file without content.
static void load(struct file_store *store, const char *id)
{
    struct file_info info = {.bytes = 0};
    struct stat content;
    char *record = path_of(store, id, ".json"), *path = path_of(store, id, "");
    snprintf(info.id, sizeof info.id, "%s", id);
    if (stat(path, &content) != 0) {
        remove_names(store, id);
    } else if (record_read(record, &info) != STATUS_OK) {
        log_event(LOG_ERROR, "batch_file_refused", LOG_FIELD("file", id), LOG_REASON);
    } else {
        info.bytes = (uint64_t)content.st_size;
        list_add(store, &info);
        use_add(store, info.tenant, info.bytes, 1);
    }
    free(record);
    free(path);
}

static void load_entry(struct file_store *store, const char *name)
{
    char id[BATCH_ID_ROOM];
    const char *dot = strchr(name, '.');
    if (!dot || (size_t)(dot - name) >= sizeof id) return;
    snprintf(id, sizeof id, "%.*s", (int)(dot - name), name);
    if (!batch_id_valid(FILE_ID_PREFIX, id)) return;
    char *path = mem_format("%s/%s", store->files, name);
    if (strcmp(dot, ".json") == 0)
        load(store, id);
    else // an unfinished upload, or a temporary record
        unlink(path);
    free(path);
}

static enum status load_all(struct file_store *store)
{
    struct dirent **names;
    int n = scandir(store->files, &names, NULL, NULL);
    if (n < 0) return status_fail(STATUS_INVALID, "--batch-dir %s: %s", store->files, strerror(errno));
    for (int i = 0; i < n; i++) {
        load_entry(store, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return STATUS_OK;
}

static enum status make_folder(const char *path)
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--batch-dir %s: %s", path, strerror(errno));
}

static enum status lock_folder(struct file_store *store)
{
    char *path = mem_format("%s/lock", store->folder);
    store->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int error = errno;
    free(path);
    if (store->lock_fd < 0) return status_fail(STATUS_INVALID, "--batch-dir %s: %s", store->folder, strerror(error));
    if (flock(store->lock_fd, LOCK_EX | LOCK_NB) == 0) return STATUS_OK;
    return status_fail(STATUS_INVALID, "--batch-dir %s: another router uses it", store->folder);
}

enum status file_store_open(const struct file_store_options *options, struct file_store **store_p)
{
    struct file_store *store = mem_alloc(sizeof *store);
    store->o = *options;
    store->folder = mem_string(options->folder);
    store->o.folder = store->folder;
    store->files = mem_format("%s/files", options->folder);
    store->lock_fd = -1;
    pthread_mutex_init(&store->lock, NULL);
    signal(SIGXFSZ, SIG_IGN); // a write beyond the limit of a file's size then fails like one on a full disk
    enum status status = make_folder(store->folder);
    if (status == STATUS_OK) status = make_folder(store->files);
    if (status == STATUS_OK) status = lock_folder(store);
    if (status == STATUS_OK) status = load_all(store);
    if (status == STATUS_OK)
        *store_p = store;
    else
        file_store_close(store);
    return status;
}

void file_store_close(struct file_store *store)
{
    if (!store) return;
    for (int i = 0; i < store->n; i++)
        file_info_fini(&store->list[i]);
    for (int i = 0; i < store->n_uses; i++)
        free(store->uses[i].tenant);
    if (store->lock_fd >= 0) close(store->lock_fd);
    pthread_mutex_destroy(&store->lock);
    free(store->list);
    free(store->uses);
    free(store->folder);
    free(store->files);
    free(store);
}

const char *file_store_folder(const struct file_store *store)
{
    return store->folder;
}

// --- uploads

static void upload_free(struct file_upload *upload)
{
    if (upload->fd >= 0) close(upload->fd);
    free(upload->tenant);
    free(upload->part);
    free(upload);
}

static void upload_unreserve(struct file_upload *upload)
{
    struct file_store *store = upload->store;
    pthread_mutex_lock(&store->lock);
    store->uploads--;
    use_drop(store, upload->tenant, upload->bytes, 1);
    pthread_mutex_unlock(&store->lock);
}

enum status file_upload_begin(struct file_store *store, const char *tenant, struct file_upload **upload_p)
{
    TRY(files_reserve(store, tenant));
    struct file_upload *upload = mem_alloc(sizeof *upload);
    upload->store = store;
    upload->tenant = mem_string(tenant);
    batch_id_make(FILE_ID_PREFIX, upload->id);
    upload->part = path_of(store, upload->id, ".part");
    upload->fd = open(upload->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (upload->fd >= 0) {
        *upload_p = upload;
        return STATUS_OK;
    }
    enum status status = disk_fail("the file cannot be created");
    upload_unreserve(upload);
    upload_free(upload);
    return status;
}

enum status file_upload_write(struct file_upload *upload, const char *bytes, size_t size)
{
    struct file_store *store = upload->store;
    if (upload->bytes + size > store->o.file_bytes)
        return status_fail(STATUS_OUT_OF_RANGE, "file: larger than %llu MiB, the limit of a file",
                           (unsigned long long)store->o.file_bytes >> 20);
    TRY(file_store_charge(store, upload->tenant, size));
    upload->bytes += size;
    return disk_write(upload->fd, bytes, size);
}

void file_upload_discard(struct file_upload *upload)
{
    if (!upload) return;
    unlink(upload->part);
    upload_unreserve(upload);
    upload_free(upload);
}

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

// Makes the file exist: syncs the content, writes the record, and gives the content its name.
static enum status publish(const struct file_store *store, const char *part, int fd, const struct file_info *info)
{
    if (fsync(fd) != 0) return disk_fail("the file cannot be synced");
    TRY(record_save(store, info));
    char *path = path_of(store, info->id, "");
    enum status status = rename(part, path) == 0 ? STATUS_OK : disk_fail("the file cannot be renamed");
    if (status == STATUS_OK) folder_sync(path);
    free(path);
    if (status != STATUS_OK) remove_names(store, info->id);
    return status;
}

enum status file_upload_commit(struct file_upload *upload, struct file_info *info)
{
    struct file_store *store = upload->store;
    memcpy(info->id, upload->id, sizeof info->id);
    info->tenant = mem_string(upload->tenant);
    info->bytes = upload->bytes;
    info->created_us = now_us();
    if (info->expires_s) info->expires_s += info->created_us / 1000000;
    enum status status = publish(store, upload->part, upload->fd, info);
    if (status != STATUS_OK) {
        file_upload_discard(upload);
        return status;
    }
    struct file_info row = info_copy(info);
    pthread_mutex_lock(&store->lock);
    store->uploads--;
    list_add(store, &row);
    pthread_mutex_unlock(&store->lock);
    upload_free(upload);
    return STATUS_OK;
}

enum status file_store_adopt(struct file_store *store, const char *path, const struct file_info *info)
{
    struct file_info row = info_copy(info);
    struct stat content;
    char *name = path_of(store, info->id, "");
    bool exists = stat(name, &content) == 0;
    int fd = exists ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    enum status status = exists || fd >= 0 ? STATUS_OK : disk_fail(path);
    if (fd >= 0 && fstat(fd, &content) == 0) {
        row.bytes = (uint64_t)content.st_size;
        status = publish(store, path, fd, &row);
    }
    if (fd >= 0) close(fd);
    free(name);
    if (exists || status != STATUS_OK) {
        file_info_fini(&row);
        return status;
    }
    pthread_mutex_lock(&store->lock);
    list_add(store, &row);
    use_add(store, row.tenant, 0, 1);
    pthread_mutex_unlock(&store->lock);
    return STATUS_OK;
}

// --- files

enum status file_store_get(struct file_store *store, const char *tenant, const char *id, struct file_info *info_p)
{
    pthread_mutex_lock(&store->lock);
    int at = list_find(store, tenant, id);
    if (at >= 0) *info_p = info_copy(&store->list[at]);
    pthread_mutex_unlock(&store->lock);
    return at >= 0 ? STATUS_OK : no_file(id);
}

// Removes the row `at` and returns it. The caller holds the lock.
static struct file_info list_remove(struct file_store *store, int at)
{
    struct file_info info = store->list[at];
    memmove(store->list + at, store->list + at + 1, (size_t)(--store->n - at) * sizeof *store->list);
    use_drop(store, info.tenant, info.bytes, 1);
    return info;
}

enum status file_store_delete(struct file_store *store, const char *tenant, const char *id)
{
    struct file_info info = {.bytes = 0};
    pthread_mutex_lock(&store->lock);
    int at = list_find(store, tenant, id);
    if (at >= 0) info = list_remove(store, at);
    pthread_mutex_unlock(&store->lock);
    if (at < 0) return no_file(id);
    remove_names(store, info.id);
    file_info_fini(&info);
    return STATUS_OK;
}

void file_store_expire(struct file_store *store, int64_t now_s)
{
    for (bool found = true; found;) {
        struct file_info info = {.bytes = 0};
        found = false;
        pthread_mutex_lock(&store->lock);
        for (int i = 0; i < store->n && !found; i++) {
            found = store->list[i].expires_s && store->list[i].expires_s <= now_s;
            if (found) info = list_remove(store, i);
        }
        pthread_mutex_unlock(&store->lock);
        if (!found) break;
        remove_names(store, info.id);
        log_event(LOG_INFO, "batch_file_expired", LOG_FIELD("file", info.id));
        file_info_fini(&info);
    }
}

enum status file_store_read(struct file_store *store, const char *tenant, const char *id, int *fd_p)
{
    struct file_info info;
    TRY(file_store_get(store, tenant, id, &info));
    char *path = path_of(store, info.id, "");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    enum status status = fd >= 0 ? STATUS_OK : disk_fail("the file cannot be opened");
    if (fd >= 0) *fd_p = fd;
    free(path);
    file_info_fini(&info);
    return status;
}

enum status file_store_link(struct file_store *store, const char *tenant, const char *id, const char *path)
{
    struct file_info info;
    TRY(file_store_get(store, tenant, id, &info));
    char *content = path_of(store, info.id, "");
    enum status status = link(content, path) == 0 ? STATUS_OK : disk_fail("the input file cannot be linked");
    free(content);
    file_info_fini(&info);
    return status;
}

static bool query_has(const struct file_query *query, const struct file_info *info, int64_t now_s)
{
    bool expired = info->expires_s && info->expires_s <= now_s;
    return !expired && strcmp(info->tenant, query->tenant) == 0 &&
           (!query->purpose || strcmp(info->purpose, query->purpose) == 0);
}

enum status file_store_list(struct file_store *store, const struct file_query *query, struct file_info **list_p,
                            int *n_p, bool *more_p)
{
    int64_t now_s = (int64_t)time(NULL);
    int step = query->oldest_first ? 1 : -1, n = 0;
    pthread_mutex_lock(&store->lock);
    int at = query->after ? list_find(store, query->tenant, query->after) : query->oldest_first ? -1 : store->n;
    if (query->after && at < 0) {
        pthread_mutex_unlock(&store->lock);
        return no_file(query->after);
    }
    int room = query->limit < store->n ? query->limit : store->n;
    struct file_info *list = mem_alloc_array((size_t)room + 1, sizeof *list);
    *more_p = false;
    for (at += step; at >= 0 && at < store->n && !*more_p; at += step) {
        if (!query_has(query, &store->list[at], now_s)) continue;
        if (n < room)
            list[n++] = info_copy(&store->list[at]);
        else
            *more_p = true;
    }
    pthread_mutex_unlock(&store->lock);
    *list_p = list;
    *n_p = n;
    return STATUS_OK;
}

struct file_store_use file_store_get_use(struct file_store *store)
{
    pthread_mutex_lock(&store->lock);
    struct file_store_use use = {store->n, store->bytes};
    pthread_mutex_unlock(&store->lock);
    return use;
}
