// SPDX-License-Identifier: Apache-2.0
// Asks for several facts, answered in the order in which the question names them.
#include <stdio.h>
#include <stdlib.h>

#include "bench/draft.h"
#include "bench/facts.h"
#include "lib/base/mem.h"

enum { FACTS_MIN = 6, FACTS_MAX = 16, ASKED_MIN = 2, ASKED_MAX = 4 };

// Asks for the facts with the indices `asked` [n].
static void facts_ask(struct draft *d, const struct fact *facts, const int *asked, int n)
{
    static const char *const starts[] = {"What are", "Give", "Name"};
    int start = random_below(&d->random, 3);
    bool of = random_below(&d->random, 2);
    char *question = mem_string(starts[start]), *answer = mem_string("");
    uint64_t needs = 0;
    for (int i = 0; i < n; i++) {
        const struct fact *f = &facts[asked[i]];
        const char *before = !i ? " " : i == n - 1 ? " and " : ", ";
        char *longer = of ? mem_format("%s%sthe %s of %s", question, before, f->attribute, f->name)
                          : mem_format("%s%s%s's %s", question, before, f->name, f->attribute);
        free(question);
        question = longer;
        longer = mem_format("%s%s%04d", answer, i ? ", " : " ", f->value);
        free(answer);
        answer = longer;
        needs |= DRAFT_ITEM(asked[i]);
    }
    char *ended = mem_format("%s%s", question, start ? "." : "?");
    free(question);
    draft_ask(d, ended, answer, needs);
}

// Asks for a random choice of the first `planted` facts.
static void facts_ask_some(struct draft *d, const struct fact *facts, int planted)
{
    int order[FACTS_MAX], n = ASKED_MIN + random_below(&d->random, ASKED_MAX - ASKED_MIN + 1);
    if (n > planted) n = planted;
    for (int i = 0; i < planted; i++)
        order[i] = i;
    for (int i = 0; i < n; i++) {
        int j = i + random_below(&d->random, planted - i), chosen = order[j];
        order[j] = order[i];
        order[i] = chosen;
    }
    facts_ask(d, facts, order, n);
}

void task_facts(struct draft *d)
{
    static const int first_asked[ASKED_MAX] = {0, 1, 2, 3};
    struct fact facts[FACTS_MAX];
    int n = FACTS_MIN + random_below(&d->random, FACTS_MAX - FACTS_MIN + 1);
    int asked = ASKED_MIN + random_below(&d->random, ASKED_MAX - ASKED_MIN + 1), planted = 0;
    facts_add(&d->random, facts, 0, n);
    facts_ask(d, facts, first_asked, asked);
    for (; planted < asked; planted++)
        draft_need(d, planted, fact_sentence(&d->random, &facts[planted]));
    while (planted < n && draft_plant(d, planted, fact_sentence(&d->random, &facts[planted])))
        planted++;
    draft_fill(d);
    while (draft_wants_questions(d))
        facts_ask_some(d, facts, planted);
}
