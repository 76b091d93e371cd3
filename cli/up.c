// SPDX-License-Identifier: Apache-2.0
// forepack up: a whole local cluster as child processes: one router, worker groups and speculators. A node that ends
// with a failure is restarted after a pause that doubles each time; Ctrl-C drains the cluster; no child outlives this
// process.
//
// One thread. A signalfd reports Ctrl-C and ended children; every other event is a timeout of poll().
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/companion.h"
#include "cli/gpus.h"
#include "cli/log_relay.h"
#include "cli/remote.h"
#include "lib/base/address.h"
#include "lib/base/clock.h"
#include "lib/base/cores.h"
#include "lib/base/log_options.h"
#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/base/secret_file.h"
#include "lib/base/version.h"
#include "lib/messages/unpack.h"
#include "lib/text/limits.h"

enum { NODES_MAX = 64 }; // of each role

static struct {
    char *main, *spec, *shape, *spec_shape, *load, *host, *model_name, *backend, *dtype, *kv_dtype, *packed_cache;
    char *chat_template, *api_keys, *prefill, *drafts, *token_file, *tls_cert, *tls_key, *tls_client_ca;
    struct option_list router_options, worker_options, speculator_options;
    double keep_rate, quality;
    int64_t node_port, tp, spec_tp, workers, speculators, port, http_port, threads, token_budget, max_seqs, kv_blocks,
        itl_target_ms;
    int64_t speculate_min_tokens, score_timeout_ms, drain_ms;
    bool prefix_cache, insecure;
    struct log_options log;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Models"},
    {.name = "main", .type = OPTION_STRING, .value = &o.main, .placeholder = "DIR",
     .help = "checkpoint of the main model; default the demo model"},
    {.name = "spec", .type = OPTION_STRING, .value = &o.spec, .placeholder = "DIR",
     .help = "checkpoint of the speculators' model; default the demo speculator if --main is not given, else none"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape, .placeholder = "FILE",
     .help = "for measurements: config.json of a model that the workers run with random weights; --main then gives "
             "the tokenizer only"},
    {.name = "spec-shape", .type = OPTION_STRING, .value = &o.spec_shape, .placeholder = "FILE",
     .help = "for measurements: the same for the speculators; the vocabulary must be that of --shape"},
    {.name = "load", .type = OPTION_CHOICE, .value = &o.load, .default_text = "auto", .choices = "auto|dummy",
     .help = "dummy: for measurements, random weights of the shape of --main and --spec, which need no weight files"},
    {.name = "served-model-name", .type = OPTION_STRING, .value = &o.model_name, .placeholder = "NAME",
     .help = "model name used in the API; default the name of the --main directory"},
    {.name = "chat-template", .type = OPTION_STRING, .value = &o.chat_template, .placeholder = "FILE",
     .help = "Jinja chat template to use instead of the model's"},
    {.name = "packed-cache", .type = OPTION_STRING, .value = &o.packed_cache, .default_text = "off",
     .placeholder = "DIR", .help = "directory that keeps packed weights for the next start; auto: beside the checkpoint"},
    {.name = "backend", .type = OPTION_CHOICE, .value = &o.backend, .default_text = "auto", .choices = MODEL_BACKENDS,
     .help = "backend of all nodes; auto: one GPU per rank if there are GPUs, else the CPU"},
    {.name = "dtype", .type = OPTION_CHOICE, .value = &o.dtype, .default_text = "auto", .choices = MODEL_DTYPES,
     .help = "data type for model weights; auto: that of the checkpoint"},
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &o.kv_dtype, .default_text = "auto",
     .choices = MODEL_KV_DTYPES,
     .help = "data type for the KV cache of the workers; auto: f32 with f32 weights, else bf16"},
    {.name = "-Processes"},
    {.name = "workers", .type = OPTION_INT, .value = &o.workers, .default_text = "1", .min = 1, .max = NODES_MAX,
     .unit = "groups", .help = "number of worker groups"},
    {.name = "tp", .type = OPTION_INT, .value = &o.tp, .default_text = "1", .min = 1, .max = 64, .unit = "ranks",
     .help = "tensor-parallel ranks of a worker group"},
    {.name = "speculators", .type = OPTION_INT, .value = &o.speculators, .default_text = "1", .max = NODES_MAX,
     .help = "number of speculators; 0: no speculative prefill"},
    {.name = "spec-tp", .type = OPTION_INT, .value = &o.spec_tp, .default_text = "1", .min = 1, .max = 64,
     .unit = "ranks", .help = "tensor-parallel ranks of a speculator"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads of a rank; 0: the cores divided by the ranks of the larger pool"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "2048", .min = 1,
     .max = MODEL_ROWS_MAX, .unit = "tokens", .help = "maximum number of tokens of a forward pass, and of a bin"},
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &o.max_seqs, .default_text = "64", .min = 1,
     .max = MODEL_SEQS_MAX, .unit = "sequences", .help = "maximum number of sequences of a node"},
    {.name = "kv-blocks", .type = OPTION_INT, .value = &o.kv_blocks, .default_text = "0", .max = MODEL_KV_BLOCKS_MAX,
     .unit = "blocks", .help = "KV cache of a worker group; 0: on GPUs the memory that is left to the group, on the CPU "
                               "a full context per sequence, at most 1 GiB"},
    {.name = "enable-prefix-caching", .type = OPTION_BOOL, .value = &o.prefix_cache, .default_text = "true",
     .help = "reuse the KV blocks of prompts that start with the same tokens"},
    {.name = "itl-target-ms", .type = OPTION_INT, .value = &o.itl_target_ms, .default_text = "0", .max = 3600000,
     .unit = "ms", .help = "target duration of a mixed pass, which limits its prompt tokens; 0: twice the duration of "
                           "its decodes"},
    {.name = "-Network"},
    {.name = "host", .type = OPTION_STRING, .value = &o.host, .default_text = "127.0.0.1", .placeholder = "HOST",
     .help = "address that the router listens on"},
    {.name = "port", .type = OPTION_INT, .value = &o.port, .default_text = "50051", .min = 1, .max = 65535,
     .help = "gRPC port of the router"},
    {.name = "http-port", .type = OPTION_INT, .value = &o.http_port, .default_text = "8000", .min = -1, .max = 65535,
     .help = "port of the router's HTTP API; 0 takes a free port, which the log names; -1: no HTTP API"},
    {.name = "node-port", .type = OPTION_INT, .value = &o.node_port, .default_text = "0", .max = 65535,
     .help = "port on loopback at which the nodes attach to the router; 0: the one after --port"},
    {.name = "api-keys", .type = OPTION_STRING, .value = &o.api_keys, .placeholder = "FILE",
     .help = "file of API keys, made with forepack keys: clients must send one of them; default: every client is allowed"},
    {.name = "tls-cert", .type = OPTION_STRING, .value = &o.tls_cert, .placeholder = "FILE",
     .help = "serve clients with TLS; the router's certificate, in PEM"},
    {.name = "tls-key", .type = OPTION_STRING, .value = &o.tls_key, .placeholder = "FILE",
     .help = "private key of --tls-cert, in PEM"},
    {.name = "tls-client-ca", .type = OPTION_STRING, .value = &o.tls_client_ca, .placeholder = "FILE",
     .help = "serve only clients with a certificate of these authorities, in PEM"},
    {.name = "cluster-token-file", .type = OPTION_STRING, .value = &o.token_file, .placeholder = "FILE",
     .help = "cluster token of router and nodes; default: a random one, in a private folder that is removed at the "
             "end"},
    {.name = "insecure", .type = OPTION_BOOL, .value = &o.insecure,
     .help = "allow a --host beyond loopback without TLS"},
    {.name = "-Behaviour"},
    {.name = "prefill", .type = OPTION_CHOICE, .value = &o.prefill, .choices = PREFILL_MODES,
     .help = "default for requests that give neither a prefill mode, a quality nor a keep rate; default auto with the "
             "demo models, else off"},
    {.name = "drafts", .type = OPTION_CHOICE, .value = &o.drafts, .default_text = "auto", .choices = DRAFT_MODES,
     .help = "default for requests that do not say whether their answers are drafted"},
    {.name = "quality", .type = OPTION_REAL, .value = &o.quality, .default_text = "0.99", .min = 1e-6, .max = 1,
     .help = "share of the answers that are right with the whole prompt and must stay right, for requests that give "
             "neither a quality nor a keep rate; without a calibration of the speculator (forepack calibrate) every token "
             "is kept"},
    {.name = "keep-rate", .type = OPTION_REAL, .value = &o.keep_rate, .min = 1e-6, .max = 1,
     .help = "fixed share of the prompt's tokens to keep when a request gives neither, instead of --quality"},
    {.name = "speculate-min-tokens", .type = OPTION_INT, .value = &o.speculate_min_tokens, .default_text = "512", .max = 1e9,
     .unit = "tokens", .help = "minimum prompt length for speculation with --prefill auto"},
    {.name = "score-timeout-ms", .type = OPTION_INT, .value = &o.score_timeout_ms, .default_text = "10000", .min = 1,
     .max = 3600000, .unit = "ms", .help = "maximum time for a prompt to wait for a speculator, and for a score beyond "
                                           "four times its expected time; after it the whole prompt is prefilled"},
    {.name = "drain-ms", .type = OPTION_INT, .value = &o.drain_ms, .default_text = "30000", .max = 3600000,
     .unit = "ms", .help = "maximum time for running requests to end after Ctrl-C; a second Ctrl-C ends them at once"},
    {.name = "-Further options"},
    {.name = "router-option", .type = OPTION_LIST, .value = &o.router_options, .placeholder = "NAME=VALUE",
     .help = "sets any other option of forepack-router, such as max-wait-ms=100"},
    {.name = "worker-option", .type = OPTION_LIST, .value = &o.worker_options, .placeholder = "NAME=VALUE",
     .help = "sets any other option of forepack-worker"},
    {.name = "speculator-option", .type = OPTION_LIST, .value = &o.speculator_options, .placeholder = "NAME=VALUE",
     .help = "sets any other option of forepack-speculator"},
    {.name = "-Logging"},
    LOG_OPTION_ROWS(o.log),
    {0},
};
// clang-format on

