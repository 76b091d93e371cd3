// SPDX-License-Identifier: Apache-2.0
#include "bench/facts.h"

#include <stdbool.h>
#include <string.h>

#include "lib/base/mem.h"

static bool fact_exists(const struct fact *facts, int n, const struct fact *fact)
{
    for (int i = 0; i < n; i++)
        if (facts[i].attribute == fact->attribute && strcmp(facts[i].name, fact->name) == 0) return true;
    return false;
}

void facts_add(struct random_source *r, struct fact *facts, int n, int count)
{
    while (n < count) {
        struct fact fact;
        if (n && random_unit(r) < 0.1)
            memcpy(fact.name, facts[random_below(r, n)].name, sizeof fact.name);
        else
            town_name(r, fact.name);
        fact.attribute = town_attribute(r);
        if (fact_exists(facts, n, &fact)) continue;
        fact.value = random_below(r, 10000);
        facts[n++] = fact;
    }
}

char *fact_sentence(struct random_source *r, const struct fact *f)
{
    switch (random_below(r, 3)) {
    case 0: return mem_format("The %s of %s is %04d.", f->attribute, f->name, f->value);
    case 1: return mem_format("%s's %s is %04d.", f->name, f->attribute, f->value);
    default: return mem_format("%s has the %s %04d.", f->name, f->attribute, f->value);
    }
}

char *fact_question(struct random_source *r, const struct fact *f)
{
    switch (random_below(r, 3)) {
    case 0: return mem_format("What is the %s of %s?", f->attribute, f->name);
    case 1: return mem_format("What is %s's %s?", f->name, f->attribute);
    default: return mem_format("Which %s does %s have?", f->attribute, f->name);
    }
}
