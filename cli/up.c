// SPDX-License-Identifier: Apache-2.0
// forepack up: runs a whole local cluster as child processes: one router, worker groups and speculators. A node that
// ends with a failure is restarted after a pause that doubles each time. Ctrl-C drains the cluster. No child outlives
// this process.
//
// One thread. A signalfd reports Ctrl-C and ended children; every other event is a timeout of poll().
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/children.h"
#include "cli/commands.h"
#include "cli/demo.h"
#include "cli/gpus.h"
#include "cli/log_relay.h"
#include "cli/remote.h"
#include "cli/up_arguments.h"
#include "cli/up_console.h"
#include "lib/base/address.h"
#include "lib/base/clock.h"
#include "lib/base/cpu_limits.h"
#include "lib/base/home.h"
#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/base/secret_file.h"
#include "lib/messages/unpack.h"

enum { KILL_AFTER_MS = 3000, READY_PAUSE_MIN_MS = 5, READY_PAUSE_MAX_MS = 100 };

static struct child children[1 + 2 * UP_NODES_MAX]; // the router first
static int n_children, n_gpus;                      // n_gpus is 0 if the nodes compute on the CPU

static bool demo; // the demo models run

// Copies standard error of children to the log: of children that run mpirun or, if there is a log file, of all children
// and of this process.
static struct log_relay relay;
static bool relay_is_open;

// --- the secret of the nodes

static char token_folder[] = "/tmp/forepack-up-XXXXXX";
static bool has_own_token; // the token is a file in token_folder

