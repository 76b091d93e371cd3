// SPDX-License-Identifier: Apache-2.0
#include "router/sched/node_time.h"

#include <math.h>

bool node_time_is_known(const struct sched_view *view, const struct sched_node *node, int64_t rows)
{
    int64_t pass_rows = rows < node->limits.token_budget ? rows : node->limits.token_budget;
    return cost_knows(&node->cost, pass_rows, view->now_us);
}

double node_time_pass_decodes(const struct sched_node *node)
{
    const struct node_account *account = &node->account;
    return (double)(account->requests.count - account->requests_in_bins) / (1 + node->limits.fill_passes);
}

double node_time_work_us(const struct sched_node *node, const struct cost_model *cost, double rows, double pairs)
{
    const struct node_account *account = &node->account;
    if (rows <= 0) return 0;
    double passes = ceil(rows / node->limits.token_budget);
    double decodes = node_time_pass_decodes(node), paced_us = 0;
    if (decodes > 0) {
        double entries = (double)(account->context_blocks * node->limits.block_tokens) / account->requests.count;
        paced_us = cost_pass_us(cost, 0, rows, pairs) / cost_share_of(&node->share);
        rows += passes * decodes;
        pairs += passes * decodes * entries;
    }
    return fmax(1, fmax(paced_us, cost_pass_us(cost, passes, rows, pairs)));
}

double node_time_fill_us(const struct sched_node *node, const struct cost_model *cost, int64_t rows, int64_t cached)
{
    if (!node->limits.more_stages || rows < 1) return 0;
    const int64_t last = 1 + (rows - 1) % node->limits.token_budget;
    const double pairs = cost_pairs((double)last, (double)(cached + rows - last));
    return node->limits.fill_passes * node_time_work_us(node, cost, (double)last, pairs);
}

double node_time_finish_us(const struct sched_node *node, int64_t rows, int64_t cached)
{
    double pairs = cost_pairs((double)rows, (double)cached);
    return node_time_work_us(node, &node->cost, (double)(node->account.bin_tokens + rows),
                             node->account.bin_attention_pairs + pairs);
}

// Returns half of the token budget, or the least number of rows at which the fixed cost is an eighth of the pass,
// whichever is smaller.
int64_t node_time_min_bin_rows(const struct sched_view *view, const struct sched_node *node)
{
    int64_t half = ((int64_t)node->limits.token_budget + 1) / 2;
    if (!cost_knows(&node->cost, half, view->now_us)) return half;
    double row_time_us = 7 * node->cost.fixed_us; // time of the rows: seven eighths of the pass
    return row_time_us >= (double)half * node->cost.row_us ? half : 1 + (int64_t)(row_time_us / node->cost.row_us);
}
