// SPDX-License-Identifier: Apache-2.0
#include "router/core/resume.h"

#include "lib/base/hash.h"

// All routers must compute the same mark, so the key is constant. A mark guards against mistakes, not against attacks.
static const struct hash_key mark_key = {0x666f72657061636bU, 0x6d61726b2d763031U};

// The lowest bits of a mark.
enum { MARK_PRUNED = 1, MARK_GIVEN = 2, MARK_BITS = 3 };

uint64_t resume_basis(const int32_t *prompt, int n_tokens, const struct sampling *sampling)
{
    uint64_t parts[] = {hash_bytes(&mark_key, prompt, (size_t)n_tokens * sizeof *prompt),
                        sampling->temperature > 0 ? sampling->seed : 0};
    return hash_bytes(&mark_key, parts, sizeof parts);
}

static bool keeps_all(const struct request *r)
{
    return r->n_kept_ranges == 1 && r->kept[0].first == 0 && r->kept[0].last == r->spec.n_tokens - 1;
}

uint64_t resume_mark(const struct request *r, uint64_t model_fingerprint)
{
    bool pruned = !keeps_all(r);
    size_t kept_bytes = (size_t)r->n_kept_ranges * sizeof *r->kept;
    uint64_t parts[] = {r->resume.basis, model_fingerprint, pruned ? hash_bytes(&mark_key, r->kept, kept_bytes) : 0};
    uint64_t hash = hash_bytes(&mark_key, parts, sizeof parts);
    return (hash & ~(uint64_t)MARK_BITS) | MARK_GIVEN | (pruned ? MARK_PRUNED : 0);
}

bool resume_mark_is_pruned(uint64_t mark)
{
    return mark & MARK_PRUNED;
}

enum status resume_check(const struct request *r)
{
    if (r->resume.n <= sampling_output_max(&r->spec.sampling)) return STATUS_OK;
    return status_fail(STATUS_OUT_OF_RANGE, "resume: %d tokens given, max_tokens is %d", r->resume.n,
                       sampling_output_max(&r->spec.sampling));
}

enum status resume_compare(const struct request *r)
{
    if (!r->resume.mark || r->resume.mark == r->mark) return STATUS_OK;
    return status_fail(STATUS_MISMATCH, "resume: the prompt, its kept tokens, the seed or the model differ from those "
                                        "of the answer's mark: send the request without resume");
}

bool resume_is_complete(const struct request *r)
{
    return r->resume.is_stopped || (r->resume.n && r->resume.n == r->spec.sampling.max_tokens);
}
