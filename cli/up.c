// SPDX-License-Identifier: Apache-2.0
// forepack up: a whole local cluster as child processes: one router, worker groups, speculators. A node that dies is
// started again (with growing pauses), Ctrl-C drains everything, and no child outlives this process.
//
// One thread: a signalfd tells of Ctrl-C and of children that ended; everything else is a deadline of the poll.
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/gpus.h"
#include "cli/remote.h"
#include "model/model.h"

static struct {
    char *main, *spec, *shape, *spec_shape, *load, *host, *model_name, *backend, *dtype, *kv_dtype, *packed_cache,
        *log_level;
    int64_t tp, spec_tp, workers, speculators, port, threads, token_budget, max_seqs, kv_blocks, itl_target_ms;
    int64_t min_tokens, score_timeout_ms, drain_ms;
    bool prefix_cache;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Models"},
    {.name = "main", .type = OPTION_STRING, .value = &o.main,
     .help = "directory of the main model; default the demo model of this repository"},
    {.name = "spec", .type = OPTION_STRING, .value = &o.spec,
     .help = "directory of the speculator's model; default the demo speculator beside the demo model, else none"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape,
     .help = "to measure: a config.json the workers run with random weights; --main then gives the tokenizer alone"},
    {.name = "spec-shape", .type = OPTION_STRING, .value = &o.spec_shape,
     .help = "the same for the speculators; its vocabulary must be that of --shape"},
    {.name = "load", .type = OPTION_CHOICE, .value = &o.load, .default_text = "auto", .choices = "auto|dummy",
     .help = "dummy: random weights also with --main and --spec, which then need no checkpoint"},
    {.name = "served-model-name", .type = OPTION_STRING, .value = &o.model_name, .help = "name that clients ask for; default the directory's"},
    {.name = "packed-cache", .type = OPTION_STRING, .value = &o.packed_cache, .default_text = "off",
     .help = "keep packed weights for the next start: a folder, auto (beside the checkpoint) or off"},
    {.name = "backend", .type = OPTION_CHOICE, .value = &o.backend, .default_text = "auto", .choices = MODEL_BACKENDS,
     .help = "what computes; auto is a GPU for each rank (nodes share them where there are fewer), or else the CPU"},
    {.name = "dtype", .type = OPTION_CHOICE, .value = &o.dtype, .default_text = "auto", .choices = MODEL_DTYPES,
     .help = "type that weights are computed in; auto is the checkpoint's"},
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &o.kv_dtype, .default_text = "auto", .choices = MODEL_KV_DTYPES,
     .help = "type of the workers' KV cache; auto is f32 with f32 weights, else bf16. int8 halves it"},
    {.name = "-Processes"},
    {.name = "workers", .type = OPTION_INT, .value = &o.workers, .default_text = "1", .min = 1, .max = 64,
     .unit = "groups", .help = "worker groups"},
    {.name = "tp", .type = OPTION_INT, .value = &o.tp, .default_text = "1", .min = 1, .max = 64, .unit = "ranks",
     .help = "tensor-parallel ranks of each worker group"},
    {.name = "speculators", .type = OPTION_INT, .value = &o.speculators, .default_text = "1", .max = 64,
     .help = "speculators; 0 keeps every token"},
    {.name = "spec-tp", .type = OPTION_INT, .value = &o.spec_tp, .default_text = "1", .min = 1, .max = 64,
     .unit = "ranks", .help = "tensor-parallel ranks of each speculator"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads of each rank; 0 shares the cores among all ranks"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "2048", .min = 1,
     .max = MODEL_ROWS_MAX, .unit = "tokens", .help = "rows of one pass: the capacity of a bin"},
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &o.max_seqs, .default_text = "64", .min = 1, .max = MODEL_SEQS_MAX,
     .unit = "sequences", .help = "sequences of one node at once"},
    {.name = "kv-blocks", .type = OPTION_INT, .value = &o.kv_blocks, .default_text = "0", .max = MODEL_KV_BLOCKS_MAX,
     .unit = "blocks", .help = "KV cache of each worker group; 0 is a full context per sequence, at most 1 GiB; on GPUs "
                               "what the group's share of their memory leaves"},
    {.name = "enable-prefix-caching", .type = OPTION_BOOL, .value = &o.prefix_cache, .default_text = "true",
     .help = "full KV blocks serve prompts that begin with the same tokens"},
    {.name = "itl-target-ms", .type = OPTION_INT, .value = &o.itl_target_ms, .default_text = "0", .max = 3600000,
     .unit = "ms", .help = "pass of a worker group with decodes and prompts; 0: twice the time of its decodes"},
    {.name = "-Network"},
    {.name = "host", .type = OPTION_STRING, .value = &o.host, .default_text = "127.0.0.1", .help = "address the router listens on"},
    {.name = "port", .type = OPTION_INT, .value = &o.port, .default_text = "50051", .min = 1, .max = 65535,
     .help = "gRPC port of the router"},
    {.name = "-Behaviour"},
    {.name = "min-tokens", .type = OPTION_INT, .value = &o.min_tokens, .default_text = "512", .max = 1e9,
     .unit = "tokens",
     .help = "under --prefill auto shorter prompts are not speculated, longer ones if it makes them faster"},
    {.name = "score-timeout-ms", .type = OPTION_INT, .value = &o.score_timeout_ms, .default_text = "10000", .min = 1,
     .max = 3600000, .unit = "ms", .help = "a speculator that takes longer is not waited for: everything is kept"},
    {.name = "drain-ms", .type = OPTION_INT, .value = &o.drain_ms, .default_text = "30000", .max = 3600000,
     .unit = "ms", .help = "on Ctrl-C running requests may take this long; a second Ctrl-C ends at once"},
    {.name = "log-level", .type = OPTION_CHOICE, .value = &o.log_level, .default_text = "info",
     .choices = "error|warn|info|debug", .help = "how much the processes log on standard error"},
    {0},
};
// clang-format on

