// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_role.h"

#include "lib/base/log.h"
#include "lib/messages/unpack.h"
#include "sim/clock.h"

enum { KV_BLOCKS = 24, BINS_MAX = 12, STEPS_MAX = 20000, UNPACKED_MAX = 1 << 20 };

static struct {
    const struct fuzz_role *role;
    struct scenario_node plan;
    void *service;
    int bins;
} w;

// --- the role

static void check(void)
{
    const struct role_load load = w.role->ops->load(w.service);
    const char *problem = w.role->ops->check(w.service);
    if (!problem) problem = w.role->check(&load, &w.plan);
    if (problem) fprintf(stderr, "%s\n", problem);
    FUZZ_CHECK(!problem);
}

static void send(void *node, const node_message *message)
{
    size_t n = forepack__cluster__v1__node_message__get_packed_size(message);
    uint8_t *bytes = malloc(n + 1);
    FUZZ_CHECK(forepack__cluster__v1__node_message__pack(message, bytes) == n);
    free(bytes);
    w.role->sent(message);
}

static void step(int n)
{
    while (n-- && w.role->ops->busy(w.service)) {
        FUZZ_CHECK(w.role->ops->step(w.service) == STATUS_OK);
        check();
    }
}

static void handle_bytes(const uint8_t *bytes, size_t n)
{
    router_message *m = proto_unpack(&forepack__cluster__v1__router_message__descriptor, bytes, n, UNPACKED_MAX, NULL);
    if (!m) return;
    w.role->handle(w.service, m);
    forepack__cluster__v1__router_message__free_unpacked(m, NULL);
    check();
}

static void handle_packed(const router_message *m)
{
    size_t n = forepack__cluster__v1__router_message__get_packed_size(m);
    uint8_t *bytes = malloc(n + 1);
    forepack__cluster__v1__router_message__pack(m, bytes);
    handle_bytes(bytes, n);
    free(bytes);
}

static void drop_all(void)
{
    w.role->ops->drop_all(w.service);
    w.role->dropped();
}

// --- the script

static void cancel(struct fuzz_script *script)
{
    uint64_t id = fuzz_number(script) % (FUZZ_IDS + 1);
    Forepack__Cluster__V1__Cancel m = FOREPACK__CLUSTER__V1__CANCEL__INIT;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL;
    message.cancel = &m;
    m.requests = &id;
    m.n_requests = 1;
    handle_packed(&message);
}

static void act(struct fuzz_script *script)
{
    switch (fuzz_below(script, 8)) {
    case 0:
    case 1:
    case 2:
        if (++w.bins <= BINS_MAX) handle_packed(w.role->make_bin(script));
        break;
    case 3: cancel(script); break;
    case 4: {
        struct fuzz_script bytes = fuzz_part(script, fuzz_byte(script));
        if (++w.bins <= BINS_MAX) handle_bytes(bytes.at, bytes.left);
        break;
    }
    case 5:
        if (fuzz_byte(script) > 200)
            drop_all();
        else
            handle_packed(w.role->make_drafting(script));
        break;
    default: step(1 + fuzz_below(script, 8));
    }
}

static bool has_nothing(void)
{
    const struct role_load load = w.role->ops->load(w.service);
    return !w.role->ops->busy(w.service) && !load.running && !load.waiting && !load.held_prompts &&
           !load.held_kv_blocks && load.kv_blocks_free == KV_BLOCKS;
}

// Makes the node. Bits of the first byte choose whether the engine samples, how many blocks drafts may hold, a
// calibration, and whether sampling on the host takes time.
static struct scenario_node plan_of(struct fuzz_script *script, int setup, enum node_role kind)
{
    return (struct scenario_node){.role = kind,
                                  .context = FUZZ_CONTEXT,
                                  .budget = FUZZ_ROWS,
                                  .kv_blocks = KV_BLOCKS,
                                  .max_seqs = 4,
                                  .prefix_cache = true,
                                  .fixed_us = 100,
                                  .row_ns = 1000,
                                  .sample_us = setup / 32 % 2 * 100,
                                  .itl_target_ms = fuzz_below(script, 3) - 1,
                                  .draft_blocks = setup / 2 % 4 * 5,
                                  .calibration = setup / 8 % 4};
}

void fuzz_role_run(const struct fuzz_role *role, struct fuzz_script *script)
{
    int setup = fuzz_byte(script);
    const struct scenario scenario = {.options = {.vocab = FUZZ_VOCAB, .samples = setup % 2}};
    log_setup("fuzz", LOG_ERROR);
    sim_clock_set(SIM_START_US);
    w.role = role;
    w.plan = plan_of(script, setup, role->kind);
    w.bins = 0;
    struct engine *engine = sim_engine_create(&scenario, &w.plan, 1);
    w.service = role->ops->create(engine, &w.plan, send, NULL);
    FUZZ_CHECK(w.service);
    while (script->left)
        act(script);
    step(STEPS_MAX);
    FUZZ_CHECK(!role->ops->busy(w.service));
    role->ended(w.service);
    FUZZ_CHECK(has_nothing());
    role->ops->free(w.service);
    sim_engine_free(engine);
}

// --- for the targets

uint64_t fuzz_content(uint64_t content, const uint32_t *tokens, size_t n, uint32_t first_position)
{
    for (size_t i = 0; i < n; i++)
        content = answer_entry(content, (int32_t)tokens[i], (int32_t)(first_position + i));
    return content;
}

void fuzz_answer(uint64_t content, uint32_t first_position, uint32_t *tokens, size_t n)
{
    const struct scenario_options options = {.vocab = FUZZ_VOCAB};
    const struct answer_rule rule = answer_rule_of(&options, false);
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (uint32_t)answer_token(content, -1, &rule);
        content = fuzz_content(content, &tokens[i], 1, first_position + (uint32_t)i);
    }
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
