// SPDX-License-Identifier: Apache-2.0
#include "bench/commands/router_process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/mem.h"

enum { PORTS = 3 }; // ports of clients, of nodes, of HTTP
enum { ARGUMENTS = 24 };

// Binds a socket to a free port of loopback. The caller closes it.
static enum status port_reserve(int *fd_p, int *port_p)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    *fd_p = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool found = *fd_p >= 0 && !bind(*fd_p, (struct sockaddr *)&address, size) &&
                 !getsockname(*fd_p, (struct sockaddr *)&address, &size);
    *port_p = ntohs(address.sin_port);
    return found ? STATUS_OK : status_fail(STATUS_INTERNAL, "no free port on loopback: %s", strerror(errno));
}

// Finds free ports. Binds all ports before it releases one, because the system may assign a released port again
// immediately.
static enum status ports_find(int ports[PORTS])
{
    int fds[PORTS], n_bound = 0;
    enum status status = STATUS_OK;
    for (int fd; n_bound < PORTS && status == STATUS_OK; fds[n_bound++] = fd)
        status = port_reserve(&fd, &ports[n_bound]);
    while (n_bound--)
        if (fds[n_bound] >= 0) close(fds[n_bound]);
    return status;
}

// Returns the path of the router next to this program. The caller frees it.
static char *router_path(void)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    return mem_format("%.*s/forepack-router", slash ? (int)(slash - self) : 1, slash ? self : ".");
}

static void use_cores(const struct router_process_options *o)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int i = 0; i < o->n_cores; i++)
        CPU_SET((size_t)(o->core + i), &cores);
    if (o->core >= 0 && sched_setaffinity(0, sizeof cores, &cores)) _exit(3);
}

static void arguments_add(const char **arguments, int *n, const char *name, const char *value)
{
    if (!value) return;
    arguments[(*n)++] = name;
    arguments[(*n)++] = value;
}

// Becomes the router. The strings stay valid, because this process has a copy of the parent's memory.
static _Noreturn void router_exec(const struct router_process_options *o, const struct router_process *router,
                                  const char *path)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    use_cores(o);
    if (!freopen(o->log, "a", stderr)) _exit(3);
    char *http_port = mem_format("%d", router->http_port);
    char *threads = mem_format("%lld", (long long)o->tokenise_threads);
    const char *arguments[ARGUMENTS] = {
        path,          "--model", o->model,        "--port",      strrchr(router->server, ':') + 1,
        "--http-port", http_port, "--node-listen", router->nodes, "--tokenise-threads",
        threads};
    int n = 11;
    char *queue = o->queue_requests ? mem_format("%lld", (long long)o->queue_requests) : NULL;
    arguments_add(arguments, &n, "--max-queue-requests", queue);
    arguments_add(arguments, &n, "--shape", o->shape);
    arguments_add(arguments, &n, "--config", o->config);
    arguments_add(arguments, &n, "--tls-cert", o->tls ? o->tls->cert : NULL);
    arguments_add(arguments, &n, "--tls-key", o->tls ? o->tls->key : NULL);
    execv(path, (char *const *)arguments);
    _exit(3);
}

static enum status ports_choose(bool http, struct router_process *router)
{
    int ports[PORTS];
    TRY(ports_find(ports));
    router->server = mem_format("127.0.0.1:%d", ports[0]);
    router->nodes = mem_format("127.0.0.1:%d", ports[1]);
    router->http_port = http ? ports[2] : -1;
    return STATUS_OK;
}

enum status router_process_start(const struct router_process_options *options, struct router_process *router)
{
    *router = (struct router_process){.tls = options->tls};
    TRY(ports_choose(options->http, router));
    char *path = router_path();
    router->pid = fork();
    if (router->pid == 0) router_exec(options, router, path);
    free(path);
    if (router->pid > 0) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "cannot start the router: %s", strerror(errno));
}

double router_process_cpu_s(const struct router_process *router)
{
    char *path = mem_format("/proc/%d/stat", (int)router->pid);
    FILE *file = fopen(path, "r");
    unsigned long user = 0, kernel = 0;
    int n = file ? fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) : 0;
    if (file) fclose(file);
    free(path);
    return n == 2 ? (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK) : 0;
}

enum { WATCH_MS = 500, WATCHES_MAX = 120 };

// Waits until the router answers, or serves if `serving`. Returns false after WATCH_MS.
static bool health_watch(struct rpc_channel *channel, bool serving)
{
    static const uint8_t is_serving[] = {8, 1}; // a HealthCheckResponse
    struct rpc_stream *stream;
    struct rpc_bytes bytes = {0};
    bool reached = false;
    if (rpc_stream_open(channel, "/grpc.health.v1.Health/Watch", WATCH_MS, true, &stream) != STATUS_OK) return false;
    rpc_stream_send(stream, NULL, 0);
    while (!reached && rpc_stream_read(stream, &bytes) == STATUS_OK && bytes.data) {
        reached = !serving || (bytes.size == sizeof is_serving && !memcmp(bytes.data, is_serving, sizeof is_serving));
        rpc_bytes_free(&bytes);
    }
    rpc_stream_close(stream);
    return reached;
}

static bool router_has_ended(const struct router_process *router)
{
    siginfo_t info = {0}; // with WNOWAIT the process stays for router_process_stop()
    return waitid(P_PID, (id_t)router->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid;
}

static enum status wait_for_health(const struct router_process *router, struct rpc_channel *channel, bool serving)
{
    for (int i = 0; i < WATCHES_MAX; i++) {
        if (health_watch(channel, serving)) return STATUS_OK;
        if (router_has_ended(router)) return status_fail(STATUS_UNAVAILABLE, "the router has ended, see --log");
    }
    return status_fail(STATUS_UNAVAILABLE, "the router did not become ready, see --log");
}

enum status router_process_channel(const struct router_process *router, struct rpc_channel **channel_p)
{
    const struct rpc_tls trusted = {.ca = router->tls ? router->tls->cert : NULL};
    return rpc_channel_open_tls(router->server, router->tls ? &trusted : NULL, channel_p);
}

enum status router_process_wait(const struct router_process *router, bool serving)
{
    struct rpc_channel *channel;
    TRY(router_process_channel(router, &channel));
    enum status status = wait_for_health(router, channel, serving);
    rpc_channel_close(channel);
    return status;
}

void router_process_stop(struct router_process *router)
{
    if (router->pid > 0) {
        kill(router->pid, SIGTERM);
        waitpid(router->pid, NULL, 0);
    }
    free(router->server);
    free(router->nodes);
}
