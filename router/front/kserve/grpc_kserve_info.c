// SPDX-License-Identifier: Apache-2.0
// The methods of GRPCInferenceService that do not infer: readiness and metadata of server and model. I/O threads answer
// them.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/version.h"
#include "router/front/grpc/grpc_intake.h"
#include "router/front/kserve/kserve_request.h"
#include "router/front/request/intake.h"
#include "router/front/request/reply.h"

#define PLATFORM "forepack"

enum { INFO_BYTES_MAX = 4096 };

// A method: the type of its message, and the function that answers the message.
struct info {
    const ProtobufCMessageDescriptor *type;
    void (*answer)(struct rpc_call *call, const void *m);
};

static void info_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size, const struct info *info)
{
    void *m = grpc_message_unpack(info->type, bytes, size);
    enum status status = m ? intake_check_backlog(rpc_call_context(call)) : STATUS_INVALID;
    if (status == STATUS_OK)
        info->answer(call, m);
    else
        reply_refuse(call, status);
    if (m) protobuf_c_message_free_unpacked(m, NULL);
}

#define INFO_METHOD(method, type_, answer_)                                                                            \
    static void method##_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)                          \
    {                                                                                                                  \
        static const struct info info = {&inference__##type_##_request__descriptor, answer_};                          \
        info_on_message(call, bytes, size, &info);                                                                     \
    }

// --- the server

static bool serving(const struct rpc_call *call)
{
    const struct front *front = rpc_call_context(call);
    return atomic_load(&front->serving);
}

static void answer_live(struct rpc_call *call, const void *m)
{
    Inference__ServerLiveResponse response = INFERENCE__SERVER_LIVE_RESPONSE__INIT;
    response.live = true;
    reply_unary(call, &response.base);
}

static void answer_ready(struct rpc_call *call, const void *m)
{
    Inference__ServerReadyResponse response = INFERENCE__SERVER_READY_RESPONSE__INIT;
    response.ready = serving(call);
    reply_unary(call, &response.base);
}

static void answer_server(struct rpc_call *call, const void *m)
{
    static char *extensions[] = {"model_configuration", "model_repository"};
    Inference__ServerMetadataResponse response = INFERENCE__SERVER_METADATA_RESPONSE__INIT;
    response.name = PLATFORM;
    response.version = FOREPACK_VERSION;
    response.extensions = extensions;
    response.n_extensions = sizeof extensions / sizeof *extensions;
    reply_unary(call, &response.base);
}

// --- models

// Returns NOT_FOUND or INVALID unless the model is served in this version.
static enum status model_find(struct rpc_call *call, const char *name, const char *version)
{
    TRY(intake_check_model(rpc_call_context(call), name));
    return kserve_check_version(name, version);
}

// Checks the name and the version of a model. On failure, ends the call and returns false.
static bool model_check(struct rpc_call *call, const char *name, const char *version)
{
    enum status status = model_find(call, name, version);
    if (status != STATUS_OK) reply_refuse(call, status);
    return status == STATUS_OK;
}

static char *model_name(const struct rpc_call *call, const char *name)
{
    const struct front *front = rpc_call_context(call);
    return *name ? (char *)name : front->model_names[0];
}

static void answer_model_ready(struct rpc_call *call, const void *message)
{
    const Inference__ModelReadyRequest *m = message;
    enum status status = model_find(call, m->name, m->version);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND) {
        reply_refuse(call, status);
        return;
    }
    Inference__ModelReadyResponse response = INFERENCE__MODEL_READY_RESPONSE__INIT;
    response.ready = status == STATUS_OK && serving(call); // a model that is not served is not ready, as in Triton
    reply_unary(call, &response.base);
}

typedef Inference__ModelMetadataResponse__TensorMetadata tensor_metadata;

enum { TENSORS_MAX = 16 };
struct tensor_list {
    tensor_metadata tensors[TENSORS_MAX], *list[TENSORS_MAX];
    int64_t shapes[TENSORS_MAX];
    size_t n;
};

static void tensor_list_add(struct tensor_list *list, const struct kserve_tensor_info *info)
{
    tensor_metadata *t = &list->tensors[list->n];
    inference__model_metadata_response__tensor_metadata__init(t);
    t->name = (char *)info->name;
    t->datatype = (char *)info->datatype;
    t->shape = &list->shapes[list->n];
    t->n_shape = 1;
    list->shapes[list->n] = info->dim;
    list->list[list->n++] = t;
}

static void answer_model(struct rpc_call *call, const void *message)
{
    static char *versions[] = {KSERVE_VERSION};
    const Inference__ModelMetadataRequest *m = message;
    struct tensor_list inputs = {.n = 0}, outputs = {.n = 0};
    if (!model_check(call, m->name, m->version)) return;
    for (const struct kserve_tensor_info *info = kserve_inputs; info->name; info++)
        tensor_list_add(&inputs, info);
    for (int k = 0; k < KSERVE_OUTPUT_COUNT; k++)
        tensor_list_add(&outputs, &kserve_outputs[k]);
    Inference__ModelMetadataResponse response = INFERENCE__MODEL_METADATA_RESPONSE__INIT;
    response.name = model_name(call, m->name);
    response.versions = versions;
    response.n_versions = 1;
    response.platform = PLATFORM;
    response.inputs = inputs.list;
    response.n_inputs = inputs.n;
    response.outputs = outputs.list;
    response.n_outputs = outputs.n;
    reply_unary(call, &response.base);
}

