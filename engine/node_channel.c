// SPDX-License-Identifier: Apache-2.0
#include "engine/node_channel.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/secret_file.h"

enum status node_channel_open(const struct node_router *router, struct rpc_channel **channel_p)
{
    char *token = NULL;
    if (router->token_file) TRY(secret_file_read(router->token_file, &token));
    struct rpc_channel *channel = NULL;
    enum status status =
        rpc_channel_open_named(router->address, router->tls.ca ? &router->tls : NULL, router->server_name, &channel);
    if (status == STATUS_OK) status = rpc_channel_set_token(channel, token);
    if (token) explicit_bzero(token, strlen(token));
    free(token);
    if (status == STATUS_OK)
        *channel_p = channel;
    else
        rpc_channel_close(channel);
    return status;
}

enum status node_channel_check(const struct node_router *router, const struct router_list *list)
{
    const struct router_entry *first = &list->entries[0];
    struct node_router checked = *router;
    struct rpc_channel *channel;
    TRY(router_list_check_files(list));
    checked.address = first->kind == ROUTER_FILE ? "localhost:1" : first->address; // a channel dials only when used
    TRY(node_channel_open(&checked, &channel));
    rpc_channel_close(channel);
    return STATUS_OK;
}

void node_identity_draw(Forepack__Cluster__V1__Role role, const char *node_id, struct node_identity *identity)
{
    uint64_t random;
    char host[HOST_NAME_MAX + 1] = "localhost";
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = (uint64_t)clock_now_us() ^ (uint64_t)getpid();
    identity->instance = random ? random : 1;
    if (*node_id) {
        snprintf(identity->node_id, sizeof identity->node_id, "%s", node_id);
        return;
    }
    gethostname(host, sizeof host - 1);
    snprintf(identity->node_id, sizeof identity->node_id, "%s-%s-%08x",
             role == FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR ? "speculator" : "worker", host,
             (unsigned)(identity->instance >> 32));
}
