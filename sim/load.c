// SPDX-License-Identifier: Apache-2.0
#include "sim/load.h"

#include "lib/base/mem.h"

int32_t *load_prompt(const struct scenario_load *load, const struct action *action, int vocab)
{
    int64_t index = action->id - 1, rows = load->trace.n_rows;
    int n = (int)action->request.tokens;
    int32_t *tokens = mem_alloc_array((size_t)n, sizeof *tokens);
    trace_prompt(&load->trace, (int)(index % rows), load->length_scale, load->seed + (index >= rows), vocab, n, tokens,
                 &n);
    return tokens;
}