// Options that are passed on to the programs under the same name.
static const char *const of_router[] = {"served-model-name",
                                        "shape",
                                        "chat-template",
                                        "host",
                                        "port",
                                        "http-port",
                                        "api-keys",
                                        "tls-cert",
                                        "tls-key",
                                        "tls-client-ca",
                                        "insecure",
                                        "prefill",
                                        "drafts",
                                        "quality",
                                        "keep-rate",
                                        "speculate-min-tokens",
                                        "score-timeout-ms",
                                        "drain-ms",
                                        "log-level",
                                        "log-format",
                                        NULL};
static const char *const of_nodes[] = {
    "load",         "packed-cache",          "backend",   "dtype",      "max-num-batched-tokens",
    "max-num-seqs", "enable-prefix-caching", "log-level", "log-format", NULL};
static const char *const of_workers[] = {"kv-cache-dtype", "kv-blocks", "itl-target-ms", NULL};

enum { EXIT_WRONG_USAGE = 2, EXIT_NOT_FOUND = 127 };
enum { PAUSE_FIRST_MS = 200, PAUSE_MAX_MS = 5000, STEADY_MS = 10000, KILL_AFTER_MS = 3000 };

struct child {
    const char *role;
    int index;
    int ranks;
    struct gpu_set gpus; // of a node, if there are GPUs
    pid_t pid;           // 0: not running
    int64_t started_us;
    int64_t restart_us; // when to start it again; INT64_MAX: never
    int64_t pause_ms;   // before the next restart
};

