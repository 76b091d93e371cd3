// SPDX-License-Identifier: Apache-2.0
// The accounts of the core, and the only code that writes them:
//
//   of a request   usage, timing, account (its node, its bin and the resources it uses there)
//   of a node      sched.account (outstanding bins, rows, attention pairs, KV blocks), sched.cost, sched.share, the
//                  entries of sched.prefixes and which of them its requests hold, its measures
//   of the core    waiting requests and tokens per class, running requests, totals, measures, the share of rows
//                  computed
//   of a tenant    its waiting requests and tokens; the tokens generated for it (the waiting set charges dispatched
//                  rows when it picks them)
//
// Each function books one step in the life of a request in all accounts that the step affects, so the accounts cannot
// disagree. A shadow (shadow.h) is booked on its node only, and counts in no total, measure or tenant's counter.
// Decides nothing, calls no callback. One thread.
#pragma once

#include "router/core/node.h"
#include "router/core/tenant_accounts.h"
#include "router/core/tenant_usage.h"

struct class_count {
    int requests;
    int64_t tokens; // request_queue_tokens()
};

// Counters of all nodes of a pool that have ever been attached. They only grow.
struct pool_counts {
    uint64_t dispatched_rows; // includes rows that the node's prefix cache holds
    uint64_t busy_us;         // time of passes; for each node at most its attached time
    uint64_t gone_us;         // attached time of the nodes that are gone
};

struct ledger {
    int vocab_size;
    int running;                               // requests on worker groups
    int background;                            // background requests, on worker groups or waiting
    struct class_count waiting[QUEUE_CLASSES]; // requests on no worker group
    struct core_totals totals;
    struct bin_totals bins[NODE_ROLES];
    struct pool_counts pools[NODE_ROLES];
    struct tenant_accounts tenants;
    struct tenant_usages usages;
    struct core_measures measures;
    struct node_measures_list nodes; // nodes.c acquires and releases the entries
};

// A bin that was dispatched and in which at least one request waits for its score or its first token.
struct core_bin {
    uint64_t id;
    int open;         // requests that wait for their score or first token
    int open_fitting; // requests in `open` that are not long prompts; the bin is outstanding while this is over 0
};

enum queue_class ledger_class_of(int32_t priority);
int64_t ledger_waiting_tokens(const struct ledger *ledger);

// --- arrival

void ledger_arrived(struct ledger *ledger, struct request *r);
// Counts the tokens that the client of a resumed request has. Call it before any other function reads the usage.
void ledger_resumed(struct request *r);
void ledger_refused(struct ledger *ledger, struct request *r, enum status status, int64_t now_us);
// Books that the request joins the queue. `tenant` is admission_queue_tenant().
void ledger_admitted(struct ledger *ledger, struct request *r, const char *tenant);

// --- time: adds the time since the last step to the field of `timing` that belongs to the request's state

void ledger_charge_time(struct request *r, int64_t now_us);

// --- bins and nodes

// Books that the request is dispatched to the node as a part of the bin. Its state is SCORING if the node is a
// speculator, and PACKED if the node is a worker group.
void ledger_placed(struct ledger *ledger, struct request *r, struct core_node *node, struct core_bin *bin);
void ledger_bin_sent(struct ledger *ledger, struct sched_view *view, struct core_node *node, const struct core_bin *bin,
                     int64_t rows, int64_t uncached_rows);
void ledger_scanned(struct ledger *ledger, enum node_role role, uint64_t scan_cost);
// Books that the request left its node. The bin does not wait for the request any more.
void ledger_left_node(struct ledger *ledger, struct request *r);
void ledger_node_gone(struct ledger *ledger, const struct core_node *node, int64_t now_us);

// --- results

// Learns the costs of a node that attaches from the passes that it measured while it started. They are no work of the
// router, so no other account changes.
void ledger_node_measured(struct core_node *node, int64_t now_us);
void ledger_pass_reported(struct ledger *ledger, struct core_node *node, const struct pass_cost *pass, int64_t now_us);
void ledger_scored(struct request *r, int cached_tokens, int64_t now_us);
void ledger_score_reused(struct ledger *ledger, struct request *r); // r->keep_rate comes from an earlier score
// Books the keep rate that the speculator chose for the request's quality.
void ledger_rate_chosen(struct ledger *ledger, struct sched_view *view, const struct request *r, double keep_rate,
                        int64_t now_us);
void ledger_conversation_kept(struct request *r, int frozen, int recalled);      // see struct request_usage
void ledger_ready(struct request *r);                                            // call when r->kept is known
void ledger_speculation_decided(struct ledger *ledger, const struct request *r); // books r->skip and the kept tokens
void ledger_prefill_cached(struct request *r, int cached_tokens);
// Books verified draft tokens. `n_used` is the number of new tokens in the answer, without tokens after a stop string.
// A worker group's counts are not trusted. Verified tokens are capped at the tokens that max_tokens leaves, accepted
// tokens at `n_used`.
void ledger_draft_verified(struct ledger *ledger, struct request *r, const struct sequence_result *result, int n_used);
void ledger_prompt_computed(struct request *r, int cached_tokens, int64_t now_us);
void ledger_tokens_received(struct ledger *ledger, struct request *r, int n,
                            int64_t now_us); // call before the client gets the tokens
// Returns the charge for n generated tokens: 1 for each token. Each of the `on_host` tokens that the host samples
// (sampling_needs_host) costs vocabulary / 32,768 more.
double ledger_output_tokens(int n, int on_host, int vocab_size);
// Charges the tenant for the log-probabilities of n prompt tokens, in addition to their rows. Each log-probability
// costs as much as the extra charge for a token that the host samples.
void ledger_prompt_logprobs_received(struct ledger *ledger, struct request *r, int n);
// Books that the answer contains the first n_used of the n tokens received last. If tokens came together, the
// inter-token time of the first is the time since the previous token; the others have 0. The tenant is charged two rows
// for each unit of ledger_output_tokens().
void ledger_tokens_used(struct ledger *ledger, struct request *r, int n, int n_used);
void ledger_kv_blocks_updated(struct request *r); // call after the request has got tokens

// --- a lost node, a preemption, the end

void ledger_lost_at_speculator(struct request *r);
void ledger_replayed(struct ledger *ledger, struct request *r, enum node_loss loss);
// Books that the request left its worker group for another request. Its tenant will not be charged for the rows that
// are computed again.
void ledger_preempted(struct ledger *ledger, struct request *r);
// Books the end of a request. This is the request's last step.
void ledger_ended(struct ledger *ledger, struct request *r, enum finish_reason reason, enum status status,
                  int64_t now_us);
