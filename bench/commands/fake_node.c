// SPDX-License-Identifier: Apache-2.0
// One thread answers each bin with one message. With a pace, the interval is divided into SLOTS slots, each sequence
// belongs to one slot, and all sequences of a slot get their next token in one message when its time comes.
#include "bench/commands/fake_node.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/node.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/thread.h"
#include "lib/net/rpc.h"
#include "proto/forepack/v1/inference.pb-c.h"

enum { ANSWER_TOKEN = 5, BLOCK_TOKENS = 16, KV_BLOCKS = 1 << 20, TOKEN_BUDGET = 8192, SEQS = 4096, PASS_US = 1 };
enum { PACED_SEQS = 20000, PACED_BUDGET = 32768, SLOTS = 100 };

struct paced_sequence {
    uint64_t request;
    uint32_t left; // tokens left to send
};

struct slot {
    struct paced_sequence *sequences; // [n]
    int n, capacity;
};

struct fake_node {
    struct node *node;
    struct fake_pace *pace; // borrowed; NULL: none
    struct slot slots[SLOTS];
    int next_slot; // slot of the next sequence
    int64_t n_messages;
    int64_t tick;    // number of slots sent
    int64_t tick_us; // time of the next slot
    bool closing;    // atomic
    pthread_t thread;
};

// Answers a bin with one message that has all tokens of every sequence, reported as one pass over the bin's rows.
static void answer_bin(struct fake_node *node, const Forepack__Cluster__V1__PrefillBin *bin)
{
    size_t n = bin->n_sequences, tokens = 0, used = 0;
    for (size_t i = 0; i < n; i++)
        tokens += bin->sequences[i]->sampling ? bin->sequences[i]->sampling->max_tokens : 0;
    Forepack__Cluster__V1__SequenceResult *results = mem_alloc_array(n, sizeof *results);
    Forepack__Cluster__V1__SequenceResult **list = mem_alloc_array(n, sizeof *list);
    uint32_t *ids = mem_alloc_array(tokens, sizeof *ids);
    Forepack__Cluster__V1__StepResults step = FOREPACK__CLUSTER__V1__STEP_RESULTS__INIT;
    for (size_t i = 0; i < n; i++) {
        const Forepack__Cluster__V1__Sequence *sequence = bin->sequences[i];
        list[i] = &results[i];
        forepack__cluster__v1__sequence_result__init(list[i]);
        list[i]->request = sequence->request;
        list[i]->token_ids = ids + used;
        list[i]->n_token_ids = sequence->sampling ? sequence->sampling->max_tokens : 0;
        list[i]->finish = FOREPACK__CLUSTER__V1__FINISH__FINISH_LENGTH;
        used += list[i]->n_token_ids;
        step.rows += (uint32_t)sequence->n_token_ids;
    }
    for (size_t t = 0; t < tokens; t++)
        ids[t] = ANSWER_TOKEN;
    step.results = list;
    step.n_results = n;
    step.step_us = PASS_US;
    step.pairs = step.rows;
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &step;
    node_send(node->node, &message);
    free(ids);
    free(list);
    free(results);
}

// ---- paced sequences

// Sends one token for each sequence, in one message.
static void tokens_send(struct fake_node *node, struct paced_sequence *sequences, int n)
{
    if (!n) return;
    int place = (int)(node->n_messages++ % FAKE_TOKENS);
    uint32_t token = FAKE_FIRST_TOKEN + (uint32_t)place;
    Forepack__Cluster__V1__SequenceResult *results = mem_alloc_array((size_t)n, sizeof *results);
    Forepack__Cluster__V1__SequenceResult **list = mem_alloc_array((size_t)n, sizeof *list);
    for (int i = 0; i < n; i++) {
        list[i] = &results[i];
        forepack__cluster__v1__sequence_result__init(list[i]);
        list[i]->request = sequences[i].request;
        list[i]->token_ids = &token;
        list[i]->n_token_ids = 1;
        if (!--sequences[i].left) list[i]->finish = FOREPACK__CLUSTER__V1__FINISH__FINISH_LENGTH;
    }
    Forepack__Cluster__V1__StepResults step = FOREPACK__CLUSTER__V1__STEP_RESULTS__INIT;
    step.results = list;
    step.n_results = (size_t)n;
    step.rows = (uint32_t)n;
    step.pairs = (uint64_t)n;
    step.step_us = PASS_US;
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &step;
    __atomic_store_n(&node->pace->sent_us[place], clock_now_us(), __ATOMIC_RELAXED);
    node_send(node->node, &message);
    free(list);
    free(results);
}

static void slot_send(struct fake_node *node, struct slot *slot)
{
    tokens_send(node, slot->sequences, slot->n);
    for (int i = 0; i < slot->n; i++) {
        if (!slot->sequences[i].left) slot->sequences[i--] = slot->sequences[--slot->n];
    }
}

