// SPDX-License-Identifier: Apache-2.0
#include "router/front/grpc/grpc_intake.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/messages/fields.h"
#include "lib/messages/unpack.h"
#include "router/front/grpc/grpc_access.h"
#include "router/front/request/intake.h"

enum { TENANT_ROOM = 257 };

struct message_job {
    struct intake_job job;       // first member: job_run() casts the pool's pointer
    struct grpc_message message; // holds a reference to the call
    struct rpc_bytes bytes;
    char tenant[TENANT_ROOM];
};

static void job_free(struct message_job *job)
{
    rpc_bytes_free(&job->bytes);
    rpc_call_unref(job->message.call);
    free(job);
}

static void job_run(struct intake_job *base, bool dropped)
{
    struct message_job *job = (struct message_job *)base;
    job->message.dropped = dropped;
    job->message.read(&job->message);
    job_free(job);
}

static void tenant_write(const struct grpc_message *message, char tenant[TENANT_ROOM])
{
    const struct principal *p = grpc_principal(message->call);
    if (p)
        snprintf(tenant, TENANT_ROOM, "%s", principal_tenant(p));
    else if (message->tenant_field)
        proto_field_text(message->bytes, message->size, message->tenant_field, tenant, TENANT_ROOM);
}

// Adds a job to the pool. `weight` is intake_job.bytes.
static enum status job_add(const struct grpc_message *message, size_t weight)
{
    const struct front *front = rpc_call_context(message->call);
    struct message_job *job = mem_alloc(sizeof *job);
    job->bytes = rpc_call_take_message(message->call);
    job->message = *message;
    job->message.bytes = job->bytes.data;
    job->message.at_once = false;
    job->job = (struct intake_job){.run = job_run, .tenant = job->tenant, .bytes = weight};
    tenant_write(&job->message, job->tenant);
    rpc_call_ref(message->call);
    enum status status = intake_pool_add(front->pool, &job->job, message->owner);
    if (status != STATUS_OK) job_free(job);
    return status;
}

enum status grpc_message_read(struct rpc_call *call, const uint8_t *bytes, size_t size, uint32_t tenant_field,
                              struct intake_owner *owner, grpc_read_fn *read, void *user)
{
    const struct front *front = rpc_call_context(call);
    TRY(intake_check_open(front));
    const struct grpc_message message = {.call = call,
                                         .bytes = bytes,
                                         .size = size,
                                         .arrived_us = clock_now_us(),
                                         .user = user,
                                         .at_once = size <= INTAKE_AT_ONCE_BYTES,
                                         .read = read,
                                         .tenant_field = tenant_field,
                                         .owner = owner};
    if (!message.at_once) return job_add(&message, size);
    read(&message);
    return STATUS_OK;
}

enum status grpc_message_postpone(const struct grpc_message *message)
{
    return job_add(message, message->size + INTAKE_POSTPONED_BYTES);
}

void *grpc_message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size)
{
    // A packed token takes at least one byte in `bytes`, and TOKEN_BYTES unpacked.
    enum { MEMORY_MAX = 16 << 20, TOKEN_BYTES = sizeof(uint32_t) };
    return proto_unpack(type, bytes, size, MEMORY_MAX + TOKEN_BYTES * size, NULL);
}

void grpc_bound_deadline(const struct rpc_call *call, struct request *r)
{
    int64_t call_us = rpc_call_deadline_us(call);
    r->spec.deadline_of_call = call_us < r->spec.ttft_deadline_us;
    if (r->spec.deadline_of_call) r->spec.ttft_deadline_us = call_us;
}
