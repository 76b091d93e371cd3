// SPDX-License-Identifier: Apache-2.0
// Asks for a fact about the person of another sentence: "Mira Tolen keeps the grey boat." Every keeper has a fact, and
// so have people who keep nothing. Another keeper and somebody else have the same attribute as the answer, so the
// question's words alone do not find the fact.
#include <stdlib.h>
#include <string.h>

#include "bench/draft.h"
#include "bench/facts.h"
#include "lib/base/mem.h"

enum { KEEPERS_MIN = 3, KEEPERS_MAX = 6, OTHERS_MAX = 3, PEOPLE_MAX = KEEPERS_MAX + OTHERS_MAX, THING_BYTES = 24 };
enum { KEEPS = 32 }; // item of the first keeper's sentence; the fact of person i is item i

struct keeper {
    char thing[THING_BYTES]; // "grey boat"
};

static void random_thing(struct random_source *r, struct keeper *keeper)
{
    static const char *const kinds[] = {"grey",  "silver", "old",   "little", "empty", "wooden",
                                        "heavy", "bright", "small", "stone",  "long",  "low"};
    static const char *const things[] = {"boat", "lantern", "umbrella", "letter", "bicycle", "fence"};
    const char *kind = kinds[random_below(r, 12)], *thing = things[random_below(r, 6)];
    snprintf(keeper->thing, sizeof keeper->thing, "%s %s", kind, thing);
}

static void make_keepers(struct random_source *r, struct keeper *keepers, int n)
{
    for (int made = 0; made < n;) {
        bool taken = false;
        random_thing(r, &keepers[made]);
        for (int i = 0; i < made; i++)
            taken |= strcmp(keepers[i].thing, keepers[made].thing) == 0;
        made += !taken;
    }
}

// Makes one fact for each person, about one of two attributes, so that no attribute alone answers a question. Person 1,
// a keeper, and person `stranger`, who keeps nothing, share the attribute of person 0.
static void make_people(struct random_source *r, struct fact *people, int n, int stranger)
{
    const char *attributes[2] = {town_attribute(r)};
    attributes[1] = town_attribute(r);
    for (int made = 0; made < n;) {
        struct fact *person = &people[made];
        bool taken = false;
        town_name(r, person->name);
        person->attribute = attributes[made > 1 && made != stranger ? random_below(r, 2) : 0];
        person->value = random_below(r, 10000);
        for (int i = 0; i < made; i++)
            taken |= strcmp(people[i].name, person->name) == 0;
        made += !taken;
    }
}

static char *keeper_sentence(struct random_source *r, const struct keeper *keeper, const char *name)
{
    switch (random_below(r, 3)) {
    case 0: return mem_format("%s keeps the %s.", name, keeper->thing);
    case 1: return mem_format("The keeper of the %s is %s.", keeper->thing, name);
    default: return mem_format("The %s is kept by %s.", keeper->thing, name);
    }
}

static void two_hop_ask(struct draft *d, const struct keeper *keepers, const struct fact *people, int i)
{
    const char *attribute = people[i].attribute, *thing = keepers[i].thing;
    char *question = random_below(&d->random, 2)
                         ? mem_format("What is the %s of the keeper of the %s?", attribute, thing)
                         : mem_format("Which %s does the keeper of the %s have?", attribute, thing);
    draft_ask(d, question, mem_format(" %04d", people[i].value), DRAFT_ITEM(i) | DRAFT_ITEM(KEEPS + i));
}

void task_two_hop(struct draft *d)
{
    struct random_source *r = &d->random;
    struct keeper keepers[KEEPERS_MAX];
    struct fact people[PEOPLE_MAX];
    int n = KEEPERS_MIN + random_below(r, KEEPERS_MAX - KEEPERS_MIN + 1),
        n_people = n + 1 + random_below(r, OTHERS_MAX);
    make_keepers(r, keepers, n);
    make_people(r, people, n_people, n);
    two_hop_ask(d, keepers, people, 0);
    for (int i = 0; i < 2; i++) {
        draft_need(d, i, fact_sentence(r, &people[i]));
        draft_need(d, KEEPS + i, keeper_sentence(r, &keepers[i], people[i].name));
    }
    for (int i = n_people - 1; i >= 2; i--) {
        if (i < n && !draft_plant(d, KEEPS + i, keeper_sentence(r, &keepers[i], people[i].name))) break;
        if (!draft_plant(d, i, fact_sentence(r, &people[i]))) break;
    }
    draft_fill(d);
    for (int i = 1; i < n && draft_wants_questions(d); i++)
        if (draft_count(d, i) && draft_count(d, KEEPS + i)) two_hop_ask(d, keepers, people, i);
}
