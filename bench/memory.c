// SPDX-License-Identifier: Apache-2.0
#include "bench/memory.h"

#include <stdio.h>

double memory_peak_mb(pid_t pid)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    double kib = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %lf kB", &kib) == 1) break;
    fclose(file);
    return kib * 1024 / 1e6;
}
