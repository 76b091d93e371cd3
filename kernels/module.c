// SPDX-License-Identifier: Apache-2.0
// See module.h.
#include "kernels/module.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/version.h"

#pragma weak backend_open_cuda // NULL in programs, which get both from the module
#pragma weak cuda_count_devices

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_module loaded; // never unloaded, since backends may be open

// Beside the program, as it is built, or in the library folder, as it is installed.
static enum status module_path(char *path, size_t size_bytes)
{
    static const char *const places[] = {FOREPACK_INSTALL_LIBRARIES "/libforepack_cuda.so", "libforepack_cuda.so"};
    ssize_t length = readlink("/proc/self/exe", path, size_bytes);
    if (length < 0) return status_fail(STATUS_INTERNAL, "/proc/self/exe: %s", strerror(errno));
    while (length && path[length - 1] != '/')
        length--;
    for (int i = 0; i < 2; i++) {
        int n = snprintf(path + length, size_bytes - (size_t)length, "%s", places[i]);
        if (n >= (int)(size_bytes - (size_t)length))
            return status_fail(STATUS_INTERNAL, "the path of this program is too long");
        if (access(path, F_OK) == 0) break;
    }
    return STATUS_OK;
}

static enum status module_load(void)
{
    char path[PATH_MAX];
    enum status status = module_path(path, sizeof path);
    if (status) return status;
    if (access(path, F_OK) != 0)
        return status_fail(STATUS_UNSUPPORTED, "the CUDA backend is not installed: %s does not exist", path);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) return status_fail(STATUS_NOT_FOUND, "the CUDA backend cannot be loaded: %s", dlerror());
    const int *layout = dlsym(module, "forepack_cuda_layout");
    if (!layout || *layout != CUDA_MODULE_LAYOUT)
        return status_fail(STATUS_UNAVAILABLE,
                           "%s was built for another version of this program: install both from one build", path);
    struct cuda_module found;
    *(void **)&found.open = dlsym(module, "backend_open_cuda");
    *(void **)&found.count_devices = dlsym(module, "cuda_count_devices");
    if (!found.open || !found.count_devices)
        return status_fail(STATUS_UNAVAILABLE, "the CUDA backend cannot be loaded: %s", dlerror());
    loaded = found;
    return STATUS_OK;
}

enum status cuda_module_load(struct cuda_module *module_p)
{
    if (backend_open_cuda && cuda_count_devices) {
        *module_p = (struct cuda_module){backend_open_cuda, cuda_count_devices};
        return STATUS_OK;
    }
    pthread_mutex_lock(&load_lock);
    enum status status = loaded.open ? STATUS_OK : module_load();
    if (!status) *module_p = loaded;
    pthread_mutex_unlock(&load_lock);
    return status;
}
