// SPDX-License-Identifier: Apache-2.0
#include "router/sched/sched_request.h"

#include "router/sched/prefix_chain.h"

int sched_priority_level(int32_t priority)
{
    return PRIORITY_MAX + priority_clamp(priority);
}

int sched_request_rows(const struct sched_request *r)
{
    if (r->usage->kept_tokens) return r->usage->kept_tokens + r->usage->completion_tokens;
    return r->score_tokens ? r->score_tokens : r->spec->n_tokens;
}

int sched_request_shareable_blocks(const struct sched_request *r, int shared)
{
    int most = (sched_request_rows(r) - 1) / PREFIX_BLOCK; // the last row is always computed
    return shared < most ? shared : most;
}

int sched_request_rows_after(const struct sched_request *r, int cached_blocks)
{
    return sched_request_rows(r) - PREFIX_BLOCK * sched_request_shareable_blocks(r, cached_blocks);
}

static int64_t blocks_for(int64_t tokens, int block_tokens)
{
    return (tokens + block_tokens - 1) / block_tokens;
}

int sched_request_kv_blocks(const struct sched_request *r, int block_tokens)
{
    const struct request_usage *usage = r->usage;
    int max_tokens = r->spec->sampling.max_tokens;
    int64_t have = blocks_for((int64_t)usage->kept_tokens + usage->completion_tokens, block_tokens);
    // The last generated token needs no KV entry, because it is never fed to the model.
    int64_t most = blocks_for((int64_t)usage->kept_tokens + max_tokens - 1, block_tokens);
    int64_t expected = have + output_blocks_expected(blocks_for(max_tokens - usage->completion_tokens, block_tokens));
    return (int)(expected < most ? expected : most);
}

// Bytes that a number and a range count in a bin's message. A number takes at most 5 bytes. A range takes 14 bytes, but
// 120 bytes when a node unpacks it: 48 for the range, 8 for its pointer, up to 64 for protobuf-c's record of the field.
// A node may use 256 MiB to unpack a message of BIN_BYTES_MAX: 4.3 times its size. So a range must count at least 120 /
// 4.3 bytes.
enum { NUMBER_BYTES = 5, RANGE_BYTES = 32 };

// Includes the rows, the prompt if penalties need it, the pinned or kept ranges, the logit bias, the grammar and the
// options.
int64_t sched_request_message_bytes(const struct sched_request *r)
{
    const struct request_spec *spec = r->spec;
    int64_t numbers = sched_request_rows(r), ranges = r->score_tokens ? r->score_ranges : spec->n_pinned;
    int64_t text = (int64_t)spec->sampling.grammar.text_bytes;
    if (r->usage->kept_tokens) {
        ranges = r->usage->kept_tokens < spec->n_tokens || spec->n_turns ? r->usage->kept_tokens : 1;
        numbers += spec->sampling.repetition_penalty != 1 ? spec->n_tokens : 0;
        numbers += 2 * (int64_t)spec->sampling.logit_bias.n + LOOK_AHEAD_MAX; // draft tokens
    }
    return NUMBER_BYTES * numbers + RANGE_BYTES * ranges + text + 1024;
}
