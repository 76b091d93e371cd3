// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_role.h"

#include "base/log.h"
#include "sim/clock.h"

enum { KV_BLOCKS = 24, BINS_MAX = 12, STEPS_MAX = 300 };

static void send(void *node, const Forepack__Cluster__V1__NodeMessage *message)
{
    size_t n = forepack__cluster__v1__node_message__get_packed_size(message);
    uint8_t *bytes = malloc(n + 1);
    FUZZ_CHECK(forepack__cluster__v1__node_message__pack(message, bytes) == n);
    free(bytes);
}

static void step(const struct role_ops *role, void *service, int n)
{
    while (n-- && role->busy(service)) {
        FUZZ_CHECK(role->step(service) == STATUS_OK);
        const char *problem = role->check(service);
        if (problem) fprintf(stderr, "%s\n", problem);
        FUZZ_CHECK(!problem);
    }
}

static void cancel(const struct role_ops *role, void *service, struct fuzz_script *script)
{
    uint64_t id = fuzz_number(script) % (FUZZ_IDS + 1);
    Forepack__Cluster__V1__Cancel m = FOREPACK__CLUSTER__V1__CANCEL__INIT;
    Forepack__Cluster__V1__RouterMessage message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL;
    message.cancel = &m;
    m.requests = &id;
    m.n_requests = 1;
    role->handle(service, &message);
}

static void handle_bytes(const struct role_ops *role, void *service, const uint8_t *bytes, size_t n)
{
    Forepack__Cluster__V1__RouterMessage *m = forepack__cluster__v1__router_message__unpack(NULL, n, bytes);
    if (m) role->handle(service, m);
    if (m) forepack__cluster__v1__router_message__free_unpacked(m, NULL);
}

static void handle_packed(const struct role_ops *role, void *service, const Forepack__Cluster__V1__RouterMessage *m)
{
    size_t n = forepack__cluster__v1__router_message__get_packed_size(m);
    uint8_t *bytes = malloc(n + 1);
    forepack__cluster__v1__router_message__pack(m, bytes);
    handle_bytes(role, service, bytes, n);
    free(bytes);
}

static void act(const struct role_ops *role, void *service, fuzz_bin_fn *make_bin, struct fuzz_script *script,
                int *bins)
{
    switch (fuzz_below(script, 8)) {
    case 0:
    case 1:
    case 2:
        if (++*bins <= BINS_MAX) handle_packed(role, service, make_bin(script));
        break;
    case 3: cancel(role, service, script); break;
    case 4: {
        struct fuzz_script bytes = fuzz_part(script, fuzz_byte(script));
        if (++*bins <= BINS_MAX) handle_bytes(role, service, bytes.at, bytes.left);
        break;
    }
    case 5:
        if (fuzz_byte(script) > 200) role->drop_all(service);
        break;
    default: step(role, service, 1 + fuzz_below(script, 8));
    }
}

void fuzz_role_run(const struct role_ops *role, enum node_role kind, fuzz_bin_fn *make_bin, struct fuzz_script *script)
{
    const struct scenario scenario = {.options = {.vocab = FUZZ_VOCAB, .samples = fuzz_byte(script) % 2}};
    const struct scenario_node plan = {.role = kind,
                                       .context = FUZZ_CONTEXT,
                                       .budget = 32,
                                       .kv_blocks = KV_BLOCKS,
                                       .max_seqs = 4,
                                       .prefix_cache = true,
                                       .fixed_us = 100,
                                       .row_ns = 1000,
                                       .itl_target_ms = fuzz_below(script, 3) - 1};
    int bins = 0;
    log_setup("fuzz", LOG_ERROR);
    sim_clock_set(SIM_START_US);
    struct engine *engine = sim_engine_create(&scenario, &plan, 1);
    void *service = role->create(engine, &plan, send, NULL);
    FUZZ_CHECK(service);
    while (script->left)
        act(role, service, make_bin, script, &bins);
    step(role, service, STEPS_MAX);
    role->drop_all(service);
    FUZZ_CHECK(!role->busy(service) && role->load(service).kv_blocks_free == KV_BLOCKS);
    role->free(service);
    sim_engine_free(engine);
}

size_t fuzz_tokens(struct fuzz_script *script, uint32_t tokens[FUZZ_TOKENS_MAX])
{
    size_t n = fuzz_byte(script) % (FUZZ_TOKENS_MAX + 1u);
    int flags = fuzz_byte(script), head = fuzz_byte(script) % 64;
    for (size_t i = 0; i < n; i++)
        tokens[i] = (uint32_t)((i < (size_t)head ? i : i * (size_t)flags) % (FUZZ_VOCAB - 3) + 3);
    if (flags == 255 && n) tokens[n - 1] = (uint32_t)fuzz_number(script);
    return n;
}
