// SPDX-License-Identifier: Apache-2.0
// forepack drain: tells a node to finish its requests and leave, and waits until the node is gone. The command repeats
// the DrainNode call: draining twice changes nothing, and each answer has the number of requests left on the node.
// Later calls send the instance number of the first answer, because a supervisor may start a new process with the same
// node id.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/commands.h"
#include "cli/remote.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

static struct {
    struct remote remote;
    bool wait;
    int64_t timeout_s;
} o;

static const struct option options[] = {
    REMOTE_OPTION_ROWS(o.remote),
    {.name = "wait",
     .type = OPTION_BOOL,
     .value = &o.wait,
     .default_text = "true",
     .help = "wait until the node has left the router; Ctrl-C ends the waiting, not the drain"},
    {.name = "timeout-s",
     .type = OPTION_INT,
     .value = &o.timeout_s,
     .default_text = "0",
     .max = 1e9,
     .unit = "s",
     .help = "longest time to wait, after which the command fails and the node goes on draining; 0: no limit"},
    {0},
};

static const char usage[] = "Usage: forepack drain [--server HOST:PORT] [--no-wait] [--timeout-s S] NODE\n"
                            "Tells a node to take no new requests, finish its own requests and leave. NODE is an id "
                            "that forepack status shows. The node's process then exits with code 0.";

struct drain {
    struct rpc_channel *channel;
    const char *node_id;
    uint64_t instance; // instance number of the node's process; 0: not known yet
    int64_t start_us;
};

// Returns the time limit of a call: at most the time that is left of --timeout-s.
static int64_t call_timeout_ms(const struct drain *drain)
{
    int64_t left_ms = o.timeout_s * 1000 - (clock_now_us() - drain->start_us) / 1000;
    return left_ms < 1 ? 1 : left_ms < REMOTE_CALL_TIMEOUT_MS ? left_ms : REMOTE_CALL_TIMEOUT_MS;
}

// Asks the router to drain the node. The caller frees *answer_p.
static enum status drain_ask(const struct drain *drain, Forepack__V1__DrainNodeResponse **answer_p)
{
    Forepack__V1__DrainNodeRequest request = FOREPACK__V1__DRAIN_NODE_REQUEST__INIT;
    request.node_id = (char *)drain->node_id;
    request.instance = drain->instance;
    if (o.timeout_s) o.remote.call_timeout_ms = call_timeout_ms(drain);
    return remote_call_on(drain->channel, &o.remote, "/forepack.v1.Inference/DrainNode", &request.base,
                          &forepack__v1__drain_node_response__descriptor, (ProtobufCMessage **)answer_p);
}

static const char *role_noun(const char *role)
{
    return strcmp(role, "worker") == 0 ? "worker group" : "speculator";
}

static void print_start(const char *node_id, const Forepack__V1__DrainNodeResponse *m)
{
    printf("%s: %s; requests that it finishes: %" PRIu32 "\n", node_id,
           m->was_draining ? "is draining already" : "draining", m->running);
    fflush(stdout);
    if (m->others) return;
    fprintf(stderr, "%s: no other %s takes work: %s\n", node_id, role_noun(m->role),
            strcmp(m->role, "worker") == 0 ? "new requests wait for one up to the router's --worker-grace-ms, then fail"
                                           : "prompts are prefilled whole; requests that require a score fail");
}

static void print_left(const struct drain *drain, uint32_t running, uint32_t *last)
{
    if (running == *last) return;
    printf("%s: requests left: %" PRIu32 "\n", drain->node_id, running);
    fflush(stdout);
    *last = running;
}

// Waits until the node's process is gone. Returns STATUS_DEADLINE after --timeout-s. If the router is too busy to
// answer, the command asks again.
static enum status drain_wait(const struct drain *drain, uint32_t running)
{
    const struct timespec pause = {.tv_nsec = 200000000};
    for (;;) {
        Forepack__V1__DrainNodeResponse *m = NULL;
        enum status status = drain_ask(drain, &m);
        if (status == STATUS_NOT_FOUND) return STATUS_OK;
        // The last call may have too little time left for an answer.
        bool is_over = o.timeout_s && clock_now_us() - drain->start_us >= o.timeout_s * 1000000;
        bool is_refused = status != STATUS_OK && status != STATUS_EXHAUSTED;
        if (is_refused && !(is_over && status == STATUS_DEADLINE)) return status;
        if (m) {
            print_left(drain, m->running, &running);
            forepack__v1__drain_node_response__free_unpacked(m, NULL);
        }
        if (is_over)
            return status_fail(STATUS_DEADLINE,
                               "%s still has %" PRIu32 " requests after %" PRId64 " s: it goes on draining",
                               drain->node_id, running, o.timeout_s);
        nanosleep(&pause, NULL);
    }
}

static enum status drain_node(struct drain *drain)
{
    Forepack__V1__DrainNodeResponse *m;
    TRY(drain_ask(drain, &m));
    drain->instance = m->instance;
    print_start(drain->node_id, m);
    uint32_t running = m->running;
    forepack__v1__drain_node_response__free_unpacked(m, NULL);
    if (!o.wait) return STATUS_OK;
    TRY(drain_wait(drain, running));
    printf("%s: gone after %.1f s\n", drain->node_id, (double)(clock_now_us() - drain->start_us) / 1e6);
    return STATUS_OK;
}

static enum status drain_run(char **names, int n)
{
    if (n != 1) return status_fail(STATUS_INVALID, "NODE: give the id of one node, as forepack status shows it");
    struct drain drain = {.node_id = names[0], .start_us = clock_now_us()};
    TRY(remote_open(&o.remote, &drain.channel));
    enum status status = drain_node(&drain);
    rpc_channel_close(drain.channel);
    return status;
}

int command_drain(int argc, char **argv)
{
    char **names = mem_alloc_array((size_t)argc, sizeof *names);
    int n = options_main(options, usage, argc, argv, names);
    rpc_init();
    enum status status = drain_run(names, n);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    rpc_shutdown();
    free(names);
    options_free(options);
    return code;
}
