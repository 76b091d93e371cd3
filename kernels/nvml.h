// SPDX-License-Identifier: Apache-2.0
// Reads the state of one GPU through NVML, the management library of NVIDIA's driver (libnvidia-ml.so.1). The library
// is loaded at run time, so programs start without it. CUDA is not needed: the GPU is identified by its address on the
// PCI bus.
//
// Every call, and loading the library, may block for long when a GPU is lost. One thread at a time.
#pragma once

#include "kernels/gpu_health.h"

struct nvml;

// Opens the library. NOT_FOUND: the library is not installed. UNSUPPORTED: the library lacks a function. UNAVAILABLE:
// the library does not know the GPU, or the driver does not answer.
enum status nvml_open(const char *address, struct nvml **nvml_p);
void nvml_close(struct nvml *nvml);

// Returns false if the driver reports no Xids for this GPU, for example for a virtual GPU.
bool nvml_reports_xids(const struct nvml *nvml);

void nvml_read(struct nvml *nvml, struct gpu_sample *sample);
