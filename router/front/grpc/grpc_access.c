// SPDX-License-Identifier: Apache-2.0
#include "router/front/grpc/grpc_access.h"

#include "router/front/request/reply.h"

static void release(void *identity)
{
    principal_unref(identity);
}

enum status front_authorise(struct rpc_call *call)
{
    const struct front *front = rpc_call_context(call);
    struct principal *p;
    if (!front->identity) return STATUS_OK;
    enum status status = identity_authenticate(front->identity, rpc_call_metadata(call, "authorization"), &p);
    if (status == STATUS_OK) {
        rpc_call_set_identity(call, p, release);
    } else {
        front_refused(front, status);
    }
    return status;
}

struct principal *grpc_principal(const struct rpc_call *call)
{
    const struct front *front = rpc_call_context(call);
    return front->identity ? rpc_call_identity(call) : NULL;
}

bool grpc_is_operator(const struct rpc_call *call)
{
    struct principal *p = grpc_principal(call);
    return !p || principal_is_operator(p);
}

bool grpc_admit_call(struct rpc_call *call)
{
    struct principal *p = grpc_principal(call);
    int64_t retry_us = 0;
    enum status status = p ? identity_admit_call(p, &retry_us) : STATUS_OK;
    if (status == STATUS_OK) return true;
    front_refused(rpc_call_context(call), status);
    reply_refuse_until(call, status, retry_us);
    return false;
}
