// SPDX-License-Identifier: Apache-2.0
#include "bench/ruler_draft.h"

#include <string.h>

#include "lib/base/mem.h"

void ruler_add_answer(struct ruler_draft *d, const char *text)
{
    struct ruler_document *document = d->document;
    document->answers = mem_resize(document->answers, (size_t)document->n_answers + 1, sizeof *document->answers);
    document->answers[document->n_answers++] = mem_string(text);
}

void ruler_write_prefix(struct ruler_draft *d, const char *text)
{
    d->document->prefix_bytes = strlen(text);
    fputs(text, d->out);
}

int *ruler_order(struct random_source *r, int n)
{
    int *order = mem_alloc_array((size_t)n, sizeof *order);
    for (int i = 0; i < n; i++) {
        int j = random_below(r, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}