enum { PAUSE_FIRST_MS = 200, PAUSE_MAX_MS = 5000, STEADY_MS = 10000, KILL_AFTER_MS = 3000, ARGS_MAX = 48 };

struct child {
    const char *role;
    int index;
    int ranks;
    struct gpu_share gpus; // of a node, where there are any
    pid_t pid;             // 0: not running
    int64_t started_us;
    int64_t restart_us; // when to start it again; INT64_MAX: never
    int64_t pause_ms;   // before the next restart
};

static struct child children[1 + 64 + 64]; // the router first
static int n_children, n_gpus;             // 0 GPUs: none that nodes may use
static char program_dir[PATH_MAX];

// --- starting

// Arguments of one child. Strings made here are the forked child's own and go with its exec.
struct arguments {
    char *items[ARGS_MAX];
    int n;
};

static void add(struct arguments *a, const char *text)
{
    if (a->n < ARGS_MAX - 1) a->items[a->n++] = mem_string(text);
}

static void add_pair(struct arguments *a, const char *flag, const char *value)
{
    add(a, flag);
    add(a, value);
}

static void add_number(struct arguments *a, const char *flag, int64_t value)
{
    add(a, flag);
    if (a->n < ARGS_MAX - 1) a->items[a->n++] = mem_format("%lld", (long long)value);
}

static int total_ranks(void)
{
    return (int)(o.workers * o.tp + o.speculators * o.spec_tp);
}

// Each rank gets its share of the cores; the pools seldom compute at the same moment, so shares are rounded up.
static int64_t threads_of_rank(void)
{
    if (o.threads) return o.threads;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t ranks = o.workers * o.tp > o.speculators * o.spec_tp ? o.workers * o.tp : o.speculators * o.spec_tp;
    return cores / ranks > 1 ? cores / ranks : 1;
}

static void router_arguments(struct arguments *a)
{
    a->items[a->n++] = mem_format("%s/forepack-router", program_dir);
    add_pair(a, "--model", o.main);
    if (o.shape) add_pair(a, "--shape", o.shape);
    if (o.model_name) add_pair(a, "--served-model-name", o.model_name);
    add_pair(a, "--host", o.host);
    add_number(a, "--port", o.port);
    add_number(a, "--min-tokens", o.min_tokens);
    add_number(a, "--score-timeout-ms", o.score_timeout_ms);
    add_number(a, "--drain-ms", o.drain_ms);
    add_pair(a, "--log-level", o.log_level);
}