// Creates the cluster token. Any user of this machine could otherwise attach a node and receive prompts.
static enum status token_create(void)
{
    uint64_t random[4];
    if (up_flags.token_file) return STATUS_OK;
    if (getrandom(random, sizeof random, 0) != sizeof random || !mkdtemp(token_folder))
        return status_fail(STATUS_INTERNAL, "%s: %s", token_folder, strerror(errno));
    has_own_token = true;
    up_flags.token_file = mem_format("%s/token", token_folder);
    int fd = open(up_flags.token_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int written = fd < 0 ? -1
                         : dprintf(fd, "%016" PRIx64 "%016" PRIx64 "%016" PRIx64 "%016" PRIx64 "\n", random[0],
                                   random[1], random[2], random[3]);
    int reason = errno;
    if (fd >= 0) close(fd);
    return written > 0 ? STATUS_OK : status_fail(STATUS_INTERNAL, "%s: %s", up_flags.token_file, strerror(reason));
}

static void token_remove(void)
{
    if (!has_own_token) return;
    unlink(up_flags.token_file);
    rmdir(token_folder);
}

// --- starting

// Restricts the node to its GPUs, in the forked child.
static void child_set_gpus(const struct child *c)
{
    if (!n_gpus) return;
    char *visible = gpus_visible(&c->gpus, n_gpus, getenv("CUDA_VISIBLE_DEVICES"));
    if (visible) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    free(visible);
}

// Called in the forked child. Sets the environment of the child's program, and returns its command line.
static char **child_arguments(const struct child *c)
{
    if (c->ranks > 1) dup2(relay.fd, STDERR_FILENO);
    if (strcmp(c->role, "router") == 0) return up_router_arguments();
    child_set_gpus(c);
    return up_node_arguments(c);
}

// Sets options of Open MPI for groups on one machine. The user's own settings have priority.
static void set_mpi_environment(void)
{
    home_ensure();
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    // For messages of up to 256 KiB, "none" is two to three times faster than the default. It also needs no ptrace
    // permission.
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    // Ranks that share a core must not spin on it.
    bool crowded = up_ranks() * up_rank_threads() > cpu_limits_threads(1, 1);
    if (crowded) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

// --- watching

// Opens a channel to the router's port for nodes, where neither an API key nor a client certificate is needed.
static enum status node_channel_open(struct rpc_channel **channel_p)
{
    char *secret, *target;
    TRY(secret_file_read(up_flags.token_file, &secret));
    target = up_node_address();
    enum status status = rpc_channel_open(target, channel_p);
    if (status == STATUS_OK && (status = rpc_channel_set_token(*channel_p, secret)) != STATUS_OK)
        rpc_channel_close(*channel_p);
    explicit_bzero(secret, strlen(secret));
    free(secret);
    free(target);
    return status;
}

// Returns true if the router would serve a request and every node is attached.
static bool cluster_is_ready(void)
{
    struct rpc_channel *channel;
    struct rpc_bytes answer;
    bool ready = false;
    if (node_channel_open(&channel) != STATUS_OK) return false;
    if (rpc_unary(channel, "/forepack.v1.Inference/GetClusterInfo", NULL, 0, 1000, &answer) == STATUS_OK) {
        Forepack__V1__ClusterInfo *info = proto_unpack(&forepack__v1__cluster_info__descriptor, answer.data,
                                                       answer.size, PROTO_ANSWER_MEMORY_MAX, NULL);
        ready = info && info->ready && info->n_nodes >= (size_t)n_children - 1;
        if (info) forepack__v1__cluster_info__free_unpacked(info, NULL);
        rpc_bytes_free(&answer);
    }
    rpc_channel_close(channel);
    return ready;
}

// Waits for a signal. Sets *end_p to true if the signal ends the cluster.
static void signals_wait(int fd, int timeout_ms, bool *end_p)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    if (poll(&waiting, 1, timeout_ms) <= 0) return;
    struct signalfd_siginfo info;
    while (read(fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGCHLD) *end_p = true;
    }
}

// Returns how long to wait between two calls of cluster_is_ready(): a tenth of the time since the start. So a start is
// reported at most a tenth late, and a long one costs few calls.
static int ready_pause_ms(int64_t begun_us)
{
    const int64_t ms = (clock_now_us() - begun_us) / 10000;
    return ms < READY_PAUSE_MIN_MS ? READY_PAUSE_MIN_MS : ms > READY_PAUSE_MAX_MS ? READY_PAUSE_MAX_MS : (int)ms;
}

// Runs until a signal ends the cluster, or until the cluster cannot continue. Returns the exit code.
static int cluster_watch(int fd)
{
    const int64_t begun_us = clock_now_us();
    bool ready = false, end = false;
    while (!end) {
        int64_t next_us = children_start_due(children, n_children, child_arguments);
        int timeout_ms = next_us == INT64_MAX ? -1 : (int)((next_us - clock_now_us()) / 1000 + 1);
        if (!ready) timeout_ms = ready_pause_ms(begun_us);
        signals_wait(fd, timeout_ms, &end);
        int code = children_reap(children, n_children, false);
        if (code >= 0) return code;
        if (!ready && cluster_is_ready()) {
            ready = true;
            up_print_ready(demo);
        }
    }
    return 0;
}

// Drains the router first: it refuses new requests and needs the nodes to finish the running requests. Then drains the
// nodes. Children that remain are killed KILL_AFTER_MS after --drain-ms has passed or after a second Ctrl-C (at_once).
static void cluster_drain(int fd, bool at_once)
{
    int64_t kill_us = clock_now_us() + (at_once ? 0 : up_flags.drain_ms * 1000) + KILL_AFTER_MS * 1000;
    bool hurry = false, nodes_drained = false;
    child_drain(&children[0]);
    while (children_running(children, n_children)) {
        if (!nodes_drained && (!children[0].pid || at_once)) {
            for (int i = 1; i < n_children; i++)
                child_drain(&children[i]);
            nodes_drained = true;
        }
        if (hurry || clock_now_us() >= kill_us) children_kill(children, n_children);
        signals_wait(fd, 100, &hurry);
        children_reap(children, n_children, true);
    }
}

// --- configuration

// Checks the address of an option and frees it.
static enum status port_check(const char *option, char *address)
{
    enum status status = address_check(address);
    free(address);
    return status == STATUS_OK ? status : status_context(status, "%s", option);
}

static enum status exposure_check(void)
{
    bool loopback;
    char *clients = mem_format("%s:%lld", up_flags.host, (long long)up_flags.port);
    enum status status = address_is_loopback(clients, &loopback);
    free(clients);
    if (status != STATUS_OK || loopback || up_flags.tls_cert || up_flags.insecure) return status;
    return status_fail(
        STATUS_INVALID,
        "--host %s: other machines could connect without TLS: give --tls-cert and --tls-key, or --insecure "
        "on a network that you trust",
        up_flags.host);
}

static enum status ports_differ(void)
{
    const struct {
        const char *option;
        int64_t port;
    } ports[] = {{"port", up_flags.port}, {"node-port", up_flags.node_port}, {"http-port", up_flags.http_port}};
    for (int i = 1; i < 3; i++)
        for (int k = 0; k < i; k++)
            if (ports[i].port == ports[k].port)
                return status_fail(STATUS_INVALID, "--%s and --%s: both are %lld: choose two ports", ports[k].option,
                                   ports[i].option, (long long)ports[i].port);
    return STATUS_OK;
}

// Checks the ports before anything is started, so that the user gets one clear error message.
static enum status ports_check(void)
{
    if (!up_flags.node_port) up_flags.node_port = up_flags.port + 1;
    TRY(ports_differ());
    TRY(exposure_check());
    TRY(port_check("--port", mem_format("%s:%lld", up_flags.host, (long long)up_flags.port)));
    TRY(port_check("--node-port", up_node_address()));
    if (up_flags.http_port > 0)
        TRY(port_check("--http-port", mem_format("%s:%lld", up_flags.host, (long long)up_flags.http_port)));
    return STATUS_OK;
}

static enum status models_configure(void)
{
    demo = !up_flags.main;
    if (demo) up_flags.main = demo_path("main");
    if (!up_flags.prefill) up_flags.prefill = mem_string(demo ? "auto" : "off");
    if (!up_flags.main) return status_fail(STATUS_INVALID, "--main: required, because the demo model is not installed");
    if (!up_flags.spec && demo && up_flags.speculators && !up_flags.shape) up_flags.spec = demo_path("speculator");
    if (!up_flags.spec && up_flags.spec_shape) up_flags.spec = mem_string(up_flags.main); // a shape has no tokenizer
    if (up_flags.spec) return STATUS_OK;
    if (options_given(up_options, "speculators") && up_flags.speculators)
        return status_fail(STATUS_INVALID, "--spec: required for --speculators %lld", (long long)up_flags.speculators);
    up_flags.speculators = 0;
    return STATUS_OK;
}

static void children_configure(void)
{
    children[n_children++] = (struct child){.role = "router", .ranks = 1};
    for (int i = 0; i < up_flags.workers; i++)
        children[n_children++] =
            (struct child){.role = "worker", .index = i, .ranks = (int)(up_flags.tp * up_flags.pp)};
    for (int i = 0; i < up_flags.speculators; i++)
        children[n_children++] = (struct child){.role = "speculator", .index = i, .ranks = (int)up_flags.spec_tp};
}

// Divides the GPUs among the nodes. If a node has more ranks than there are GPUs, --backend cuda fails, and auto
// computes on the CPU.
static enum status gpus_configure(void)
{
    bool wanted = strcmp(up_flags.backend, "auto") == 0 || strcmp(up_flags.backend, "cuda") == 0;
    n_gpus = wanted ? gpus_count() : 0;
    if (!n_gpus) return STATUS_OK;
    int ranks[2 * UP_NODES_MAX], n_nodes = n_children - 1;
    struct gpu_set sets[2 * UP_NODES_MAX];
    for (int i = 0; i < n_nodes; i++)
        ranks[i] = children[1 + i].ranks;
    enum status status = gpus_check(ranks, n_nodes, n_gpus);
    if (status != STATUS_OK && strcmp(up_flags.backend, "cuda") == 0) return status;
    gpus_divide(ranks, n_nodes, n_gpus, sets);
    for (int i = 0; i < n_nodes; i++)
        children[1 + i].gpus = sets[i];
    if (up_ranks() > n_gpus)
        log_event(LOG_WARN, "gpus_shared", LOG_FIELD("ranks", up_ranks()), LOG_FIELD("gpus", n_gpus),
                  LOG_FIELD("effect", "nodes on one GPU divide its memory by --gpu-memory-utilization"));
    return STATUS_OK;
}

static enum status configure(void)
{
    TRY(models_configure());
    children_configure();
    TRY(gpus_configure());
    TRY(ports_check());
    return token_create();
}

// Adds a signal to the set that a signalfd reads. Leaves out a signal that nohup or a shell made this process ignore,
// because a signalfd reports blocked signals even if they are ignored.
static void signals_add(sigset_t *signals, int signal)
{
    struct sigaction action;
    if (sigaction(signal, NULL, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(signals, signal);
}

// Blocks the signals and opens a descriptor that reports them.
static int signals_open(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    signals_add(&signals, SIGINT);
    signals_add(&signals, SIGHUP);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    return signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
}

// Opens the log file if standard error is a terminal. Returns its descriptor, or -1 if the log goes to standard error.
static int log_file_open(void)
{
    int fd;
    char *path;
    if (up_flags.verbose || !isatty(STDERR_FILENO)) return -1;
    if (up_log_open(&fd, &path) != STATUS_OK) {
        log_event(LOG_WARN, "log_file_refused", LOG_REASON, LOG_FIELD("effect", "the log goes to standard error"));
        return -1;
    }
    up_print_starting(path);
    free(path);
    return fd;
}

static enum status relay_open(void)
{
    int file = log_file_open();
    bool groups = up_flags.tp * up_flags.pp > 1 || (up_flags.speculators && up_flags.spec_tp > 1);
    if (file < 0 && !groups) return STATUS_OK;
    enum status status = log_relay_open(&relay, file);
    relay_is_open = status == STATUS_OK;
    if (status == STATUS_OK && file >= 0) status = log_relay_take_stderr(&relay);
    if (file >= 0) close(file);
    return status;
}

// Runs the cluster until it is drained. Returns the exit code.
static int cluster_run(void)
{
    int fd = signals_open();
    // Start the nodes before rpc_init(): after it, gRPC has threads, which make a fork unsafe.
    children_start_due(children, n_children, child_arguments);
    rpc_init();
    int code = cluster_watch(fd);
    if (code == 0 && relay_is_open && relay.stderr_fd >= 0) up_print_stopping();
    cluster_drain(fd, code != 0);
    rpc_shutdown();
    close(fd);
    return code;
}

int command_up(int argc, char **argv)
{
    options_main(
        up_options,
        "Usage: forepack up [--main DIR] [--spec DIR] [--tp N] [--workers N] [--speculators N] [--port P] "
        "[--http-port P]\n"
        "Runs a whole cluster on this machine. Restarts nodes that fail; Ctrl-C drains the cluster.\n"
        "In a terminal, the log goes to a file in $XDG_STATE_HOME/forepack (default ~/.local/state/forepack) "
        "that each start\nempties; warnings and errors are shown too. Elsewhere, as under systemd, the log goes "
        "to standard error.",
        argc, argv, NULL);
    log_options_apply(&up_flags.log, "up");
    enum status status = up_flags.cpus ? cpu_limits_restrict(up_flags.cpus) : STATUS_OK;
    log_writer_start(log_tell_dropped); // after cpu_limits_restrict(), so that its thread inherits the cores of --cpus
    if (status == STATUS_OK) status = configure();
    if (status == STATUS_OK) status = relay_open();
    int code = 0;
    if (status == STATUS_OK) {
        set_mpi_environment();
        code = cluster_run();
    }
    if (relay_is_open) log_relay_close(&relay);
    token_remove();
    options_free(up_options);
    return status == STATUS_OK ? code : report_failure(status);
}
