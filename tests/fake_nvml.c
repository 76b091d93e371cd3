// SPDX-License-Identifier: Apache-2.0
// An NVML whose GPUs are the files of the folder FAKE_NVML, named by their PCI addresses. Each line of a file has a key
// and a number: temperature, total and used (bytes), throttle (NVML's bits), corrected, uncorrected. Further keys:
//
//     xid N      an Xid, reported once after each start of the library; there may be several
//     no_events  Xids are not supported
//     error N    every call of the device returns this error
//     hang 1     every call of the device blocks until this line is gone
//
// A value with no line is not supported. Tests replace the files by renaming. nvmlShutdown() makes a file "shut".
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, TIMEOUT = 10 };

struct memory {
    unsigned long long total, available, used;
};

struct event {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static char path[512]; // path of the one GPU that a process opens
static int n_reported; // number of Xids reported so far

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int error);
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device_p);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius_p);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons_p);
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int since, unsigned long long *errors_p);
int nvmlEventSetCreate(void **set_p);
int nvmlEventSetFree(void *set);
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set);
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms);

// Reads the number of the line with this key and index. Returns false if there are not so many lines with the key.
static bool line_read(const char *key, int index, unsigned long long *number_p)
{
    char name[64];
    unsigned long long number;
    bool found = false;
    FILE *file = fopen(path, "r");
    while (file && !found && fscanf(file, "%63s %llu", name, &number) == 2)
        found = strcmp(name, key) == 0 && index-- == 0;
    if (file) fclose(file);
    if (found) *number_p = number;
    return found;
}

static int device_error(void)
{
    unsigned long long number;
    while (line_read("hang", 0, &number))
        usleep(1000);
    return line_read("error", 0, &number) ? (int)number : OK;
}

static int value_read(const char *key, unsigned long long *number_p)
{
    int error = device_error();
    if (error == OK && !line_read(key, 0, number_p)) error = NOT_SUPPORTED;
    return error;
}

int nvmlInit_v2(void)
{
    return getenv("FAKE_NVML") ? OK : DRIVER_NOT_LOADED;
}

int nvmlShutdown(void)
{
    char shut[512];
    snprintf(shut, sizeof shut, "%s/shut", getenv("FAKE_NVML"));
    FILE *file = fopen(shut, "w");
    if (file) fclose(file);
    return OK;
}

const char *nvmlErrorString(int error)
{
    return error == DRIVER_NOT_LOADED ? "Driver Not Loaded" : error == NOT_FOUND ? "Not Found" : NULL;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device_p)
{
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML"), address);
    if (access(path, R_OK) != 0) return NOT_FOUND;
    *device_p = path;
    return OK;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius_p)
{
    unsigned long long number = 0;
    int error = value_read("temperature", &number);
    *celsius_p = (unsigned)number;
    return error;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    int error = value_read("total", &memory->total);
    return error == OK ? value_read("used", &memory->used) : error;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons_p)
{
    return value_read("throttle", reasons_p);
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int since, unsigned long long *errors_p)
{
    return value_read(kind == 1 ? "uncorrected" : "corrected", errors_p);
}

int nvmlEventSetCreate(void **set_p)
{
    *set_p = path;
    return OK;
}

int nvmlEventSetFree(void *set)
{
    return OK;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    unsigned long long number;
    return line_read("no_events", 0, &number) ? NOT_SUPPORTED : OK;
}

#ifndef FAKE_LACKS_EVENTS
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms)
{
    int error = device_error();
    if (error == OK && !line_read("xid", n_reported, &event->data)) error = TIMEOUT;
    if (error != OK) return error;
    n_reported++;
    event->device = path;
    event->type = 8;
    return OK;
}
#endif
