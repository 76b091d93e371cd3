// SPDX-License-Identifier: Apache-2.0
// See gpu_monitor.h.
#include "kernels/gpu_monitor.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/nvml.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/thread.h"

enum { STOP_LIMIT_MS = 2000, SILENT_INTERVALS = 10 };

struct gpu_monitor {
    int interval_ms;
    pthread_t thread;
    struct gpu_health health; // used only by the thread

    pthread_mutex_t lock; // guards the members below
    pthread_cond_t changed;
    struct gpu_report report;
    int64_t sampled_us; // time of the last sample; 0: no sample yet
    bool silent;        // true if the lack of samples since the last sample is already logged
    bool stopping;
    bool over;      // the thread has ended
    bool abandoned; // gpu_monitor_stop() did not wait for the thread, which frees the monitor
};

static void monitor_free(struct gpu_monitor *m)
{
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

// ---- the thread -----------------------------------------------------------------------------------------------------

static void log_xids(const struct gpu_report *report, const struct gpu_sample *sample)
{
    for (int i = 0; i < sample->n_xids; i++)
        log_event_limited(LOG_WARN, "gpu_xid", LOG_FIELD("bus_id", report->address), LOG_FIELD("xid", sample->xids[i]),
                          LOG_FIELD("meaning", gpu_xid_meaning(sample->xids[i])));
}

// Logs the beginning and the end of trouble. Also logs trouble that lasts until the process ends, if the trouble before
// it was only throttling.
static void log_trouble(const struct gpu_health *health, bool before, bool lasted_before)
{
    const struct gpu_report *report = &health->report;
    const bool now = *report->trouble;
    if (now && (!before || (health->broken && !lasted_before)))
        log_event(LOG_ERROR, "gpu_unhealthy", LOG_FIELD("bus_id", report->address),
                  LOG_FIELD("reason", (const char *)report->trouble));
    if (!now && before) log_event(LOG_INFO, "gpu_healthy_again", LOG_FIELD("bus_id", report->address));
}

static void sample_add(struct gpu_monitor *m, const struct gpu_sample *sample)
{
    const bool before = *m->health.report.trouble, lasted_before = m->health.broken;
    const int64_t now_us = clock_now_us();
    gpu_health_add(&m->health, sample, now_us);
    log_xids(&m->health.report, sample);
    log_trouble(&m->health, before, lasted_before);
    pthread_mutex_lock(&m->lock);
    m->report = m->health.report;
    m->sampled_us = now_us;
    m->silent = false;
    pthread_mutex_unlock(&m->lock);
}

// Waits for the interval between two samples. Returns false if the monitor stops meanwhile.
static bool nap(struct gpu_monitor *m)
{
    const int64_t until_us = clock_now_us() + (int64_t)m->interval_ms * 1000;
    pthread_mutex_lock(&m->lock);
    while (!m->stopping && monotonic_cond_wait(&m->changed, &m->lock, until_us))
        continue;
    const bool stopping = m->stopping;
    pthread_mutex_unlock(&m->lock);
    return !stopping;
}

static void watch(struct gpu_monitor *m)
{
    struct nvml *nvml;
    if (nvml_open(m->health.report.address, &nvml) != STATUS_OK) {
        log_event(LOG_INFO, "gpu_health_unavailable", LOG_FIELD("bus_id", m->health.report.address), LOG_REASON);
        return;
    }
    log_event(LOG_INFO, "gpu_health_watched", LOG_FIELD("bus_id", m->health.report.address),
              LOG_FIELD("xids", nvml_reports_xids(nvml)));
    do {
        struct gpu_sample sample;
        nvml_read(nvml, &sample);
        sample_add(m, &sample);
    } while (nap(m));
    nvml_close(nvml);
}

static void *monitor_thread(void *argument)
{
    struct gpu_monitor *m = argument;
    watch(m);
    pthread_mutex_lock(&m->lock);
    m->over = true;
    const bool abandoned = m->abandoned;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (abandoned) monitor_free(m);
    return NULL;
}

// ---- public ---------------------------------------------------------------------------------------------------------

struct gpu_monitor *gpu_monitor_start(const char *address, const struct gpu_limits *limits, int interval_ms)
{
    struct gpu_monitor *m = mem_alloc(sizeof *m);
    m->interval_ms = interval_ms;
    gpu_health_init(&m->health, address, limits);
    pthread_mutex_init(&m->lock, NULL);
    monotonic_cond_init(&m->changed);
    thread_start(&m->thread, "gpu_monitor", monitor_thread, m);
    return m;
}

void gpu_monitor_read(struct gpu_monitor *m, struct gpu_report *report)
{
    pthread_mutex_lock(&m->lock);
    const int64_t limit_us = (int64_t)m->interval_ms * SILENT_INTERVALS * 1000;
    if (m->sampled_us && !m->over && clock_now_us() > m->sampled_us + limit_us) m->report.known = false;
    const bool silent = m->sampled_us && !m->report.known && !m->silent;
    m->silent |= silent;
    *report = m->report;
    pthread_mutex_unlock(&m->lock);
    if (silent)
        log_event(LOG_WARN, "gpu_health_silent", LOG_FIELD("bus_id", (const char *)report->address),
                  LOG_FIELD("reason", "NVML does not answer: see nvidia-smi and the log of the kernel"));
}

void gpu_monitor_stop(struct gpu_monitor *m)
{
    if (!m) return;
    const int64_t until_us = clock_now_us() + STOP_LIMIT_MS * 1000;
    pthread_mutex_lock(&m->lock);
    m->stopping = true;
    pthread_cond_signal(&m->changed);
    while (!m->over && monotonic_cond_wait(&m->changed, &m->lock, until_us))
        continue;
    const bool over = m->over;
    m->abandoned = !over;
    if (!over) pthread_detach(m->thread);
    pthread_mutex_unlock(&m->lock);
    if (!over) return;
    pthread_join(m->thread, NULL);
    monitor_free(m);
}