static void node_arguments(const struct child *c, struct arguments *a)
{
    bool worker = strcmp(c->role, "worker") == 0;
    if (c->ranks > 1) {
        add(a, "mpirun");
        add_number(a, "-n", c->ranks);
        add(a, "--oversubscribe");
        add_pair(a, "--bind-to", "none"); // the default would put a rank's compute threads on one core
    }
    a->items[a->n++] = mem_format("%s/forepack-%s", program_dir, c->role);
    add_pair(a, "--model", worker ? o.main : o.spec);
    const char *shape = worker ? o.shape : o.spec_shape;
    if (shape) add_pair(a, "--shape", shape);
    if (strcmp(o.load, "auto") != 0) add_pair(a, "--load", o.load);
    add(a, "--router");
    bool any = strcmp(o.host, "0.0.0.0") == 0 || strcmp(o.host, "[::]") == 0;
    a->items[a->n++] = mem_format("%s:%lld", any ? "127.0.0.1" : o.host, (long long)o.port);
    add(a, "--node-id");
    a->items[a->n++] = mem_format("%s-%d", c->role, c->index);
    add_pair(a, "--backend", o.backend);
    if (c->gpus.nodes > 1) {
        add(a, "--gpu-memory-utilization");
        a->items[a->n++] = mem_format("%.3f", MODEL_GPU_MEMORY_UTILIZATION / c->gpus.nodes);
    }
    add_pair(a, "--dtype", o.dtype);
    if (worker) add_pair(a, "--kv-cache-dtype", o.kv_dtype);
    add_pair(a, "--packed-cache", o.packed_cache);
    add_number(a, "--threads", threads_of_rank());
    add_number(a, "--max-num-batched-tokens", o.token_budget);
    add_number(a, "--max-num-seqs", o.max_seqs);
    if (worker && o.kv_blocks) add_number(a, "--kv-blocks", o.kv_blocks);
    if (worker && o.itl_target_ms) add_number(a, "--itl-target-ms", o.itl_target_ms);
    add(a, o.prefix_cache ? "--enable-prefix-caching" : "--no-enable-prefix-caching");
    add_pair(a, "--log-level", o.log_level);
}

// In the forked child: the node sees no other GPUs than its own.
static void hide_other_gpus(const struct child *c)
{
    if (!n_gpus) return;
    char *visible = gpus_visible(&c->gpus, n_gpus, getenv("CUDA_VISIBLE_DEVICES"));
    if (visible) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    free(visible);
}

// MPI's settings that every local group wants; what the user set wins.
static void set_mpi_environment(void)
{
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    // Two to three times faster than the default up to 256 KiB, and needs no ptrace rights.
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    // Ranks that share a core must not spin on it.
    bool crowded = total_ranks() * threads_of_rank() > sysconf(_SC_NPROCESSORS_ONLN);
    if (crowded) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

static void start(struct child *c)
{
    fflush(NULL);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) {
        log_error("fork: %s", strerror(errno));
        c->restart_us = clock_now_us() + PAUSE_MAX_MS * 1000;
        return;
    }
    if (pid == 0) {
        setpgid(0, 0); // the terminal's Ctrl-C is for us; we tell the children in order
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        // Nobody down there reads; a terminal would stop a background process (mpirun) that does.
        int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (nothing >= 0) dup2(nothing, STDIN_FILENO);
        struct arguments a = {.n = 0};
        if (strcmp(c->role, "router") == 0) {
            router_arguments(&a);
        } else {
            hide_other_gpus(c);
            node_arguments(c, &a);
        }
        a.items[a.n] = NULL;
        execvp(a.items[0], a.items);
        fprintf(stderr, "%s: %s\n", a.items[0], strerror(errno));
        _exit(127);
    }
    setpgid(pid, pid);
    c->pid = pid;
    c->started_us = clock_now_us();
    c->restart_us = INT64_MAX;
}

// mpirun forwards SIGUSR1 to its ranks at once; of SIGTERM it makes a slow kill.
static void ask_to_end(const struct child *c)
{
    if (c->pid) kill(c->pid, c->ranks > 1 ? SIGUSR1 : SIGTERM);
}

// --- watching

static const char *describe_end(int wait_status, char *text, size_t size)
{
    if (WIFEXITED(wait_status)) {
        snprintf(text, size, "exit code %d", WEXITSTATUS(wait_status));
    } else {
        snprintf(text, size, "signal %d", WTERMSIG(wait_status));
    }
    return text;
}

