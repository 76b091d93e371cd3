// SPDX-License-Identifier: Apache-2.0
#include "lib/tracing/record.h"

#include <stdlib.h>

#include "lib/base/mem.h"

const char *trace_phase_name(enum trace_phase phase)
{
    static const char *const names[TRACE_PHASES] = {"admit",     "tokenise", "queue", "score",
                                                    "pack_wait", "prefill",  "decode"};
    return (unsigned)phase < TRACE_PHASES ? names[phase] : "unknown";
}

void trace_record_free(struct trace_record *record)
{
    if (!record) return;
    for (int i = 0; i < record->n_parts; i++)
        free(record->parts[i].node);
    free(record->parts);
    free(record->state);
    free(record->id);
    free(record->tenant);
    free(record);
}

void trace_phase_end(struct trace_record *record, enum trace_phase phase, const char *node, int64_t now_us)
{
    if (!record->sampled) return;
    struct trace_part *last = record->n_parts ? &record->parts[record->n_parts - 1] : NULL;
    if (last && (last->phase == phase || record->n_parts == TRACE_PARTS_MAX)) {
        last->end_us = now_us;
        return;
    }
    MEM_GROW(record->parts, record->n_parts, record->capacity);
    record->parts[record->n_parts++] = (struct trace_part){phase, now_us, mem_string(node)};
}

const char *trace_drop_name(enum trace_drop drop)
{
    static const char *const names[TRACE_DROPS] = {"queue", "unreachable", "refused"};
    return names[drop];
}
