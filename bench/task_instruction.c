// SPDX-License-Identifier: Apache-2.0
// Asks for a fact, to be written as the first sentence of the prompt demands. The question does not repeat the demand,
// and people in the text make demands of each other.
#include <stdio.h>
#include <stdlib.h>

#include "bench/draft.h"
#include "bench/facts.h"
#include "lib/base/mem.h"

enum { FACTS_MIN = 4, FACTS_MAX = 10, ANSWER_BYTES = 16 };
enum { INSTRUCTION = 32 }; // item of the instruction; fact i is item i
enum manner { BACKWARDS, TWICE, BRACKETS, AS_USUAL, MANNERS };

static const char *random_instruction(struct random_source *r, enum manner manner)
{
    static const char *const forms[MANNERS][2] = {
        [BACKWARDS] = {"Write every answer backwards.", "The answer must be written backwards."},
        [TWICE] = {"Write the answer twice.", "The answer must be written twice."},
        [BRACKETS] = {"Put brackets around the answer.", "The answer must be written in brackets."},
        [AS_USUAL] = {"Answer as usual.", "The answer must be written as usual."},
    };
    return forms[manner][random_below(r, 2)];
}

static char *demand_sentence(struct random_source *r)
{
    static const char *const demands[MANNERS] = {[BACKWARDS] = "write a letter backwards",
                                                 [TWICE] = "write the answer twice",
                                                 [BRACKETS] = "put brackets around a number",
                                                 [AS_USUAL] = "answer as usual"};
    char *person = town_person(r);
    const char *demand = demands[random_below(r, MANNERS)];
    char *text = mem_format("%s asked the children to %s.", person, demand);
    free(person);
    return text;
}

static char *instructed_answer(enum manner manner, int value)
{
    char v[ANSWER_BYTES];
    snprintf(v, sizeof v, "%04d", value);
    switch (manner) {
    case BACKWARDS: return mem_format(" %c%c%c%c", v[3], v[2], v[1], v[0]);
    case TWICE: return mem_format(" %s %s", v, v);
    case BRACKETS: return mem_format(" (%s)", v);
    default: return mem_format(" %s", v);
    }
}

static void instruction_ask(struct draft *d, const struct fact *facts, int i, enum manner manner)
{
    char *question = fact_question(&d->random, &facts[i]);
    draft_ask(d, question, instructed_answer(manner, facts[i].value), DRAFT_ITEM(INSTRUCTION) | DRAFT_ITEM(i));
}

void task_instruction(struct draft *d)
{
    struct random_source *r = &d->random;
    struct fact facts[FACTS_MAX];
    enum manner manner = (enum manner)random_below(r, MANNERS);
    int n = FACTS_MIN + random_below(r, FACTS_MAX - FACTS_MIN + 1), planted = 1;
    facts_add(r, facts, 0, n);
    instruction_ask(d, facts, 0, manner);
    draft_need_head(d, INSTRUCTION, mem_string(random_instruction(r, manner)));
    draft_need(d, 0, fact_sentence(r, &facts[0]));
    for (int demands = random_below(r, 3); demands > 0; demands--)
        draft_plant(d, -1, demand_sentence(r));
    while (planted < n && draft_plant(d, planted, fact_sentence(r, &facts[planted])))
        planted++;
    draft_fill(d);
    for (int i = 1; i < planted && draft_wants_questions(d); i++)
        instruction_ask(d, facts, i, manner);
}
