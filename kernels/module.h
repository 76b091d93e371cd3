// SPDX-License-Identifier: Apache-2.0
// Loads the CUDA backend, a shared object (libforepack_cuda.so, built with -DFOREPACK_CUDA=ON). A build has the object
// next to the programs, and an installation has it in the library folder. It is loaded at first use, so that programs
// start without the NVIDIA libraries. The object calls functions of the program that loads it. Any thread may call.
#pragma once

#include "kernels/backend.h"
#include "kernels/gpu_place.h"

// Functions of the module.
struct cuda_module {
    enum status (*open)(const struct backend_shape *shape, enum dtype dtype, struct backend **backend_p);
    int (*list_devices)(struct gpu_id *ids, int max);
};

// Returns the functions of the program itself if the backend is linked in (tests), else of the module. Fails if the
// module is not found, if its version is not the version of the program, or if a library that it needs is missing.
enum status cuda_module_load(struct cuda_module *module_p);

// Returns the number of GPUs visible to this process, at most `max`, and their identifiers. Returns 0 if there is no
// driver. Initialises CUDA: the process must not fork afterwards.
int cuda_list_devices(struct gpu_id *ids, int max);

// Returns true if there may be a GPU: the driver's device files exist. The GPU may still be unusable.
bool cuda_device_may_exist(void);
extern const char *cuda_device_folder; // "/dev"; tests change it

// Version that the module exports as `forepack_cuda_version`. A module with another version is refused. The exported
// text begins with the mark, by which the version is found in the file of a module that cannot be loaded.
#define CUDA_MODULE_MARK "forepack CUDA module, version "
extern const char forepack_cuda_version[];