struct config {
    Inference__ModelInput inputs[TENSORS_MAX], *input_list[TENSORS_MAX];
    Inference__ModelOutput outputs[KSERVE_OUTPUT_COUNT], *output_list[KSERVE_OUTPUT_COUNT];
    int64_t input_dims[TENSORS_MAX], output_dims[KSERVE_OUTPUT_COUNT];
    size_t n_inputs;
};

static void config_fill(struct config *c)
{
    for (const struct kserve_tensor_info *info = kserve_inputs; info->name; info++) {
        size_t i = c->n_inputs++;
        inference__model_input__init(&c->inputs[i]);
        c->input_dims[i] = info->dim;
        c->inputs[i].name = (char *)info->name;
        c->inputs[i].data_type = info->type;
        c->inputs[i].dims = &c->input_dims[i];
        c->inputs[i].n_dims = 1;
        c->inputs[i].optional = true; // a client omits text_input or input_ids
        c->input_list[i] = &c->inputs[i];
    }
    for (int k = 0; k < KSERVE_OUTPUT_COUNT; k++) {
        inference__model_output__init(&c->outputs[k]);
        c->output_dims[k] = kserve_outputs[k].dim;
        c->outputs[k].name = (char *)kserve_outputs[k].name;
        c->outputs[k].data_type = kserve_outputs[k].type;
        c->outputs[k].dims = &c->output_dims[k];
        c->outputs[k].n_dims = 1;
        c->output_list[k] = &c->outputs[k];
    }
}

static void answer_config(struct rpc_call *call, const void *message)
{
    const Inference__ModelConfigRequest *m = message;
    struct config c = {.n_inputs = 0};
    if (!model_check(call, m->name, m->version)) return;
    config_fill(&c);
    Inference__ModelTransactionPolicy policy = INFERENCE__MODEL_TRANSACTION_POLICY__INIT;
    policy.decoupled = true;
    Inference__ModelConfig config = INFERENCE__MODEL_CONFIG__INIT;
    config.name = model_name(call, m->name);
    config.platform = config.backend = PLATFORM;
    config.input = c.input_list;
    config.n_input = c.n_inputs;
    config.output = c.output_list;
    config.n_output = KSERVE_OUTPUT_COUNT;
    config.model_transaction_policy = &policy;
    Inference__ModelConfigResponse response = INFERENCE__MODEL_CONFIG_RESPONSE__INIT;
    response.config = &config;
    reply_unary(call, &response.base);
}

static void answer_index(struct rpc_call *call, const void *message)
{
    typedef Inference__RepositoryIndexResponse__ModelIndex model_index;
    const Inference__RepositoryIndexRequest *m = message;
    const struct front *front = rpc_call_context(call);
    bool ready = serving(call);
    size_t n = m->ready && !ready ? 0 : (size_t)front->n_model_names;
    model_index *models = mem_alloc_array(n + 1, sizeof *models), **list = mem_alloc_array(n + 1, sizeof *list);
    for (size_t i = 0; i < n; i++) {
        inference__repository_index_response__model_index__init(&models[i]);
        models[i].name = front->model_names[i];
        models[i].version = KSERVE_VERSION;
        models[i].state = ready ? "READY" : "UNAVAILABLE";
        models[i].reason = ready ? "" : "no worker group is attached, or the router is shutting down";
        list[i] = &models[i];
    }
    Inference__RepositoryIndexResponse response = INFERENCE__REPOSITORY_INDEX_RESPONSE__INIT;
    response.models = list;
    response.n_models = n;
    reply_unary(call, &response.base);
    free(list);
    free(models);
}

INFO_METHOD(live, server_live, answer_live)
INFO_METHOD(ready, server_ready, answer_ready)
INFO_METHOD(server, server_metadata, answer_server)
INFO_METHOD(model_ready, model_ready, answer_model_ready)
INFO_METHOD(model, model_metadata, answer_model)
INFO_METHOD(config, model_config, answer_config)
INFO_METHOD(index, repository_index, answer_index)

#define METHOD(name) .path = "/inference.GRPCInferenceService/" name, .max_message_bytes = INFO_BYTES_MAX
const struct rpc_method front_kserve_info[] = {
    {METHOD("ServerLive"), .on_message = live_on_message, .open = true},
    {METHOD("ServerReady"), .on_message = ready_on_message, .open = true},
    {METHOD("ServerMetadata"), .on_message = server_on_message},
    {METHOD("ModelReady"), .on_message = model_ready_on_message},
    {METHOD("ModelMetadata"), .on_message = model_on_message},
    {METHOD("ModelConfig"), .on_message = config_on_message},
    {METHOD("RepositoryIndex"), .on_message = index_on_message},
    {0},
};