static struct child children[1 + 2 * NODES_MAX]; // the router first
static int n_children, n_gpus;                   // n_gpus 0: the nodes compute on the CPU

static struct log_relay relay; // standard error of the children that are mpirun

// --- the secret of the nodes

static char token_folder[] = "/tmp/forepack-up-XXXXXX", *own_token; // own_token: a file in it; NULL: none

static const char *token_path(void)
{
    return own_token ? own_token : o.token_file;
}

// Without it, any user of this machine could attach a node of theirs, which would receive prompts.
static enum status token_create(void)
{
    uint64_t random[4];
    if (o.token_file) return STATUS_OK;
    if (getrandom(random, sizeof random, 0) != sizeof random || !mkdtemp(token_folder))
        return status_fail(STATUS_INTERNAL, "%s: %s", token_folder, strerror(errno));
    own_token = mem_format("%s/token", token_folder);
    int fd = open(own_token, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int written = fd < 0 ? -1
                         : dprintf(fd, "%016" PRIx64 "%016" PRIx64 "%016" PRIx64 "%016" PRIx64 "\n", random[0],
                                   random[1], random[2], random[3]);
    int reason = errno;
    if (fd >= 0) close(fd);
    return written > 0 ? STATUS_OK : status_fail(STATUS_INTERNAL, "%s: %s", own_token, strerror(reason));
}

static void token_remove(void)
{
    if (!own_token) return;
    unlink(own_token);
    rmdir(token_folder);
    free(own_token);
}

// --- starting

// Arguments of one child. The strings belong to the forked child and end with its exec.
struct arguments {
    char **items; // [n], then NULL
    int n;
};

// Takes `text`, which is on the heap.
static void argument_take(struct arguments *a, char *text)
{
    a->items = mem_resize(a->items, (size_t)a->n + 2, sizeof *a->items);
    a->items[a->n++] = text;
    a->items[a->n] = NULL;
}

static void argument_add(struct arguments *a, const char *text)
{
    argument_take(a, mem_string(text));
}

static void argument_add_text(struct arguments *a, const char *flag, const char *value)
{
    argument_add(a, flag);
    argument_add(a, value);
}

static void argument_add_number(struct arguments *a, const char *flag, int64_t value)
{
    argument_add(a, flag);
    argument_take(a, mem_format("%lld", (long long)value));
}

static void argument_add_option(struct arguments *a, const struct option *row)
{
    switch (row->type) {
    case OPTION_BOOL: argument_take(a, mem_format("--%s%s", *(bool *)row->value ? "" : "no-", row->name)); break;
    case OPTION_INT: argument_take(a, mem_format("--%s=%" PRId64, row->name, *(int64_t *)row->value)); break;
    case OPTION_REAL:
        if (row->default_text || options_given(options, row->name))
            argument_take(a, mem_format("--%s=%.17g", row->name, *(double *)row->value));
        break;
    default:
        if (*(char **)row->value) argument_take(a, mem_format("--%s=%s", row->name, *(char **)row->value));
    }
}

static void arguments_pass(struct arguments *a, const char *const *names)
{
    for (; *names; names++) {
        const struct option *row = options;
        while (strcmp(row->name, *names) != 0)
            row++;
        argument_add_option(a, row);
    }
}

static void arguments_add_further(struct arguments *a, const struct option_list *further)
{
    for (int i = 0; i < further->count; i++)
        argument_take(a, mem_format("--%s", further->items[i]));
}

static int ranks_total(void)
{
    return (int)(o.workers * o.tp + o.speculators * o.spec_tp);
}

// A share of the cores for each rank of the larger pool: the two pools seldom compute at the same time.
static int64_t threads_per_rank(void)
{
    if (o.threads) return o.threads;
    int64_t cores = cores_count();
    int64_t ranks = o.workers * o.tp > o.speculators * o.spec_tp ? o.workers * o.tp : o.speculators * o.spec_tp;
    return cores / ranks > 1 ? cores / ranks : 1;
}

// Address at which the nodes attach; free() it.
static char *node_address(void)
{
    return mem_format("127.0.0.1:%lld", (long long)o.node_port);
}

static void router_arguments(struct arguments *a)
{
    argument_take(a, companion_path("forepack-router"));
    argument_add_text(a, "--model", o.main);
    argument_add(a, "--node-listen");
    argument_take(a, node_address());
    argument_add_text(a, "--cluster-token-file", token_path());
    arguments_pass(a, of_router);
    arguments_add_further(a, &o.router_options);
}

static void node_arguments(const struct child *c, struct arguments *a)
{
    bool worker = strcmp(c->role, "worker") == 0;
    if (c->ranks > 1) {
        argument_add(a, "mpirun");
        argument_add_number(a, "-n", c->ranks);
        argument_add(a, "--oversubscribe");
        argument_add_text(a, "--bind-to", "none"); // the default puts all compute threads of a rank on one core
    }
    argument_take(a, companion_path(worker ? "forepack-worker" : "forepack-speculator"));
    argument_add_text(a, "--model", worker ? o.main : o.spec);
    const char *shape = worker ? o.shape : o.spec_shape;
    if (shape) argument_add_text(a, "--shape", shape);
    argument_add(a, "--router");
    argument_take(a, node_address());
    argument_add_text(a, "--cluster-token-file", token_path());
    argument_add(a, "--node-id");
    argument_take(a, mem_format("%s-%d", c->role, c->index));
    if (c->gpus.nodes > 1) {
        argument_add(a, "--gpu-memory-utilization");
        argument_take(a, mem_format("%.3f", MODEL_GPU_MEMORY_UTILIZATION / c->gpus.nodes));
    }
    argument_add_number(a, "--threads", threads_per_rank());
    arguments_pass(a, of_nodes);
    if (worker) arguments_pass(a, of_workers);
    arguments_add_further(a, worker ? &o.worker_options : &o.speculator_options);
}

// In the forked child: restricts the node to its GPUs.
static void child_set_gpus(const struct child *c)
{
    if (!n_gpus) return;
    char *visible = gpus_visible(&c->gpus, n_gpus, getenv("CUDA_VISIBLE_DEVICES"));
    if (visible) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    free(visible);
}

// Settings of Open MPI for groups on one machine. The user's own settings have priority.
static void set_mpi_environment(void)
{
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    // Two to three times faster than the default up to 256 KiB, and needs no ptrace permission.
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    // Ranks that share a core must not spin on it.
    bool crowded = ranks_total() * threads_per_rank() > cores_count();
    if (crowded) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

// In the forked child: becomes the program of its role.
static _Noreturn void child_exec(const struct child *c, pid_t parent)
{
    setpgid(0, 0); // the terminal sends Ctrl-C to this process only, which ends the children in order
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    // The children do not read standard input, and a terminal stops a background process (mpirun) that does.
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    if (c->ranks > 1) dup2(relay.fd, STDERR_FILENO);
    struct arguments a = {0};
    if (strcmp(c->role, "router") == 0) {
        router_arguments(&a);
    } else {
        child_set_gpus(c);
        node_arguments(c, &a);
    }
    execvp(a.items[0], a.items);
    fprintf(stderr, "%s: %s\n", a.items[0], strerror(errno));
    _exit(EXIT_NOT_FOUND);
}

static void child_start(struct child *c)
{
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        log_event(LOG_ERROR, "fork_failed", LOG_FIELD("role", c->role), LOG_FIELD("reason", strerror(errno)));
        c->restart_us = clock_now_us() + PAUSE_MAX_MS * 1000;
        return;
    }
    if (pid == 0) child_exec(c, parent);
    setpgid(pid, pid);
    c->pid = pid;
    c->started_us = clock_now_us();
    c->restart_us = INT64_MAX;
}

// mpirun forwards SIGUSR1 to its ranks at once; on SIGTERM it kills them, slowly.
static void child_drain(const struct child *c)
{
    if (c->pid) kill(c->pid, c->ranks > 1 ? SIGUSR1 : SIGTERM);
}

// --- watching

// A failed child is started again after a pause, which is short again once the child has run for a while.
static void child_schedule_restart(struct child *c, const char *name, int wait_status)
{
    bool exited = WIFEXITED(wait_status);
    int64_t lived_ms = (clock_now_us() - c->started_us) / 1000;
    if (lived_ms > STEADY_MS || !c->pause_ms) c->pause_ms = PAUSE_FIRST_MS;
    c->restart_us = clock_now_us() + c->pause_ms * 1000;
    log_event(LOG_WARN, "node_failed", LOG_FIELD("node", name),
              LOG_FIELD(exited ? "exit_code" : "signal", exited ? WEXITSTATUS(wait_status) : WTERMSIG(wait_status)),
              LOG_MS("restart_in_ms", c->pause_ms * 1000));
    c->pause_ms = c->pause_ms * 2 > PAUSE_MAX_MS ? PAUSE_MAX_MS : c->pause_ms * 2;
}

// Returns an exit code when the cluster cannot continue, else -1.
static int child_ended(struct child *c, int wait_status)
{
    char *name = mem_format("%s-%d", c->role, c->index);
    int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1, result = -1;
    if (code == 0) {
        log_event(LOG_INFO, "node_drained", LOG_FIELD("node", name));
    } else if (code == EXIT_WRONG_USAGE || code == EXIT_NOT_FOUND) {
        log_event(LOG_ERROR, "node_misconfigured", LOG_FIELD("node", name)); // its own log has the reason
        result = EXIT_WRONG_USAGE;
    } else {
        child_schedule_restart(c, name, wait_status);
    }
    free(name);
    return result;
}

// Collects the children that ended. Returns as child_ended().
static int children_reap(bool draining)
{
    int wait_status, result = -1;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        for (int i = 0; i < n_children; i++) {
            if (children[i].pid != pid) continue;
            children[i].pid = 0;
            int code = draining ? -1 : child_ended(&children[i], wait_status);
            if (code >= 0) result = code;
        }
    }
    return result;
}

