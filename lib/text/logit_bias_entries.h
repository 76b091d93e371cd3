// SPDX-License-Identifier: Apache-2.0
// Converts the logit bias of a request to entries of forepack.v1.SamplingOptions. Any thread may call.
#pragma once

#include "lib/base/mem.h"
#include "lib/text/logit_bias.h"
#include "proto/forepack/v1/inference.pb-c.h"

// Returns a list of pointers to the [bias->n] entries. List and entries are one block; free() it.
static inline Forepack__V1__SamplingOptions__LogitBiasEntry **logit_bias_entries(const struct logit_bias *bias)
{
    size_t n = (size_t)bias->n;
    Forepack__V1__SamplingOptions__LogitBiasEntry *entries, **list;
    list = mem_alloc(n * (sizeof *list + sizeof *entries) + 1);
    entries = (Forepack__V1__SamplingOptions__LogitBiasEntry *)(list + n);
    for (size_t i = 0; i < n; i++) {
        forepack__v1__sampling_options__logit_bias_entry__init(&entries[i]);
        entries[i].key = (uint32_t)bias->ids[i];
        entries[i].value = bias->numbers[i];
        list[i] = &entries[i];
    }
    return list;
}
