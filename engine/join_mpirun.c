// SPDX-License-Identifier: Apache-2.0
#include "engine/join_mpirun.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/join_agent.h"
#include "engine/join_process.h"
#include "lib/base/mem.h"

void join_host_name(int number, char name[JOIN_HOST_NAME_BYTES])
{
    snprintf(name, JOIN_HOST_NAME_BYTES, "forepack-follower-%d", number);
}

enum status join_mpirun_prepare(struct join_mpirun *mpirun)
{
    char program[PATH_MAX];
    const char *parent = getenv("TMPDIR") ?: "/tmp";
    if (strchr(parent, ' ')) parent = "/tmp"; // mpirun divides the path of its agent at blanks
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return status_fail(STATUS_INTERNAL, "/proc/self/exe: %s", strerror(errno));
    program[n] = 0;
    char *folder = mem_format("%s/forepack-XXXXXX", parent);
    if (!mkdtemp(folder)) {
        enum status status = status_fail(STATUS_INTERNAL, "%s: no folder can be made: %s", parent, strerror(errno));
        free(folder);
        return status;
    }
    mpirun->folder = folder;
    mpirun->socket = mem_format("%s/socket", folder);
    mpirun->agent = mem_format("%s/agent", folder);
    mpirun->program = mem_string(program);
    if (symlink(program, mpirun->agent)) return status_fail(STATUS_INTERNAL, "%s: %s", mpirun->agent, strerror(errno));
    return STATUS_OK;
}

void join_mpirun_finish(struct join_mpirun *mpirun)
{
    if (!mpirun->folder) return;
    unlink(mpirun->socket);
    unlink(mpirun->agent);
    rmdir(mpirun->folder);
    free(mpirun->folder);
    free(mpirun->socket);
    free(mpirun->agent);
    free(mpirun->program);
}

struct words {
    char **list; // [n], each allocated
    size_t n, capacity;
};

static void add(struct words *words, const char *text)
{
    MEM_GROW(words->list, words->n, words->capacity);
    words->list[words->n++] = mem_string(text);
}

static void add_all(struct words *words, const char *const *texts)
{
    for (; *texts; texts++)
        add(words, *texts);
}

static void add_number(struct words *words, const char *option, int64_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)number);
    add(words, option);
    add(words, text);
}

static void add_hosts(struct words *words, const struct join_options *o)
{
    char host[HOST_NAME_MAX + 1] = "localhost", name[JOIN_HOST_NAME_BYTES];
    gethostname(host, sizeof host - 1);
    char *list = mem_format("%s:%lld", host, (long long)o->ranks_per_host);
    for (int i = 1; i < o->hosts; i++) {
        join_host_name(i, name);
        char *longer = mem_format("%s,%s:%lld", list, name, (long long)o->ranks_per_host);
        free(list);
        list = longer;
    }
    add(words, "--host");
    add(words, list);
    free(list);
}

static bool is_passed_on(const char *variable)
{
    return strncmp(variable, "NCCL_", 5) == 0 || strncmp(variable, "FOREPACK_", 9) == 0;
}

static void add_environment(struct words *words)
{
    extern char **environ;
    for (char **variable = environ; *variable; variable++) {
        if (!is_passed_on(*variable)) continue;
        char *name = mem_format("%.*s", (int)strcspn(*variable, "="), *variable);
        add(words, "-x");
        add(words, name);
        free(name);
    }
}

static void add_options(struct words *words, const char *text)
{
    char *copy = mem_string(text), *rest = copy, *word;
    while ((word = strsep(&rest, " \t")))
        if (*word) add(words, word);
    free(copy);
}

static void environment_set(const struct join_mpirun *mpirun)
{
    char *agent = mem_format("%s %s %s", mpirun->agent, join_agent_flag, mpirun->socket);
    setenv("OMPI_MCA_plm_rsh_agent", agent, 1);
    setenv("OMPI_MCA_plm_rsh_no_tree_spawn", "1", 1);
    free(agent);
    if (geteuid()) return;
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
}

enum status join_mpirun_start(struct join_mpirun *mpirun, const struct join_options *o, char **argv)
{
    // Ranks of a host would read each other's memory, which needs a capability. Keepalives notice a lost host.
    static const char *const common[] = {"--bind-to", "none", "--mca", "btl_vader_single_copy_mechanism", "none", NULL};
    static const char *const several[] = {"--mca",
                                          "oob_tcp_keepalive_time",
                                          "2",
                                          "--mca",
                                          "oob_tcp_keepalive_intvl",
                                          "1",
                                          "--mca",
                                          "oob_tcp_keepalive_probes",
                                          "3",
                                          "--mca",
                                          "plm",
                                          "rsh",
                                          NULL};
    struct words words = {0};
    add(&words, "mpirun");
    add_number(&words, "-n", o->hosts * o->ranks_per_host);
    add_all(&words, common);
    if (o->hosts > 1) {
        add_all(&words, several);
        add_hosts(&words, o);
        add_environment(&words);
    } else {
        add(&words, "--oversubscribe");
    }
    if (o->mpirun_options) add_options(&words, o->mpirun_options);
    add(&words, mpirun->program);
    add_all(&words, (const char *const *)argv + 1);
    environment_set(mpirun);
    char **list = mem_alloc_array(words.n + 1, sizeof *list);
    memcpy(list, words.list, words.n * sizeof *list);
    enum status status = join_process_start((const char *const *)list, &mpirun->pid);
    for (size_t i = 0; i < words.n; i++)
        free(words.list[i]);
    free(words.list);
    free(list);
    return status;
}