static int children_running(void)
{
    int n = 0;
    for (int i = 0; i < n_children; i++)
        n += children[i].pid != 0;
    return n;
}

// Starts the children that are due. Returns the time of the next restart.
static int64_t children_start_due(void)
{
    int64_t now = clock_now_us(), next = INT64_MAX;
    for (int i = 0; i < n_children; i++) {
        struct child *c = &children[i];
        if (!c->pid && c->restart_us <= now) child_start(c);
        if (!c->pid && c->restart_us < next) next = c->restart_us;
    }
    return next;
}

// A channel to the port of nodes, which needs neither an API key nor a client's certificate.
static enum status node_channel_open(struct rpc_channel **channel_p)
{
    char *secret, *target;
    TRY(secret_file_read(token_path(), &secret));
    target = node_address();
    enum status status = rpc_channel_open(target, channel_p);
    if (status == STATUS_OK && (status = rpc_channel_set_token(*channel_p, secret)) != STATUS_OK)
        rpc_channel_close(*channel_p);
    explicit_bzero(secret, strlen(secret));
    free(secret);
    free(target);
    return status;
}

// Whether the router would serve a request and every node is attached, so that the first request has the whole cluster.
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

static void print_ready(void)
{
    const char *trust = o.tls_cert ? " --tls-ca FILE" : "";
    printf("ready: %lld worker group%s of %lld rank%s, %lld speculator%s, gRPC on %s:%lld\n"
           "try:   forepack generate --server %s:%lld%s --prompt \"Hello\"\n"
           "       forepack status --server %s:%lld%s\n",
           (long long)o.workers, o.workers == 1 ? "" : "s", (long long)o.tp, o.tp == 1 ? "" : "s",
           (long long)o.speculators, o.speculators == 1 ? "" : "s", o.host, (long long)o.port, o.host,
           (long long)o.port, trust, o.host, (long long)o.port, trust);
    if (o.http_port > 0)
        printf("       http%s://%s:%lld/v1 for clients of OpenAI's API\n", o.tls_cert ? "s" : "", o.host,
               (long long)o.http_port);
    fflush(stdout);
}

