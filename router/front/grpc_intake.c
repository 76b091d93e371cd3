// SPDX-License-Identifier: Apache-2.0
#include "router/front/grpc_intake.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "proto/fields.h"
#include "proto/unpack.h"
#include "router/front/grpc_access.h"
#include "router/front/intake.h"

enum { TENANT_ROOM = 257 };

struct message_job {
    struct intake_job job; // first: the pool's pointer is ours
    struct rpc_call *call; // our reference
    struct rpc_bytes message;
    grpc_read_fn *read;
    void *user;
    int64_t arrived_us;
    char tenant[TENANT_ROOM];
};

static void job_free(struct message_job *job)
{
    rpc_bytes_free(&job->message);
    rpc_call_unref(job->call);
    free(job);
}

static void job_run(struct intake_job *base, bool dropped)
{
    struct message_job *job = (struct message_job *)base;
    job->read(
        &(struct grpc_message){job->call, job->message.data, job->message.size, job->arrived_us, job->user, dropped});
    job_free(job);
}

enum status grpc_message_read(struct rpc_call *call, const uint8_t *bytes, size_t size, uint32_t tenant_field,
                              struct intake_owner *owner, grpc_read_fn *read, void *user)
{
    const struct front *front = rpc_call_context(call);
    TRY(intake_check_open(front));
    if (size <= INTAKE_AT_ONCE_BYTES) {
        read(&(struct grpc_message){call, bytes, size, clock_now_us(), user, false});
        return STATUS_OK;
    }
    struct message_job *job = mem_alloc(sizeof *job);
    *job = (struct message_job){.job = {.run = job_run, .tenant = job->tenant, .bytes = size},
                                .call = call,
                                .message = rpc_call_take_message(call),
                                .read = read,
                                .user = user,
                                .arrived_us = clock_now_us()};
    const struct principal *p = grpc_principal(call);
    if (p)
        snprintf(job->tenant, sizeof job->tenant, "%s", principal_tenant(p));
    else if (tenant_field)
        proto_field_text(bytes, size, tenant_field, job->tenant, sizeof job->tenant);
    rpc_call_ref(call);
    enum status status = intake_pool_add(front->pool, &job->job, owner);
    if (status != STATUS_OK) job_free(job);
    return status;
}

void *grpc_message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t size)
{
    enum { MEMORY_MAX = 16 << 20, TOKEN_BYTES = sizeof(uint32_t) }; // a packed token may have one byte in `bytes`
    return proto_unpack(type, bytes, size, MEMORY_MAX + TOKEN_BYTES * size, NULL);
}

void grpc_bound_deadline(const struct rpc_call *call, struct request *r)
{
    int64_t call_us = rpc_call_deadline_us(call);
    r->spec.deadline_of_call = call_us < r->spec.ttft_deadline_us;
    if (r->spec.deadline_of_call) r->spec.ttft_deadline_us = call_us;
}
