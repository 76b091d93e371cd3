// SPDX-License-Identifier: Apache-2.0
#include "lib/identity/quota_keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/new_file.h"
#include "lib/base/thread.h"
#include "lib/identity/quota_file.h"

enum { SAVE_INTERVAL_US = 1000000 };

struct quota_keeper {
    struct identity *identity;
    char *path;
    int folder_fd; // locked while the folder is used
    pthread_t thread;
    pthread_mutex_t mutex; // guards `stopping`
    pthread_cond_t changed;
    bool stopping;
    uint64_t saved_changes; // identity_count_charges() of the last save; the thread alone uses this and `failed`
    bool failed;            // the last save failed
};

static int64_t wall_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void quotas_save(struct quota_keeper *keeper)
{
    uint64_t changes = identity_count_charges();
    if (changes == keeper->saved_changes && !keeper->failed) return;
    struct quota_list list = {.saved_ms = wall_now_ms()};
    identity_get_quotas(keeper->identity, &list);
    bool saved = quota_file_write(keeper->path, &list) == STATUS_OK;
    if (!saved && !keeper->failed)
        log_event(LOG_ERROR, "quotas_not_saved", LOG_REASON,
                  LOG_FIELD("effect", "a restart would reset the daily quotas to those saved last"));
    if (saved && keeper->failed) log_event(LOG_INFO, "quotas_saved", LOG_FIELD("file", keeper->path));
    keeper->saved_changes = changes;
    keeper->failed = !saved;
    quota_list_fini(&list);
}

static void *keeper_thread(void *arg)
{
    struct quota_keeper *keeper = arg;
    pthread_mutex_lock(&keeper->mutex);
    for (bool stopping = false; !stopping;) {
        int64_t until_us = clock_now_us() + SAVE_INTERVAL_US;
        while (!keeper->stopping && monotonic_cond_wait(&keeper->changed, &keeper->mutex, until_us))
            continue;
        stopping = keeper->stopping;
        pthread_mutex_unlock(&keeper->mutex);
        quotas_save(keeper);
        pthread_mutex_lock(&keeper->mutex);
    }
    pthread_mutex_unlock(&keeper->mutex);
    return NULL;
}

static enum status folder_open(const char *folder, int *fd_p)
{
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return status_fail(STATUS_INVALID, "%s: %s", folder, strerror(errno));
    *fd_p = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd_p < 0) return status_fail(STATUS_INVALID, "%s: %s", folder, strerror(errno));
    if (flock(*fd_p, LOCK_EX | LOCK_NB) == 0) return STATUS_OK;
    close(*fd_p);
    return status_fail(STATUS_INVALID, "%s: another router uses it", folder);
}

static enum status quotas_load(struct quota_keeper *keeper)
{
    struct quota_list list;
    TRY(quota_file_read(keeper->path, &list));
    int64_t age_ms = list.n ? wall_now_ms() - list.saved_ms : 0; // negative if the wall clock was set back
    identity_set_quotas(keeper->identity, &list, age_ms > 0 ? age_ms : 0);
    log_event(LOG_INFO, "quotas_read", LOG_FIELD("file", keeper->path), LOG_FIELD("keys", list.n));
    quota_list_fini(&list);
    new_file_remove_leftovers(keeper->path);
    return STATUS_OK;
}

enum status quota_keeper_check(const char *folder)
{
    struct quota_list list;
    char *path = mem_format("%s/quotas", folder);
    enum status status = quota_file_read(path, &list);
    quota_list_fini(&list);
    free(path);
    return status;
}

enum status quota_keeper_open(const char *folder, struct identity *identity, struct quota_keeper **keeper_p)
{
    int fd = -1;
    TRY(folder_open(folder, &fd));
    struct quota_keeper *keeper = mem_alloc(sizeof *keeper);
    *keeper = (struct quota_keeper){.identity = identity,
                                    .folder_fd = fd,
                                    .path = mem_format("%s/quotas", folder),
                                    .saved_changes = identity_count_charges()};
    enum status status = quotas_load(keeper);
    if (status != STATUS_OK) {
        close(fd);
        free(keeper->path);
        free(keeper);
        return status;
    }
    pthread_mutex_init(&keeper->mutex, NULL);
    monotonic_cond_init(&keeper->changed);
    thread_start(&keeper->thread, "quotas", keeper_thread, keeper);
    *keeper_p = keeper;
    return STATUS_OK;
}

void quota_keeper_close(struct quota_keeper *keeper)
{
    if (!keeper) return;
    pthread_mutex_lock(&keeper->mutex);
    keeper->stopping = true;
    pthread_cond_signal(&keeper->changed);
    pthread_mutex_unlock(&keeper->mutex);
    pthread_join(keeper->thread, NULL);
    pthread_cond_destroy(&keeper->changed);
    pthread_mutex_destroy(&keeper->mutex);
    close(keeper->folder_fd);
    free(keeper->path);
    free(keeper);
}