// Waits for a signal. *end_p becomes true on a signal that ends the cluster.
static void signals_wait(int fd, int timeout_ms, bool *end_p)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    if (poll(&waiting, 1, timeout_ms) <= 0) return;
    struct signalfd_siginfo info;
    while (read(fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGCHLD) *end_p = true;
    }
}

// Until a signal ends the cluster, or until it cannot continue. Returns the exit code.
static int cluster_watch(int fd)
{
    bool ready = false, end = false;
    while (!end) {
        int64_t next_us = children_start_due();
        int timeout_ms = next_us == INT64_MAX ? -1 : (int)((next_us - clock_now_us()) / 1000 + 1);
        if (!ready) timeout_ms = 100;
        signals_wait(fd, timeout_ms, &end);
        int code = children_reap(false);
        if (code >= 0) return code;
        if (!ready && cluster_is_ready()) {
            ready = true;
            print_ready();
        }
    }
    return 0;
}

// Drains the router first: it refuses new requests and finishes the running ones, for which it needs the nodes. Then
// the nodes. A second Ctrl-C, or the end of --drain-ms, kills the children that are left.
static void cluster_drain(int fd, bool at_once)
{
    int64_t kill_us = clock_now_us() + (at_once ? 0 : o.drain_ms * 1000) + KILL_AFTER_MS * 1000;
    bool hurry = false, nodes_drained = false;
    child_drain(&children[0]);
    while (children_running()) {
        if (!nodes_drained && (!children[0].pid || at_once)) {
            for (int i = 1; i < n_children; i++)
                child_drain(&children[i]);
            nodes_drained = true;
        }
        if (hurry || clock_now_us() >= kill_us) {
            for (int i = 0; i < n_children; i++) {
                if (children[i].pid) kill(-children[i].pid, SIGKILL);
            }
        }
        signals_wait(fd, 100, &hurry);
        children_reap(true);
    }
}

