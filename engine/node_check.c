// SPDX-License-Identifier: Apache-2.0
#include "engine/node_check.h"

#include <stdlib.h>

#include "engine/launch.h"
#include "engine/node_channel.h"
#include "engine/router_list.h"
#include "lib/text/tokenizer.h"

static const char *environment(const char *name)
{
    return getenv(name);
}

static enum status tokenizer_check(const char *dir)
{
    struct tokenizer *tokenizer = NULL;
    TRY(tokenizer_open(dir, &tokenizer));
    tokenizer_free(tokenizer);
    return STATUS_OK;
}

static enum status link_check(const struct node_router *router)
{
    struct router_list list;
    TRY(router_list_parse(router->address, &list));
    rpc_init();
    enum status status = node_channel_check(router, &list);
    rpc_shutdown();
    return status;
}

// Checks the layers of each pipeline stage. A command that no launcher started checks stages of one rank each.
static enum status model_check(const struct model_options *model)
{
    const struct launch launch = launch_read(environment);
    const int stages = model->stages > 1 ? model->stages : 1;
    const int ranks = launch.launcher == LAUNCHER_NONE ? stages : launch.ranks;
    struct memory_plan plan;
    for (int i = 0; i < stages; i++)
        TRY(model_plan(model, i * (ranks / stages), ranks, &plan));
    return STATUS_OK;
}

enum status node_check_files(const struct model_options *model, const char *tokenizer, const struct node_router *router)
{
    TRY(tokenizer_check(tokenizer));
    TRY(model_check(model));
    return link_check(router);
}
