// SPDX-License-Identifier: Apache-2.0
// See nvml.h. Declares the library's functions and types, because its header is not part of the driver. NVML never
// changes them: new versions get new names.
#include "kernels/nvml.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

#define LIBRARY "libnvidia-ml.so.1"

// Values of nvmlReturn_t that are used here.
enum { NVML_OK = 0, NVML_GPU_IS_LOST = 15, NVML_RESET_REQUIRED = 16 };

enum { NVML_TEMPERATURE_GPU = 0, NVML_CORRECTED = 0, NVML_UNCORRECTED = 1, NVML_VOLATILE = 0 };
static const unsigned long long event_xid = 8;

struct nvml_memory {
    unsigned long long total, available, used; // bytes
};

struct nvml_event {
    void *device;
    unsigned long long type, data; // data: the Xid
    unsigned gpu_instance, compute_instance;
};

// Lists the functions to load: name, and parameters in NVML's order. Each returns nvmlReturn_t.
#define NVML_FUNCTIONS(row)                                                                                            \
    row(nvmlInit_v2, (void)) row(nvmlShutdown, (void)) row(nvmlDeviceGetHandleByPciBusId_v2,                           \
                                                           (const char *address, void **device_p))                     \
        row(nvmlDeviceGetTemperature, (void *device, int sensor, unsigned *celsius_p))                                 \
            row(nvmlDeviceGetMemoryInfo, (void *device, struct nvml_memory *memory))                                   \
                row(nvmlDeviceGetCurrentClocksThrottleReasons, (void *device, unsigned long long *reasons_p)) row(     \
                    nvmlDeviceGetTotalEccErrors, (void *device, int kind, int since, unsigned long long *errors_p))    \
                    row(nvmlEventSetCreate, (void **set_p)) row(nvmlEventSetFree, (void *set))                         \
                        row(nvmlDeviceRegisterEvents, (void *device, unsigned long long types, void *set))             \
                            row(nvmlEventSetWait_v2, (void *set, struct nvml_event *event, unsigned timeout_ms))

struct nvml {
    void *library; // never closed: NVML may have threads
    void *device;
    void *events; // NULL if Xids are not reported
#define NVML_MEMBER(name, parameters) int(*name) parameters;
    NVML_FUNCTIONS(NVML_MEMBER)
#undef NVML_MEMBER
    const char *(*nvmlErrorString)(int error);
};

// ---- opening --------------------------------------------------------------------------------------------------------

static enum status function_find(struct nvml *nvml, const char *name, size_t offset)
{
    void *function = dlsym(nvml->library, name);
    if (!function) return status_fail(STATUS_UNSUPPORTED, LIBRARY " has no function %s: update the driver", name);
    memcpy((char *)nvml + offset, &function, sizeof function);
    return STATUS_OK;
}

static enum status functions_find(struct nvml *nvml)
{
#define NVML_FIND(name, parameters) TRY(function_find(nvml, #name, offsetof(struct nvml, name)));
    NVML_FUNCTIONS(NVML_FIND)
#undef NVML_FIND
    return function_find(nvml, "nvmlErrorString", offsetof(struct nvml, nvmlErrorString));
}

static enum status nvml_status(const struct nvml *nvml, int error, const char *what)
{
    if (error == NVML_OK) return STATUS_OK;
    const char *reason = nvml->nvmlErrorString(error);
    return status_fail(STATUS_UNAVAILABLE, "NVML: %s: %s", what, reason ? reason : "unknown error");
}

static enum status device_find(struct nvml *nvml, const char *address)
{
    TRY(nvml_status(nvml, nvml->nvmlInit_v2(), "start"));
    enum status status =
        nvml_status(nvml, nvml->nvmlDeviceGetHandleByPciBusId_v2(address, &nvml->device), "no such GPU");
    if (status != STATUS_OK) nvml->nvmlShutdown();
    return status;
}

static enum status events_open(struct nvml *nvml)
{
    void *set = NULL;
    TRY(nvml_status(nvml, nvml->nvmlEventSetCreate(&set), "events"));
    enum status status = nvml_status(nvml, nvml->nvmlDeviceRegisterEvents(nvml->device, event_xid, set), "Xid events");
    if (status == STATUS_OK)
        nvml->events = set;
    else
        nvml->nvmlEventSetFree(set);
    return status;
}

enum status nvml_open(const char *address, struct nvml **nvml_p)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) return status_fail(STATUS_NOT_FOUND, "%s", dlerror());
    struct nvml *nvml = mem_alloc(sizeof *nvml);
    nvml->library = library;
    enum status status = functions_find(nvml);
    if (status == STATUS_OK) status = device_find(nvml, address);
    if (status != STATUS_OK) {
        free(nvml);
        return status;
    }
    events_open(nvml);
    *nvml_p = nvml;
    return STATUS_OK;
}

