// SPDX-License-Identifier: Apache-2.0
#include "lib/base/core_claims.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/mem.h"

#define PREFIX "forepack-cores/"
#define LOCK   "forepack-cores"

enum { LOCK_TRIES = 200, LOCK_PAUSE_NS = 1000000 };
enum { LIST_MAX = 40 }; // length of a list in a name: the program, which has at most 15 bytes more, must fit too

const char *core_claims_sockets = "/proc/net/unix";

struct core_claims {
    int n;
    int *sockets; // [n]
};

// Binds a socket to an abstract name. Returns -1, with errno, if that fails.
static int name_bind(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t length = strnlen(name, sizeof address.sun_path - 1);
    memcpy(address.sun_path + 1, name, length);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (bind(fd, (void *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) == 0) return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

// Waits until no other process chooses cores. Returns the socket to close, or -1 if the wait took too long.
static int lock_take(void)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        const int fd = name_bind(LOCK);
        if (fd >= 0 || errno != EADDRINUSE) return fd;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
    }
    return -1;
}

// ---- claims of other pools ------------------------------------------------------------------------------------------

// Adds a claim "program/cores/first/number" to the loads. Ignores text that is not a claim: any user may bind any name.
static void claim_add(char *claim, struct core_load load[CPU_SETSIZE])
{
    const char *program = strsep(&claim, "/"), *list = strsep(&claim, "/"), *first = strsep(&claim, "/");
    cpu_set_t cores, one;
    if (!list || !first || !cores_parse(list, &cores)) return;
    const bool alike = strcmp(program, program_invocation_short_name) == 0;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &cores)) continue;
        if (alike)
            load[i].alike++;
        else
            load[i].others++;
    }
    if (cores_parse(first, &one)) load[cores_at(&one, 0)].first++;
}

// The name is the last column of a line; "@" stands for the zero byte before an abstract name.
static void loads_read(struct core_load load[CPU_SETSIZE])
{
    char line[512];
    FILE *file = fopen(core_claims_sockets, "r");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        char *name = strstr(line, " @" PREFIX);
        if (name) claim_add(name + strlen(" @" PREFIX), load);
    }
    fclose(file);
}

// ---- own claims -----------------------------------------------------------------------------------------------------

static void claim_bind(struct core_claims *claims, const cpu_set_t *cores, const char *first)
{
    char list[CORES_TEXT];
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number) number = (uint64_t)getpid();
    cores_format(cores, list);
    char *name = mem_format(PREFIX "%s/%s/%s/%016" PRIx64, program_invocation_short_name, list, first, number);
    const int fd = name_bind(name);
    free(name);
    if (fd >= 0) claims->sockets[claims->n++] = fd;
}

// Returns true if the list of the cores is too long for one name.
static bool list_is_long(const cpu_set_t *cores)
{
    char list[CORES_TEXT];
    cores_format(cores, list);
    return strlen(list) > LIST_MAX;
}

// Binds as many names as the list needs. The first name has the core of the first thread.
static struct core_claims *claims_bind(const int *chosen, int n)
{
    struct core_claims *claims = mem_alloc(sizeof *claims);
    claims->sockets = mem_alloc_array((size_t)n, sizeof *claims->sockets);
    char first[16];
    snprintf(first, sizeof first, "%d", chosen[0]);
    cpu_set_t part, longer;
    CPU_ZERO(&part);
    for (int i = 0; i < n; i++) {
        longer = part;
        CPU_SET(chosen[i], &longer);
        if (list_is_long(&longer)) {
            claim_bind(claims, &part, first);
            snprintf(first, sizeof first, "-");
            CPU_ZERO(&longer);
            CPU_SET(chosen[i], &longer);
        }
        part = longer;
    }
    claim_bind(claims, &part, first);
    return claims;
}

struct core_claims *core_claims_take(const cpu_set_t *usable, int n, int *chosen, struct cores_choice *choice_p)
{
    struct core_load *load = mem_alloc_array(CPU_SETSIZE, sizeof *load);
    const int lock = lock_take();
    loads_read(load);
    *choice_p = cores_choose(usable, load, n, chosen);
    struct core_claims *claims = claims_bind(chosen, n);
    if (lock >= 0) close(lock);
    free(load);
    return claims;
}

void core_claims_release(struct core_claims *claims)
{
    if (!claims) return;
    for (int i = 0; i < claims->n; i++)
        close(claims->sockets[i]);
    free(claims->sockets);
    free(claims);
}
