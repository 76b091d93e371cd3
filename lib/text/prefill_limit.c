// SPDX-License-Identifier: Apache-2.0
#include "lib/text/prefill_limit.h"

// Returns true if the keep rate or the quality asks for all tokens. With a quality, the keep rate applies if the
// speculators have no calibration.
static bool keeps_all(const struct prefill *p)
{
    return p->keep_rate >= 1 && (p->quality == 0 || p->quality >= 1);
}

bool prefill_prunes(const struct prefill *p)
{
    return p->mode != PREFILL_OFF && !keeps_all(p);
}

static void limit_quality(double least, struct prefill *p)
{
    if (p->quality < least) p->quality = least;
    p->keep_rate = 1;
}

static void limit_keep_rate(double least, struct prefill *p)
{
    if (p->keep_rate < least) p->keep_rate = least;
    if (p->quality > 0) p->min_keep_rate = least;
}

static void require_pruning(const struct prefill *defaults, struct prefill *p)
{
    struct prefill standard;
    prefill_defaults(&standard);
    p->mode = PREFILL_REQUIRED;
    if (keeps_all(p)) {
        p->keep_rate = defaults->keep_rate;
        p->quality = defaults->quality;
    }
    if (p->quality >= 1) p->quality = 0; // keeps all tokens where a calibration applies
    if (p->keep_rate >= 1) p->keep_rate = standard.keep_rate;
}

bool prefill_limit_prune(const struct prune_rule *rule, const struct prefill *defaults, struct prefill *p)
{
    const struct prefill asked = *p;
    if (!prefill_prunes(p) && rule->kind != PRUNE_REQUIRED) return false;
    switch (rule->kind) {
    case PRUNE_NEVER: p->mode = PREFILL_OFF; break;
    case PRUNE_QUALITY: limit_quality(rule->bound, p); break;
    case PRUNE_KEEP: limit_keep_rate(rule->bound, p); break;
    case PRUNE_REQUIRED: require_pruning(defaults, p); break;
    default: return false;
    }
    return p->mode != asked.mode || p->quality != asked.quality || p->keep_rate != asked.keep_rate ||
           p->min_keep_rate != asked.min_keep_rate;
}