// Takes the children that ended. Returns an exit code when the cluster cannot go on, else -1.
static int reap(bool draining)
{
    int wait_status;
    pid_t pid;
    int give_up = -1;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        for (int i = 0; i < n_children; i++) {
            struct child *c = &children[i];
            if (c->pid != pid) continue;
            c->pid = 0;
            if (draining) continue;
            char end[32];
            int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
            if (code == 0) {
                log_info("%s-%d ended by itself", c->role, c->index); // someone drained this node on purpose
            } else if (code == 2 || code == 127) {
                log_error("%s-%d cannot run as configured", c->role, c->index); // its own line says why
                give_up = 2;
            } else {
                int64_t lived_ms = (clock_now_us() - c->started_us) / 1000;
                if (lived_ms > STEADY_MS || !c->pause_ms) c->pause_ms = PAUSE_FIRST_MS;
                c->restart_us = clock_now_us() + c->pause_ms * 1000;
                log_warn("%s-%d ended with %s, starts again in %lld ms", c->role, c->index,
                         describe_end(wait_status, end, sizeof end), (long long)c->pause_ms);
                c->pause_ms = c->pause_ms * 2 > PAUSE_MAX_MS ? PAUSE_MAX_MS : c->pause_ms * 2;
            }
        }
    }
    return give_up;
}

static int running(void)
{
    int n = 0;
    for (int i = 0; i < n_children; i++)
        n += children[i].pid != 0;
    return n;
}

// True once, when a request would be served.
static bool became_ready(void)
{
    struct rpc_channel *channel;
    char target[300];
    bool any = strcmp(o.host, "0.0.0.0") == 0 || strcmp(o.host, "[::]") == 0;
    snprintf(target, sizeof target, "%s:%lld", any ? "127.0.0.1" : o.host, (long long)o.port);
    if (rpc_channel_open(target, &channel) != STATUS_OK) return false;
    struct rpc_bytes answer;
    bool ready = false;
    if (rpc_unary(channel, "/forepack.v1.Inference/GetClusterInfo", NULL, 0, 1000, &answer) == STATUS_OK) {
        Forepack__V1__ClusterInfo *info = forepack__v1__cluster_info__unpack(NULL, answer.size, answer.data);
        // Every node that was asked for, so that the first request already meets the whole cluster.
        ready = info && info->ready && info->n_nodes >= (size_t)n_children - 1;
        if (info) forepack__v1__cluster_info__free_unpacked(info, NULL);
        rpc_bytes_free(&answer);
    }
    rpc_channel_close(channel);
    return ready;
}

static void announce(void)
{
    printf("ready: %lld worker group%s of %lld rank%s, %lld speculator%s, gRPC on %s:%lld\n"
           "try:   forepack generate --server %s:%lld --prompt \"Hello\"\n"
           "       forepack status --server %s:%lld\n",
           (long long)o.workers, o.workers == 1 ? "" : "s", (long long)o.tp, o.tp == 1 ? "" : "s",
           (long long)o.speculators, o.speculators == 1 ? "" : "s", o.host, (long long)o.port, o.host,
           (long long)o.port, o.host, (long long)o.port);
    fflush(stdout);
}

static int poll_signals(int fd, int timeout_ms, bool *end_p)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    if (poll(&waiting, 1, timeout_ms) <= 0) return 0;
    struct signalfd_siginfo info;
    while (read(fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGCHLD) *end_p = true;
    }
    return 1;
}

static int serve(int fd)
{
    bool ready = false, end = false;
    while (!end) {
        int64_t now = clock_now_us(), next = INT64_MAX;
        for (int i = 0; i < n_children; i++) {
            struct child *c = &children[i];
            if (!c->pid && c->restart_us <= now) start(c);
            if (!c->pid && c->restart_us < next) next = c->restart_us;
        }
        int timeout_ms = next == INT64_MAX ? -1 : (int)((next - now) / 1000 + 1);
        if (!ready) timeout_ms = 100;
        poll_signals(fd, timeout_ms, &end);
        int code = reap(false);
        if (code >= 0) return code;
        if (!ready && became_ready()) {
            ready = true;
            announce();
        }
    }
    return 0;
}

// Ends the children: the router first, which refuses new requests and lets running ones finish (the nodes must still
// serve them), then the nodes. A second Ctrl-C, or the time being up, kills what is left.
static void drain(int fd, bool at_once)
{
    int64_t now = clock_now_us();
    int64_t kill_us = now + (at_once ? 0 : o.drain_ms * 1000) + KILL_AFTER_MS * 1000;
    bool hurry = false, told_nodes = false;
    ask_to_end(&children[0]);
    while (running()) {
        if (!told_nodes && (!children[0].pid || at_once)) {
            for (int i = 1; i < n_children; i++)
                ask_to_end(&children[i]);
            told_nodes = true;
        }
        if (hurry || clock_now_us() >= kill_us) {
            for (int i = 0; i < n_children; i++) {
                if (children[i].pid) kill(-children[i].pid, SIGKILL);
            }
        }
        poll_signals(fd, 100, &hurry);
        reap(true);
    }
}

