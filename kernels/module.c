// SPDX-License-Identifier: Apache-2.0
#include "kernels/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#pragma weak backend_open_cuda // NULL in programs: they have it from the module alone

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_open_function *loaded; // never unloaded: backends may be open

static enum status module_path(char *path, size_t size_bytes)
{
    static const char name[] = "libforepack_cuda.so";
    ssize_t length = readlink("/proc/self/exe", path, size_bytes - sizeof name);
    if (length < 0) return status_fail(STATUS_INTERNAL, "/proc/self/exe: cannot tell where this program is");
    path[length] = 0;
    memcpy(strrchr(path, '/') + 1, name, sizeof name);
    return STATUS_OK;
}

static enum status load(void)
{
    char path[PATH_MAX];
    enum status status = module_path(path, sizeof path);
    if (status) return status;
    if (access(path, F_OK) != 0)
        return status_fail(STATUS_UNSUPPORTED, "there is no CUDA backend here: %s is not there", path);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) return status_fail(STATUS_NOT_FOUND, "the CUDA backend cannot be loaded: %s", dlerror());
    const int *layout = dlsym(module, "forepack_cuda_layout");
    if (!layout || *layout != CUDA_MODULE_LAYOUT)
        return status_fail(STATUS_UNAVAILABLE, "%s belongs to another version of this program", path);
    loaded = (cuda_open_function *)dlsym(module, "backend_open_cuda");
    if (!loaded) return status_fail(STATUS_UNAVAILABLE, "the CUDA backend cannot be loaded: %s", dlerror());
    return STATUS_OK;
}

enum status cuda_module_load(cuda_open_function **open_p)
{
    if (backend_open_cuda) {
        *open_p = backend_open_cuda;
        return STATUS_OK;
    }
    pthread_mutex_lock(&lock);
    enum status status = loaded ? STATUS_OK : load();
    if (!status) *open_p = loaded;
    pthread_mutex_unlock(&lock);
    return status;
}
