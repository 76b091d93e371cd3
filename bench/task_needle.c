// SPDX-License-Identifier: Apache-2.0
// Asks for one of many facts.
#include "bench/draft.h"
#include "bench/facts.h"
#include "lib/base/mem.h"

enum { FACTS_MIN = 6, FACTS_MAX = 16 };
enum { QUESTION_TOKENS = 28 }; // limit, including BOS and the words around it

static void needle_ask(struct draft *d, const struct fact *facts, int i)
{
    char *question = fact_question(&d->random, &facts[i]);
    draft_ask(d, question, mem_format(" %04d", facts[i].value), DRAFT_ITEM(i));
}

// Drafts a document of facts. The fact of the first question is planted first, so that even the shortest document
// contains it.
void task_needle(struct draft *d)
{
    struct fact facts[FACTS_MAX];
    int n = FACTS_MIN + random_below(&d->random, FACTS_MAX - FACTS_MIN + 1), planted = 1;
    facts_add(&d->random, facts, 0, n);
    draft_reserve(d, QUESTION_TOKENS);
    draft_need(d, 0, fact_sentence(&d->random, &facts[0]));
    while (planted < n && draft_plant(d, planted, fact_sentence(&d->random, &facts[planted])))
        planted++;
    draft_fill(d);
    for (int i = 0; i < planted && draft_wants_questions(d); i++)
        needle_ask(d, facts, i);
}
