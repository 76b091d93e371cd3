// SPDX-License-Identifier: Apache-2.0
// The options of `forepack up`, and the command lines of the router and the nodes that result from these options.
#pragma once

#include "cli/children.h"
#include "lib/base/log_options.h"
#include "lib/base/options.h"
#include "lib/text/client_options.h"

enum { UP_NODES_MAX = 64 }; // nodes of each role

struct up_flags {
    char *cpus, *main, *spec, *shape, *spec_shape, *load, *host, *backend, *dtype, *kv_dtype, *packed_cache;
    char *chat_template, *api_keys, *prefill, *drafts, *token_file, *tls_cert, *tls_key, *tls_client_ca;
    struct option_list model_names, router_options, worker_options, speculator_options;
    double keep_rate, quality;
    int64_t node_port, tp, pp, spec_tp, workers, speculators, port, http_port, threads, token_budget, max_seqs,
        kv_blocks, itl_target_ms;
    int64_t speculate_min_tokens, score_timeout_ms, drain_ms;
    bool prefix_cache, insecure, verbose;
    struct client_options clients;
    struct log_options log;
};

extern struct up_flags up_flags;
extern const struct option up_options[]; // the options fill up_flags

int up_ranks(void);            // ranks of all nodes
int64_t up_rank_threads(void); // compute threads of a rank
char *up_node_address(void);   // address where the nodes attach; the caller frees it

// Return the command line of a child: the program first, NULL last. Call them in the forked child: the strings are on
// the heap, and the exec frees them.
char **up_router_arguments(void);
char **up_node_arguments(const struct child *c);
