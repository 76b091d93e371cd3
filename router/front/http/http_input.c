// SPDX-License-Identifier: Apache-2.0
#include "router/front/http/http_input.h"

#include <stddef.h>
#include <stdlib.h>

#include "lib/base/mem.h"

struct http_memory {
    struct http_memory *next;
    max_align_t bytes[];
};

void *http_input_alloc(struct http_input *in, size_t count, size_t size_bytes)
{
    struct http_memory *memory = mem_alloc_array(count + 1, size_bytes + sizeof *memory);
    memory->next = in->memory;
    in->memory = memory;
    return memory->bytes;
}

void http_input_fini(struct http_input *in)
{
    for (struct http_memory *memory = in->memory, *next; memory; memory = next) {
        next = memory->next;
        free(memory);
    }
    json_generation_fini(&in->fields);
    if (in->data.free) in->data.free(in->data.value);
    json_decref(in->translated);
    json_decref(in->variables);
    json_decref(in->allowed_tools);
}
