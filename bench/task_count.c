// SPDX-License-Identifier: Apache-2.0
// Asks how many parcels arrived for a person. The sentences are all over the document, among parcels for other people.
#include <stdlib.h>
#include <string.h>

#include "bench/draft.h"
#include "bench/facts.h"
#include "lib/base/mem.h"

enum { PEOPLE_MIN = 3, PEOPLE_MAX = 5, PARCELS_MAX = 6 };
enum { OTHER_FACTS = 16 }; // first item of facts; the parcels of person i are item i

struct receiver {
    char name[TOWN_NAME_BYTES];
    int parcels;
};

static void make_receivers(struct random_source *r, struct receiver *people, int n)
{
    for (int made = 0; made < n;) {
        bool taken = false;
        town_name(r, people[made].name);
        people[made].parcels = 1 + random_below(r, PARCELS_MAX);
        for (int i = 0; i < made; i++)
            taken |= strcmp(people[i].name, people[made].name) == 0;
        made += !taken;
    }
}

static char *parcel_sentence(struct random_source *r, const struct receiver *person)
{
    bool timed = random_below(r, 3) == 0;
    const char *time = town_time(r), *place = town_place(r);
    return timed ? mem_format("%s a parcel for %s arrived at %s.", time, person->name, place)
                 : mem_format("A parcel for %s arrived at %s.", person->name, place);
}

// Asks for the number of parcels in the document, which may have no room for all parcels of everybody.
static void count_ask(struct draft *d, const struct receiver *person, int item, int parcels)
{
    char *question = random_below(&d->random, 2) ? mem_format("How many parcels arrived for %s?", person->name)
                                                 : mem_format("How many parcels did %s get?", person->name);
    draft_ask(d, question, mem_format(" %d", parcels), DRAFT_ITEM(item));
}

// Drafts a document that has all parcels of the first person. The other people take turns, so that each has some.
void task_count(struct draft *d)
{
    struct random_source *r = &d->random;
    struct receiver people[PEOPLE_MAX];
    int n = PEOPLE_MIN + random_below(r, PEOPLE_MAX - PEOPLE_MIN + 1);
    bool room = true;
    make_receivers(r, people, n);
    count_ask(d, &people[0], 0, people[0].parcels);
    for (int i = 0; i < people[0].parcels; i++)
        draft_need(d, 0, parcel_sentence(r, &people[0]));
    for (int parcel = 0; parcel < PARCELS_MAX; parcel++)
        for (int i = 1; i < n && room; i++)
            if (parcel < people[i].parcels) room = draft_plant(d, i, parcel_sentence(r, &people[i]));
    draft_plant_other_facts(d, OTHER_FACTS);
    draft_fill(d);
    for (int i = 1; i < n && draft_wants_questions(d); i++)
        if (draft_count(d, i)) count_ask(d, &people[i], i, draft_count(d, i));
}
