// SPDX-License-Identifier: Apache-2.0
// Messages of nodes into the router's core. The input is a script: nodes attach, send mostly well-formed messages, and
// leave; clients send requests and cancel them; time passes. Whatever nodes send, every request ends exactly once, with
// at most max_tokens tokens, all of the vocabulary. The router's messages to nodes agree with what its clients have
// sent and received, and no account of an ended request is left.
#include "lib/base/log.h"
#include "lib/messages/unpack.h"
#include "tests/fuzz/fuzz_node.h"

enum { TICKS_MAX = 1000, UNPACKED_MAX = 1 << 20 };

struct world w;

static void end_close(struct end *end)
{
    node_link_closed(&end->link, w.core, w.now_us);
    end->open = false;
}

// Packs a message, unpacks it and handles it, as between a node and the router.
static void bytes_handle(struct end *end, const uint8_t *bytes, size_t n)
{
    if (!end->open)
        *end = (struct end){.link = {.ops = &node_end_ops, .heartbeat_ms = 1000, .tail_tokens = TAIL_TOKENS},
                            .open = true};
    node_message *m = proto_unpack(&forepack__cluster__v1__node_message__descriptor, bytes, n, UNPACKED_MAX, NULL);
    if (m) node_link_handle(&end->link, w.core, m, w.now_us);
    if (m) forepack__cluster__v1__node_message__free_unpacked(m, NULL);
    if (!m) end_close(end);
}

static void message_handle(struct end *end, const node_message *m)
{
    size_t n = forepack__cluster__v1__node_message__get_packed_size(m);
    uint8_t *bytes = malloc(n + 1);
    forepack__cluster__v1__node_message__pack(m, bytes);
    bytes_handle(end, bytes, n);
    free(bytes);
}

static void message_send(struct fuzz_script *script, int node, int kind, bool answers)
{
    message_handle(&w.ends[node], node_message_fill(script, node, kind, answers));
}

// Ends the streams that the core has finished and runs the due work of the core.
static void settle(void)
{
    int ticks = 0;
    do {
        for (int i = 0; i < LINKS; i++)
            if (w.ends[i].open && w.ends[i].finished) end_close(&w.ends[i]);
        FUZZ_CHECK(ticks++ < TICKS_MAX);
        core_tick(w.core, w.now_us);
    } while (core_next_deadline_us(w.core) <= w.now_us);
}

static void drain(int node)
{
    struct node_drain state;
    if (w.ends[node].link.node) core_drain_node(w.core, w.ends[node].link.node->hello.node_id, 0, w.now_us, &state);
}

// Returns false if the number is no action.
static bool act_more(struct fuzz_script *script, int node, int action)
{
    switch (action) {
    case 0: node_choices_submit(script); return true;
    case 7: drain(node); return true;
    case 10:
    case 13: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAFTS, true); return true;
    case 11:
    case 12: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED, true); return true;
    case 14:
    case 15: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP, true); return true;
    default: return false;
    }
}

static void act(struct fuzz_script *script)
{
    int action = fuzz_byte(script), node = action / 16 % LINKS;
    if (action / 64 == 3 && act_more(script, node, action % 16)) return;
    struct end *end = &w.ends[node];
    switch (action % 16) {
    case 0: node_request_submit(script); break;
    case 1: core_cancel(w.core, node_any_request(script), w.now_us); break;
    case 2: core_abort(w.core, "r1", 0, w.now_us); break;
    case 3: w.now_us += 1000 * (int64_t)fuzz_byte(script); break;
    case 4: w.now_us += SECOND_US * (int64_t)fuzz_below(script, 8); break;
    case 5:
        if (end->open) end_close(end);
        break;
    case 6: {
        struct fuzz_script bytes = fuzz_part(script, fuzz_byte(script));
        bytes_handle(end, bytes.at, bytes.left);
        break;
    }
    case 7: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAINING, false); break;
    case 8:
    case 9: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO, false); break;
    case 10: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT, false); break;
    case 11:
    case 12: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED, false); break;
    default: message_send(script, node, FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP, false);
    }
}

static void ready_changed(void *user, bool ready)
{
}

static struct core *core_open(void)
{
    const struct core_options options = {
        .max_queue_requests = 30,
        .max_queue_tokens = 3000,
        .queue_reserve_percent = 10,
        .max_wait_us = SECOND_US,
        .score_timeout_us = 2 * SECOND_US,
        .stall_us = 5 * SECOND_US,
        .eject_us = 10 * SECOND_US,
        .worker_grace_us = 5 * SECOND_US,
        .heartbeat_us = SECOND_US,
        .min_tokens = 16,
        .tail_tokens = TAIL_TOKENS,
        .selection_bytes = 1 << 14,
        .bins_ahead = 2,
        .tokenizer_fingerprint = 77,
        .vocab_size = VOCAB,
        .hash_key = {1, 2},
    };
    struct core_ops ops = {.ready_changed = ready_changed};
    node_link_core_ops(&ops);
    return core_create(&options, &ops);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    struct core_status status;
    log_setup("fuzz", LOG_ERROR);
    memset(&w, 0, sizeof w);
    node_fill_begin();
    w.now_us = 100 * SECOND_US;
    w.core = core_open();
    while (script.left) {
        act(&script);
        settle();
        node_check_accounts();
    }
    core_get_status(w.core, &status);
    const struct core_totals *totals = &status.totals;
    FUZZ_CHECK(status.waiting >= 0 && status.running >= 0 && status.waiting_tokens >= 0 && status.n_nodes <= LINKS);
    FUZZ_CHECK(totals->draft_accepted_tokens <= totals->draft_tokens);
    FUZZ_CHECK(totals->draft_accepted_tokens <= totals->completion_tokens);
    core_status_fini(&status);
    for (int i = 0; size % 2 && i < w.n_clients; i++) // otherwise all end with the core
        core_cancel(w.core, w.clients[i].number, w.now_us);
    node_check_accounts();
    core_free(w.core);
    for (int i = 0; i < w.n_clients; i++)
        FUZZ_CHECK(w.clients[i].ends == 1);
    return 0;
}
