// SPDX-License-Identifier: Apache-2.0
// Inference.DrainNode: makes a node finish its requests and leave, for an operator.
//
// Threads: an I/O thread reads the message and checks the caller; the rest runs on the core's thread.
#include <stdlib.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/core/node.h"
#include "router/front/grpc/grpc_access.h"
#include "router/front/grpc/grpc_intake.h"
#include "router/front/request/intake.h"
#include "router/front/request/reply.h"

enum { DRAIN_BYTES_MAX = 4096 };

struct drain_job {
    struct rpc_call *call; // holds a reference
    Forepack__V1__DrainNodeRequest *message;
};

static void drain_log(const struct rpc_call *call, const char *node_id)
{
    struct principal *p = grpc_principal(call);
    log_event(LOG_INFO, "drain_requested", LOG_FIELD("node", node_id), LOG_FIELD("key", p ? principal_key_id(p) : ""),
              LOG_FIELD("peer", rpc_call_peer(call)));
}

static void event_drain_node(struct core *c, void *arg, int64_t now_us)
{
    struct drain_job *job = arg;
    const Forepack__V1__DrainNodeRequest *m = job->message;
    struct node_drain drain;
    enum status status = core_drain_node(c, m->node_id, m->instance, now_us, &drain);
    if (status == STATUS_OK) {
        if (!drain.was_draining) drain_log(job->call, m->node_id);
        Forepack__V1__DrainNodeResponse response = FOREPACK__V1__DRAIN_NODE_RESPONSE__INIT;
        response.instance = drain.instance;
        response.running = (uint32_t)drain.running;
        response.others = (uint32_t)drain.others;
        response.was_draining = drain.was_draining;
        response.role = (char *)role_name(drain.role);
        reply_unary(job->call, &response.base);
    } else {
        reply_refuse(job->call, status);
    }
    forepack__v1__drain_node_request__free_unpacked(job->message, NULL);
    rpc_call_unref(job->call);
    free(job);
}

static enum status drain_check(const struct rpc_call *call)
{
    if (!grpc_is_operator(call))
        return status_fail(STATUS_DENIED, "nodes are drained with an operator's API key only (forepack keys add "
                                          "--operator)");
    return intake_check_backlog(rpc_call_context(call));
}

static void drain_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct front *front = rpc_call_context(call);
    Forepack__V1__DrainNodeRequest *m = grpc_message_unpack(&forepack__v1__drain_node_request__descriptor, bytes, size);
    enum status status = m ? drain_check(call) : STATUS_INVALID;
    if (status != STATUS_OK) {
        reply_refuse(call, status);
        if (m) forepack__v1__drain_node_request__free_unpacked(m, NULL);
        return;
    }
    struct drain_job *job = mem_alloc(sizeof *job);
    rpc_call_ref(call);
    *job = (struct drain_job){call, m};
    loop_post(front->loop, event_drain_node, job);
}

const struct rpc_method front_drain_node = {
    .path = "/forepack.v1.Inference/DrainNode", .on_message = drain_on_message, .max_message_bytes = DRAIN_BYTES_MAX};