bool nvml_reports_xids(const struct nvml *nvml)
{
    return nvml->events != NULL;
}

void nvml_close(struct nvml *nvml)
{
    if (nvml->events) nvml->nvmlEventSetFree(nvml->events);
    nvml->nvmlShutdown();
    free(nvml);
}

// ---- reading --------------------------------------------------------------------------------------------------------

// Returns true if a call succeeded. Any call may say that the GPU is lost. Other errors only leave out one value.
static bool succeeded(struct gpu_sample *sample, int error)
{
    if (error == NVML_GPU_IS_LOST) sample->state = GPU_LOST;
    if (error == NVML_RESET_REQUIRED && sample->state == GPU_PRESENT) sample->state = GPU_NEEDS_RESET;
    return error == NVML_OK;
}

static void read_memory(struct nvml *nvml, struct gpu_sample *sample)
{
    struct nvml_memory memory = {0};
    if (!succeeded(sample, nvml->nvmlDeviceGetMemoryInfo(nvml->device, &memory))) return;
    sample->has_memory = memory.total > 0 && memory.used <= memory.total;
    sample->memory_total_bytes = memory.total;
    sample->memory_used_bytes = memory.used;
}

static void read_temperature(struct nvml *nvml, struct gpu_sample *sample)
{
    enum { CELSIUS_MAX = 200 }; // NVML has returned values near 2^32 for GPUs without a sensor
    unsigned celsius = 0;
    if (!succeeded(sample, nvml->nvmlDeviceGetTemperature(nvml->device, NVML_TEMPERATURE_GPU, &celsius))) return;
    sample->has_temperature = celsius <= CELSIUS_MAX;
    sample->temperature_celsius = celsius;
}

static void read_throttle(struct nvml *nvml, struct gpu_sample *sample)
{
    static const unsigned long long bits[GPU_THROTTLES] = {
        [GPU_THROTTLE_HW_SLOWDOWN] = 0x8, [GPU_THROTTLE_HW_THERMAL] = 0x40,  [GPU_THROTTLE_HW_POWER_BRAKE] = 0x80,
        [GPU_THROTTLE_SW_THERMAL] = 0x20, [GPU_THROTTLE_SW_POWER_CAP] = 0x4,
    };
    unsigned long long reasons = 0;
    sample->has_throttle = succeeded(sample, nvml->nvmlDeviceGetCurrentClocksThrottleReasons(nvml->device, &reasons));
    for (int reason = 0; sample->has_throttle && reason < GPU_THROTTLES; reason++)
        if (reasons & bits[reason]) sample->throttle |= 1U << reason;
}

// Reads the volatile counters: errors since the driver was loaded or the GPU was reset.
static void read_ecc(struct nvml *nvml, struct gpu_sample *sample)
{
    unsigned long long corrected = 0, uncorrected = 0;
    int error = nvml->nvmlDeviceGetTotalEccErrors(nvml->device, NVML_CORRECTED, NVML_VOLATILE, &corrected);
    if (!succeeded(sample, error)) return; // GPUs with ECC switched off also return an error
    error = nvml->nvmlDeviceGetTotalEccErrors(nvml->device, NVML_UNCORRECTED, NVML_VOLATILE, &uncorrected);
    sample->has_ecc = succeeded(sample, error);
    sample->ecc_corrected = corrected;
    sample->ecc_uncorrected = uncorrected;
}

// Reads the Xids that NVML has queued, without waiting for more. Xids that do not fit are read with the next sample.
static void read_xids(struct nvml *nvml, struct gpu_sample *sample)
{
    struct nvml_event event = {0};
    for (int n = 0; nvml->events && n < GPU_XIDS_MAX; n++) {
        // The error is usually a timeout.
        if (!succeeded(sample, nvml->nvmlEventSetWait_v2(nvml->events, &event, 0))) return;
        if (event.type == event_xid && event.data > 0 && event.data <= UINT32_MAX)
            sample->xids[sample->n_xids++] = (uint32_t)event.data;
    }
}

void nvml_read(struct nvml *nvml, struct gpu_sample *sample)
{
    *sample = (struct gpu_sample){.state = GPU_PRESENT};
    read_xids(nvml, sample);
    read_throttle(nvml, sample);
    read_temperature(nvml, sample);
    read_memory(nvml, sample);
    read_ecc(nvml, sample);
}