// --- configuration

static char *demo_model(const char *name)
{
    // Installed, or in build/<preset>/bin of the repository.
    static const char *const folders[] = {FOREPACK_INSTALL_DATA, "../../../deploy"};
    char *real = NULL;
    for (int i = 0; i < 2 && !real; i++) {
        char *relative = mem_format("%s/demo-model/%s", folders[i], name);
        char *path = companion_path(relative);
        real = realpath(path, NULL);
        free(path);
        free(relative);
    }
    return real;
}

// Takes `address`, which is on the heap.
static enum status port_check(const char *option, char *address)
{
    enum status status = address_check(address);
    free(address);
    return status == STATUS_OK ? status : status_context(status, "%s", option);
}

static enum status exposure_check(void)
{
    bool loopback;
    char *clients = mem_format("%s:%lld", o.host, (long long)o.port);
    enum status status = address_is_loopback(clients, &loopback);
    free(clients);
    if (status != STATUS_OK || loopback || o.tls_cert || o.insecure) return status;
    return status_fail(
        STATUS_INVALID,
        "--host %s: other machines could connect without TLS: give --tls-cert and --tls-key, or --insecure "
        "on a network that you trust",
        o.host);
}

static enum status ports_differ(void)
{
    const struct {
        const char *option;
        int64_t port;
    } ports[] = {{"port", o.port}, {"node-port", o.node_port}, {"http-port", o.http_port}};
    for (int i = 1; i < 3; i++)
        for (int k = 0; k < i; k++)
            if (ports[i].port == ports[k].port)
                return status_fail(STATUS_INVALID, "--%s and --%s: both are %lld: choose two ports", ports[k].option,
                                   ports[i].option, (long long)ports[i].port);
    return STATUS_OK;
}

