// SPDX-License-Identifier: Apache-2.0
#include "router/core/tenant_usage.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

void tenant_usages_init(struct tenant_usages *usages, int max, const struct hash_key *key)
{
    *usages = (struct tenant_usages){.max = max, .hash_key = *key, .n_slots = 2};
    if (!max) return;
    while (usages->n_slots < 2 * (uint64_t)max)
        usages->n_slots *= 2;
    usages->slots = mem_alloc_array((size_t)usages->n_slots, sizeof *usages->slots);
    usages->tenants = mem_alloc_array((size_t)max + 1, sizeof *usages->tenants);
    usages->tenants[usages->n++].name = mem_string(TENANT_USAGE_OTHERS);
}

void tenant_usages_fini(struct tenant_usages *usages)
{
    for (int i = 0; i < usages->n; i++)
        free(usages->tenants[i].name);
    free(usages->tenants);
    free(usages->slots);
}

struct tenant_usage *tenant_usages_find(struct tenant_usages *usages, const char *name)
{
    if (!usages->max) return NULL;
    uint64_t at = hash_text(&usages->hash_key, name ? name : "") & (usages->n_slots - 1);
    for (; usages->slots[at]; at = (at + 1) & (usages->n_slots - 1))
        if (strcmp(usages->tenants[usages->slots[at]].name, name ? name : "") == 0)
            return &usages->tenants[usages->slots[at]];
    if (usages->n > usages->max) return &usages->tenants[0];
    struct tenant_usage *tenant = &usages->tenants[usages->n];
    tenant->name = mem_string(name ? name : "");
    usages->slots[at] = usages->n++;
    return tenant;
}