// --- configuration

static void find_programs(void)
{
    ssize_t length = readlink("/proc/self/exe", program_dir, sizeof program_dir - 1);
    if (length < 0) length = 0;
    program_dir[length] = 0;
    char *slash = strrchr(program_dir, '/');
    if (slash) *slash = 0;
}

static char *demo_model(const char *name)
{
    // Installed, or in build/<preset>/bin of the repository.
    static const char *const folders[] = {FOREPACK_INSTALL_DATA, "../../../deploy"};
    char *real = NULL;
    for (int i = 0; i < 2 && !real; i++) {
        char *path = mem_format("%s/%s/demo-model/%s", program_dir, folders[i], name);
        real = realpath(path, NULL);
        free(path);
    }
    return real;
}

// Before anything starts: our nodes would attach to whatever router listens there and take its nodes' places.
static enum status check_port(void)
{
    char *address = mem_format("%s:%lld", o.host, (long long)o.port);
    enum status status = rpc_address_check(address);
    free(address);
    return status;
}

// Gives each node its GPUs. Under `auto` a node may yet compute on the CPU, so that one of more ranks than there are
// GPUs is left to find out.
static enum status divide_gpus(void)
{
    enum { NODES = sizeof children / sizeof children[0] - 1 };
    bool wanted = strcmp(o.backend, "auto") == 0 || strcmp(o.backend, "cuda") == 0;
    n_gpus = wanted ? gpus_count() : 0;
    if (!n_gpus) return STATUS_OK;
    int ranks[NODES], n_nodes = n_children - 1;
    struct gpu_share shares[NODES];
    for (int i = 0; i < n_nodes; i++)
        ranks[i] = children[1 + i].ranks;
    enum status status = gpus_check(ranks, n_nodes, n_gpus);
    if (status != STATUS_OK && strcmp(o.backend, "cuda") == 0) return status;
    gpus_divide(ranks, n_nodes, n_gpus, shares);
    for (int i = 0; i < n_nodes; i++)
        children[1 + i].gpus = shares[i];
    if (total_ranks() > n_gpus)
        log_warn(
            "%d ranks on %d GPUs: nodes share them and divide their memory, see --gpu-memory-utilization of the nodes",
            total_ranks(), n_gpus);
    return STATUS_OK;
}

static enum status configure(void)
{
    find_programs();
    bool demo = !o.main;
    if (demo) o.main = demo_model("main");
    if (!o.main)
        return status_fail(STATUS_INVALID, "--main: give the main model's directory (the demo model is not here)");
    if (!o.spec && demo && o.speculators && !o.shape) o.spec = demo_model("speculator");
    if (!o.spec && o.spec_shape) o.spec = o.main; // for its tokenizer
    if (!o.spec) {
        if (options_given(options, "speculators") && o.speculators) {
            return status_fail(STATUS_INVALID, "--spec: speculators need the directory of a small model");
        }
        o.speculators = 0;
    }
    children[n_children++] = (struct child){.role = "router", .ranks = 1};
    for (int i = 0; i < o.workers; i++)
        children[n_children++] = (struct child){.role = "worker", .index = i, .ranks = (int)o.tp};
    for (int i = 0; i < o.speculators; i++)
        children[n_children++] = (struct child){.role = "speculator", .index = i, .ranks = (int)o.spec_tp};
    return divide_gpus();
}

int command_up(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack up [--main DIR] [--spec DIR] [--tp N] [--workers N] [--speculators N] [--port P]\n"
                 "A whole cluster on this machine. Ctrl-C drains it; a node that dies is started again.",
                 argc, argv, NULL);
    enum log_level level = LOG_INFO;
    log_level_parse(o.log_level, &level);
    log_setup("up", level);
    signal(SIGPIPE, SIG_IGN); // whoever reads what we print may go: the cluster stays
    if (configure() != STATUS_OK || check_port() != STATUS_OK) {
        int code = report_failure(STATUS_INVALID);
        options_free(options);
        return code;
    }
    set_mpi_environment();
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
    for (int i = 0; i < n_children; i++)
        start(&children[i]); // before rpc_init: a fork must not copy gRPC's threads
    rpc_init();
    int code = serve(fd);
    drain(fd, code != 0);
    rpc_shutdown();
    close(fd);
    options_free(options);
    return code;
}
