// SPDX-License-Identifier: Apache-2.0
// See gpu_health.h.
#include "kernels/gpu_health.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { XID_MAX = 65535 };

// ---- Xids -----------------------------------------------------------------------------------------------------------

// The table has no application faults, such as 13 and 31: a pass that caused one fails by itself.
static const struct {
    uint32_t xid;
    const char *meaning;
} meanings[] = {
    {46, "the GPU has stopped processing: reset it"},
    {48, "memory error of two bits, which ECC cannot correct: reset the GPU"},
    {62, "the GPU's microcontroller has halted: reset the GPU"},
    {63, "a memory row is to be replaced at the next reset of the GPU, which can serve until then"},
    {64, "a memory row could not be replaced: reset the GPU"},
    {74, "error of an NVLink connection, over which ranks add their sums: check the link, reset the GPU"},
    {79, "the GPU has fallen off the bus: restart the host"},
    {92, "many memory errors of one bit, which ECC has corrected"},
    {94, "memory error that one program has seen: restart the program"},
    {95, "memory error that any program may have seen: reset the GPU"},
    {119, "the GPU's system processor does not answer: reset the GPU"},
    {120, "the GPU's system processor has failed: reset the GPU"},
    {140, "memory error that the GPU has not recovered from: reset it"},
};

const char *gpu_xid_meaning(uint32_t xid)
{
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
        if (meanings[i].xid == xid) return meanings[i].meaning;
    return "see NVIDIA's catalogue of Xids";
}

// Reads the number at *text_p and moves *text_p past it. Returns false if there is no number.
static bool xid_read(const char **text_p, uint32_t *xid_p)
{
    char *end;
    if (!isdigit((unsigned char)**text_p)) return false;
    unsigned long xid = strtoul(*text_p, &end, 10);
    if (xid < 1 || xid > XID_MAX || (*end != ',' && *end != 0) || (*end == ',' && end[1] == 0)) return false;
    *text_p = *end ? end + 1 : end;
    *xid_p = (uint32_t)xid;
    return true;
}

enum status gpu_fatal_xids_parse(const char *text, struct gpu_limits *limits)
{
    struct gpu_limits read = *limits;
    read.n_fatal_xids = 0;
    bool none = strcmp(text, "none") == 0, valid = none || *text;
    for (const char *rest = none ? "" : text; valid && *rest;)
        valid = read.n_fatal_xids < GPU_FATAL_XIDS_MAX && xid_read(&rest, &read.fatal_xids[read.n_fatal_xids++]);
    if (!valid)
        return status_fail(STATUS_INVALID, "'%s': must be none, or up to %d numbers from 1 to %d such as 48,79", text,
                           GPU_FATAL_XIDS_MAX, XID_MAX);
    *limits = read;
    return STATUS_OK;
}

static bool is_fatal(const struct gpu_limits *limits, uint32_t xid)
{
    for (int i = 0; i < limits->n_fatal_xids; i++)
        if (limits->fatal_xids[i] == xid) return true;
    return false;
}

// ---- judgement ------------------------------------------------------------------------------------------------------

void gpu_health_init(struct gpu_health *health, const char *address, const struct gpu_limits *limits)
{
    *health = (struct gpu_health){.limits = *limits};
    snprintf(health->report.address, sizeof health->report.address, "%s", address);
}

// Keeps the first lasting trouble, because it causes later trouble.
static void health_break(struct gpu_health *health, const char *sentence)
{
    if (health->broken) return;
    health->broken = true;
    snprintf(health->report.trouble, sizeof health->report.trouble, "%s", sentence);
}

static void judge_state(struct gpu_health *health, enum gpu_state state)
{
    if (state == GPU_LOST) health_break(health, "the GPU is lost: the driver cannot reach it. Restart the host");
    if (state == GPU_NEEDS_RESET) health_break(health, "the GPU needs a reset (nvidia-smi --gpu-reset)");
}

static void count_xids(struct gpu_health *health, const struct gpu_sample *sample)
{
    char sentence[GPU_TROUBLE_MAX];
    for (int i = 0; i < sample->n_xids; i++) {
        uint32_t xid = sample->xids[i];
        health->report.xid_errors++;
        health->report.last_xid = xid;
        if (!is_fatal(&health->limits, xid)) continue;
        snprintf(sentence, sizeof sentence, "Xid %u: %s", xid, gpu_xid_meaning(xid));
        health_break(health, sentence);
    }
}

static void judge_throttling(struct gpu_health *health, bool throttled, int64_t passed_us)
{
    int64_t limit_us = health->limits.throttle_us, *us = &health->throttled_us;
    if (!limit_us || health->broken) return;
    *us += throttled ? passed_us : -passed_us;
    if (*us > limit_us) *us = limit_us;
    if (*us < 0) *us = 0;
    if (*us == 0) *health->report.trouble = 0;
    if (*us == limit_us)
        snprintf(health->report.trouble, sizeof health->report.trouble,
                 "the hardware has throttled the GPU for %lld s more than not: check cooling and power",
                 (long long)(limit_us / 1000000));
}

static void count_throttling(struct gpu_health *health, const struct gpu_sample *sample, int64_t passed_us)
{
    const uint32_t hardware =
        1U << GPU_THROTTLE_HW_SLOWDOWN | 1U << GPU_THROTTLE_HW_THERMAL | 1U << GPU_THROTTLE_HW_POWER_BRAKE;
    for (int reason = 0; reason < GPU_THROTTLES; reason++)
        if (sample->throttle & 1U << reason) health->report.throttled_us[reason] += (uint64_t)passed_us;
    judge_throttling(health, sample->throttle & hardware, passed_us);
}

// Copies the values. A value that this sample lacks keeps its last number, which no reader shows without `has_`.
static void copy_values(struct gpu_report *report, const struct gpu_sample *sample)
{
    report->has_temperature = sample->has_temperature;
    report->has_memory = sample->has_memory;
    report->has_ecc |= sample->has_ecc; // a counter, whose last value remains if the GPU is lost
    report->has_throttle |= sample->has_throttle;
    if (sample->has_temperature) report->temperature_celsius = sample->temperature_celsius;
    if (sample->has_memory) {
        report->memory_used_bytes = sample->memory_used_bytes;
        report->memory_total_bytes = sample->memory_total_bytes;
    }
    if (sample->has_ecc) {
        report->ecc_corrected = sample->ecc_corrected;
        report->ecc_uncorrected = sample->ecc_uncorrected;
    }
}

void gpu_health_add(struct gpu_health *health, const struct gpu_sample *sample, int64_t now_us)
{
    int64_t passed_us = health->sampled_us ? now_us - health->sampled_us : 0;
    if (passed_us > GPU_GAP_MAX_US) passed_us = GPU_GAP_MAX_US;
    health->sampled_us = now_us;
    health->report.known = true;
    copy_values(&health->report, sample);
    judge_state(health, sample->state);
    count_xids(health, sample);
    if (sample->has_throttle) count_throttling(health, sample, passed_us);
}