// Before any start, so that one sentence says what is wrong.
static enum status ports_check(void)
{
    if (!o.node_port) o.node_port = o.port + 1;
    TRY(ports_differ());
    TRY(exposure_check());
    TRY(port_check("--port", mem_format("%s:%lld", o.host, (long long)o.port)));
    TRY(port_check("--node-port", node_address()));
    if (o.http_port > 0) TRY(port_check("--http-port", mem_format("%s:%lld", o.host, (long long)o.http_port)));
    return STATUS_OK;
}

static enum status models_configure(void)
{
    bool demo = !o.main;
    if (demo) o.main = demo_model("main");
    if (!o.prefill) o.prefill = mem_string(demo ? "auto" : "off");
    if (!o.main) return status_fail(STATUS_INVALID, "--main: required, because the demo model is not installed");
    if (!o.spec && demo && o.speculators && !o.shape) o.spec = demo_model("speculator");
    if (!o.spec && o.spec_shape) o.spec = mem_string(o.main); // for its tokenizer
    if (o.spec) return STATUS_OK;
    if (options_given(options, "speculators") && o.speculators)
        return status_fail(STATUS_INVALID, "--spec: required for --speculators %lld", (long long)o.speculators);
    o.speculators = 0;
    return STATUS_OK;
}

static void children_configure(void)
{
    children[n_children++] = (struct child){.role = "router", .ranks = 1};
    for (int i = 0; i < o.workers; i++)
        children[n_children++] = (struct child){.role = "worker", .index = i, .ranks = (int)o.tp};
    for (int i = 0; i < o.speculators; i++)
        children[n_children++] = (struct child){.role = "speculator", .index = i, .ranks = (int)o.spec_tp};
}

