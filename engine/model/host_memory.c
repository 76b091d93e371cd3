// SPDX-License-Identifier: Apache-2.0
// Fits a model on the CPU into the memory limit of its process (struct model_options.memory_bytes). Weights and working
// memory are counted before they are loaded; the KV cache gets what they leave, at most its default size.
#include "engine/model/llama.h"
#include "lib/base/memory_limit.h"

#define MIB(bytes) ((double)(bytes) / (1 << 20))

// Memory that grows while the node serves: messages, grammars, log lines, and fragments of the allocator. Grammars and
// buffers of sampling grow with the vocabulary.
static const double RESERVE_BYTES = 48 << 20, RESERVE_TOKEN_BYTES = 512, RESERVE_SHARE = 0.05;

struct host_room {
    double used; // bytes that the process has already, such as the tokenizer
    double weights, pass, reserve;
    double kv; // bytes left for the KV cache; may be negative
};

static enum status room_count(const struct model *m, const struct safetensors *st, struct host_room *room)
{
    struct device_memory counted;
    TRY(model_count_memory(m, st, &counted));
    room->used = (double)memory_used_bytes();
    room->weights = (double)counted.bytes[MEMORY_WEIGHTS];
    room->pass = (double)counted.bytes[MEMORY_ACTIVATIONS];
    room->reserve = RESERVE_BYTES + RESERVE_TOKEN_BYTES * m->config.vocab_size + RESERVE_SHARE * (double)m->host_limit;
    room->kv = (double)m->host_limit - room->used - room->weights - room->pass - room->reserve;
    return STATUS_OK;
}

// Returns the least number of blocks with which a node is useful: one sequence that fills the token budget.
static int blocks_needed(const struct model *m)
{
    const int tokens = m->shape.max_context < m->shape.max_rows ? m->shape.max_context : m->shape.max_rows;
    return m->kv_blocks_asked ? m->kv_blocks_asked : (tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

enum status model_fit_host(struct model *m, const struct safetensors *st)
{
    struct host_room room;
    if (!m->host_limit) return STATUS_OK;
    TRY(room_count(m, st, &room));
    const double fit = room.kv > 0 ? room.kv / (double)m->kv_block_bytes : 0;
    const int needed = blocks_needed(m), wanted = m->shape.n_kv_blocks;
    if (fit < needed && fit < wanted)
        return status_fail(
            STATUS_EXHAUSTED,
            "the cgroup allows this rank %.0f MiB, but it needs %.0f MiB: %.0f MiB of weights, %.0f MiB for passes, "
            "%.0f MiB for %d KV blocks, %.0f MiB in use and %.0f MiB in reserve. Raise the memory limit, use a smaller "
            "dtype, or a lower max-num-batched-tokens or kv-blocks",
            MIB(m->host_limit), MIB((double)m->host_limit - room.kv + (double)needed * (double)m->kv_block_bytes),
            MIB(room.weights), MIB(room.pass), MIB((double)needed * (double)m->kv_block_bytes), needed, MIB(room.used),
            MIB(room.reserve));
    if (m->kv_blocks_asked || fit >= wanted) return STATUS_OK;
    m->shape.n_kv_blocks = (int)fit;
    m->kv_bytes = (size_t)m->shape.n_kv_blocks * m->kv_block_bytes;
    return STATUS_OK;
}