// Sends the first tokens immediately, so that the router may send the next bin. Sequences are distributed over the
// slots one by one. Bins differ in size, and a slot with a whole bin would make a burst of tokens in every interval.
static void paced_add(struct fake_node *node, const Forepack__Cluster__V1__PrefillBin *bin)
{
    struct paced_sequence *sequences = mem_alloc_array(bin->n_sequences, sizeof *sequences);
    for (size_t i = 0; i < bin->n_sequences; i++)
        sequences[i] = (struct paced_sequence){bin->sequences[i]->request, bin->sequences[i]->sampling->max_tokens};
    tokens_send(node, sequences, (int)bin->n_sequences);
    for (size_t i = 0; i < bin->n_sequences; i++) {
        if (!sequences[i].left) continue;
        struct slot *slot = &node->slots[node->next_slot++ % SLOTS];
        MEM_GROW(slot->sequences, slot->n, slot->capacity);
        slot->sequences[slot->n++] = sequences[i];
    }
    free(sequences);
}

static void paced_cancel(struct fake_node *node, uint64_t request)
{
    for (int s = 0; s < SLOTS; s++) {
        struct slot *slot = &node->slots[s];
        for (int i = 0; i < slot->n; i++) {
            if (slot->sequences[i].request == request) slot->sequences[i--] = slot->sequences[--slot->n];
        }
    }
}

// Sends the tokens that are due. Returns the time until the next slot, in milliseconds.
static int paced_wait_ms(struct fake_node *node)
{
    int64_t now_us = clock_now_us(), slot_us = node->pace->interval_ms * 1000LL / SLOTS;
    if (!node->tick_us) node->tick_us = now_us;
    for (; node->tick_us <= now_us; node->tick_us += slot_us)
        slot_send(node, &node->slots[node->tick++ % SLOTS]);
    return (int)((node->tick_us - now_us + 999) / 1000);
}

// ---- the thread

static void handle_message(struct fake_node *node, const Forepack__Cluster__V1__RouterMessage *m)
{
    if (m->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN) {
        if (node->pace) {
            paced_add(node, m->prefill_bin);
        } else {
            answer_bin(node, m->prefill_bin);
        }
    } else if (m->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL) {
        for (size_t i = 0; i < m->cancel->n_requests; i++)
            paced_cancel(node, m->cancel->requests[i]);
    }
}

static void *node_run(void *argument)
{
    struct fake_node *node = argument;
    enum node_event_kind kind;
    do {
        struct node_event event;
        node_next(node->node, node->pace ? paced_wait_ms(node) : -1, &event);
        kind = event.kind;
        if (kind == NODE_MESSAGE) handle_message(node, event.message);
        node_event_free(&event);
    } while (kind != NODE_DRAIN && !__atomic_load_n(&node->closing, __ATOMIC_RELAXED));
    return NULL;
}

static enum status read_model_info(const struct router_process *router, Forepack__V1__ModelInfo **info_p)
{
    struct rpc_channel *channel;
    struct rpc_bytes answer;
    TRY(router_process_channel(router, &channel));
    enum status status =
        rpc_unary(channel, "/forepack.v1.Inference/GetModelInfo", (const uint8_t *)"", 0, 10000, &answer);
    if (status == STATUS_OK) {
        *info_p = forepack__v1__model_info__unpack(NULL, answer.size, answer.data);
        rpc_bytes_free(&answer);
        if (!*info_p) status = status_fail(STATUS_INTERNAL, "the router's answer is not a valid ModelInfo");
    }
    rpc_channel_close(channel);
    return status;
}

enum status fake_node_open(const struct router_process *router, struct fake_pace *pace, struct fake_node **node_p)
{
    Forepack__V1__ModelInfo *info;
    TRY(read_model_info(router, &info));
    Forepack__Cluster__V1__Hello hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    hello.role = FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER;
    hello.version = hello.host = hello.backend = hello.dtype = hello.kv_dtype = "fake";
    hello.ranks = 1;
    hello.model_fingerprint = 1;
    hello.tokenizer_fingerprint = info->tokenizer_fingerprint;
    hello.vocab_size = info->vocab_size;
    hello.context_tokens = info->context_tokens;
    hello.token_budget = pace ? PACED_BUDGET : TOKEN_BUDGET;
    hello.block_tokens = BLOCK_TOKENS;
    hello.kv_blocks = KV_BLOCKS;
    hello.max_seqs = !pace ? SEQS : pace->max_seqs ? pace->max_seqs : PACED_SEQS;
    struct fake_node *node = mem_alloc(sizeof *node);
    node->pace = pace;
    const struct node_router at = {.address = router->nodes};
    enum status status = node_start(&at, &hello, &(struct node_callbacks){0}, &node->node);
    forepack__v1__model_info__free_unpacked(info, NULL);
    if (status != STATUS_OK) {
        free(node);
        return status;
    }
    thread_start(&node->thread, "node", node_run, node);
    *node_p = node;
    return STATUS_OK;
}

void fake_node_close(struct fake_node *node)
{
    if (!node) return;
    // A paced node wakes for each slot. A node without a pace waits without a limit, so a signal wakes it: it
    // drains the node (engine/node.h), which must be the only one of this process.
    __atomic_store_n(&node->closing, true, __ATOMIC_RELAXED);
    if (!node->pace) kill(getpid(), SIGTERM);
    pthread_join(node->thread, NULL);
    node_stop(node->node);
    for (int s = 0; s < SLOTS; s++)
        free(node->slots[s].sequences);
    free(node);
}
