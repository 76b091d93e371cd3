// SPDX-License-Identifier: Apache-2.0
// See module.h.
#include "kernels/module.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/module_version.h"
#include "lib/base/mem.h"
#include "lib/base/program_path.h"
#include "lib/base/version.h"

#pragma weak backend_open_cuda // NULL in programs, which get both functions from the module
#pragma weak cuda_list_devices

const char *cuda_device_folder = "/dev";

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_module loaded; // never unloaded, since backends may be open

// Finds the module: in the library folder of an installation, or next to the program in a build. The caller frees the
// path.
static char *module_path(void)
{
    char *path = program_path(FOREPACK_INSTALL_LIBRARIES "/libforepack_cuda.so");
    if (access(path, F_OK) == 0) return path;
    free(path);
    return program_path("libforepack_cuda.so");
}

// ---- the version ----------------------------------------------------------------------------------------------------

// Copies the version that follows the mark, or "unknown" if there is no mark.
static void version_read(const char *from, size_t bytes, char version[64])
{
    const char *mark = memmem(from, bytes, CUDA_MODULE_MARK, strlen(CUDA_MODULE_MARK));
    snprintf(version, 64, "unknown");
    if (!mark) return;
    mark += strlen(CUDA_MODULE_MARK);
    snprintf(version, 64, "%.*s", (int)strnlen(mark, (size_t)(from + bytes - mark)), mark);
}

// Searches the module's file for the version, because the module cannot be loaded. A module of another build may call
// functions that this program lacks, and then does not load.
static void version_of_file(const char *path, char version[64])
{
    struct stat file;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    const bool sized = fd >= 0 && fstat(fd, &file) == 0 && file.st_size > 0;
    void *bytes = sized ? mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (fd >= 0) close(fd);
    version_read(bytes == MAP_FAILED ? "" : bytes, bytes == MAP_FAILED ? 0 : (size_t)file.st_size, version);
    if (bytes != MAP_FAILED) munmap(bytes, (size_t)file.st_size);
}

static enum status version_check(const char *path, const char *version)
{
    if (strcmp(version, CUDA_MODULE_VERSION) == 0) return STATUS_OK;
    return status_fail(STATUS_UNSUPPORTED, "%s has version %s, this program has %s: install both from one build", path,
                       version, CUDA_MODULE_VERSION);
}

// ---- loading --------------------------------------------------------------------------------------------------------

static enum status module_load(const char *path)
{
    char version[64];
    if (access(path, F_OK) != 0)
        return status_fail(STATUS_UNSUPPORTED, "the CUDA backend is not installed: %s does not exist", path);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        const char *reason = dlerror();
        version_of_file(path, version);
        TRY(version_check(path, version));
        return status_fail(STATUS_NOT_FOUND, "the CUDA backend cannot be loaded: %s", reason);
    }
    const char *stated = dlsym(module, "forepack_cuda_version");
    version_read(stated ? stated : "", stated ? strlen(stated) : 0, version);
    TRY(version_check(path, version));
    struct cuda_module found;
    *(void **)&found.open = dlsym(module, "backend_open_cuda");
    *(void **)&found.list_devices = dlsym(module, "cuda_list_devices");
    if (!found.open || !found.list_devices)
        return status_fail(STATUS_UNAVAILABLE, "the CUDA backend cannot be loaded: %s", dlerror());
    loaded = found;
    return STATUS_OK;
}

enum status cuda_module_load(struct cuda_module *module_p)
{
    if (backend_open_cuda && cuda_list_devices) {
        *module_p = (struct cuda_module){backend_open_cuda, cuda_list_devices};
        return STATUS_OK;
    }
    pthread_mutex_lock(&load_lock);
    char *path = module_path();
    enum status status = loaded.open ? STATUS_OK : module_load(path);
    free(path);
    if (!status) *module_p = loaded;
    pthread_mutex_unlock(&load_lock);
    return status;
}

bool cuda_device_may_exist(void)
{
    static const char *const files[] = {"nvidia[0-9]*", "dxg"}; // dxg: the GPU of a Windows host
    bool found = false;
    for (size_t i = 0; i < sizeof files / sizeof files[0] && !found; i++) {
        glob_t matches;
        char *pattern = mem_format("%s/%s", cuda_device_folder, files[i]);
        found = glob(pattern, GLOB_NOSORT, NULL, &matches) == 0;
        globfree(&matches);
        free(pattern);
    }
    return found;
}
