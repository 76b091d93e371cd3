// SPDX-License-Identifier: Apache-2.0
// The agreement of pruned answers with the whole prompt, for each tenant: counts since the start, and the latest
// answers of each keep rate or quality that its requests ask for. From the latest answers a window decides if pruning
// falls back to the whole prompt.
//
// The bounds are the one-sided Clopper-Pearson bounds at 95 % (Biometrika 26, 1934). They never have less than the
// stated confidence, also for shares near 1 and for few answers, where Wilson's interval has less. With an agreement of
// `promise` or less, the lower bound exceeds the promise in at most 5 % of the windows.
//
// A window falls back when the lower bound is under the promise although enough answers were compared that agreement of
// all of them would have shown it. After AGREEMENT_LEAST answers it falls back earlier if even the upper bound is under
// the promise. It then begins with no answers. It ends the fallback when the lower bound exceeds the promise by a
// quarter of the rest to 1. So a window changes at most once per agreement_answers_needed() answers. Plain data; one
// thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { AGREEMENT_WINDOW = 1000, AGREEMENT_LEAST = 10, AGREEMENT_TENANTS = 64, AGREEMENT_WINDOWS = 4 };

// The agreement that the fallback is about.
enum agreement_measure { AGREEMENT_UNWATCHED, AGREEMENT_FIRST_TOKEN, AGREEMENT_ANSWER };

// Agreement of an answer with the whole prompt, as its shadow has shown.
struct agreement {
    bool is_compared;   // the answer is greedy; false: it was sampled, so only its log-probability is known
    bool first, whole;  // the first token, the whole answer agree with the whole prompt
    int tokens, agreed; // tokens of the answer; leading tokens that agree with the whole prompt
    double surprise;    // negative log-probability of the answer under the whole prompt, in nats
};

// Return the bounds of the share that agrees, if `agreed` of n answers do.
double agreement_lower_bound(int agreed, int n);
double agreement_upper_bound(int agreed, int n);
// Returns the least number of answers that show the promise if all of them agree.
int agreement_answers_needed(double promise);
// Returns true if a window holds enough answers to show the promise and to end a fallback.
bool agreement_can_show(double promise);

// Quality or keep rate that the requests of a window ask for. quality 0: the keep rate counts.
struct agreement_key {
    double quality, keep_rate;
};

// The state of a window, without its answers.
struct agreement_state {
    struct agreement_key key;
    int n, n_first, n_whole; // answers in the window, and how many agree
    double lower, upper;     // bounds of the agreement by the table's measure
    double promise;
    bool falls_back;
    int decided_agreed, decided_n; // answers by which falls_back last changed
};

struct agreement_window {
    struct agreement_state state;
    uint64_t used;                                         // agreement_table.used at the latest answer
    bool first[AGREEMENT_WINDOW], whole[AGREEMENT_WINDOW]; // ring of the latest n answers
    int next;
};

struct agreement_counts {
    uint64_t scored,  // answers
        compared,     // answers that are greedy
        first, whole, // compared answers that agree
        tokens;       // tokens of all answers
    double surprise;  // sum over all answers
};

struct agreement_tenant {
    char *name; // owned
    struct agreement_counts counts;
    struct agreement_window *windows[AGREEMENT_WINDOWS]; // [n_windows] owned
    int n_windows;
};

// The tenants in the order of their first answer. Once AGREEMENT_TENANTS are known, all further tenants together are
// the last entry, AGREEMENT_OTHERS. If a tenant asks for more than AGREEMENT_WINDOWS keys, the key that was not used
// for the longest time is forgotten.
#define AGREEMENT_OTHERS "(others)" // a tenant of this name, which no API key can have, counts as ""
struct agreement_table {
    enum agreement_measure measure; // AGREEMENT_UNWATCHED: nothing falls back
    double promise;                 // share that must agree, unless a request asks for a lower quality
    struct agreement_tenant tenants[AGREEMENT_TENANTS + 1];
    int n_tenants;
    uint64_t used; // number of answers added
};
void agreement_table_fini(struct agreement_table *table);

// Adds what a shadow has shown. Returns the state of the window that the answer belongs to if the answer changed its
// falls_back, otherwise NULL.
const struct agreement_state *agreement_add(struct agreement_table *table, const char *tenant, struct agreement_key key,
                                            const struct agreement *agreement);
// Returns true if requests of the tenant with this key fall back to the whole prompt.
bool agreement_falls_back(const struct agreement_table *table, const char *tenant, struct agreement_key key);