// Divides the GPUs among the nodes. With --backend auto, a node with more ranks than GPUs may still compute on the CPU.
static enum status gpus_configure(void)
{
    bool wanted = strcmp(o.backend, "auto") == 0 || strcmp(o.backend, "cuda") == 0;
    n_gpus = wanted ? gpus_count() : 0;
    if (!n_gpus) return STATUS_OK;
    int ranks[2 * NODES_MAX], n_nodes = n_children - 1;
    struct gpu_set sets[2 * NODES_MAX];
    for (int i = 0; i < n_nodes; i++)
        ranks[i] = children[1 + i].ranks;
    enum status status = gpus_check(ranks, n_nodes, n_gpus);
    if (status != STATUS_OK && strcmp(o.backend, "cuda") == 0) return status;
    gpus_divide(ranks, n_nodes, n_gpus, sets);
    for (int i = 0; i < n_nodes; i++)
        children[1 + i].gpus = sets[i];
    if (ranks_total() > n_gpus)
        log_event(LOG_WARN, "gpus_shared", LOG_FIELD("ranks", ranks_total()), LOG_FIELD("gpus", n_gpus),
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

// Signals that nohup or a shell ignores for this process are still ignored: a blocked signal would be reported.
static void signals_add(sigset_t *signals, int signal)
{
    struct sigaction action;
    if (sigaction(signal, NULL, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(signals, signal);
}

// A descriptor that reports the signals, which are blocked from now on.
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

int command_up(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack up [--main DIR] [--spec DIR] [--tp N] [--workers N] [--speculators N] [--port P] "
                 "[--http-port P]\n"
                 "Runs a whole cluster on this machine. Restarts nodes that fail; Ctrl-C drains the cluster.",
                 argc, argv, NULL);
    log_options_apply(&o.log, "up");
    log_writer_start(log_tell_dropped);
    enum status status = configure();
    if (status != STATUS_OK) {
        token_remove();
        options_free(options);
        return report_failure(status);
    }
    set_mpi_environment();
    bool groups = o.tp > 1 || (o.speculators && o.spec_tp > 1);
    if (groups && (status = log_relay_open(&relay)) != STATUS_OK) {
        token_remove();
        options_free(options);
        return report_failure(status);
    }
    int fd = signals_open();
    children_start_due(); // before rpc_init: a fork must not copy gRPC's threads
    rpc_init();
    int code = cluster_watch(fd);
    cluster_drain(fd, code != 0);
    if (groups) log_relay_close(&relay);
    rpc_shutdown();
    token_remove();
    close(fd);
    options_free(options);
    return code;
}
