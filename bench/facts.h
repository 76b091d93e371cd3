// SPDX-License-Identifier: Apache-2.0
// Facts about people of the town: "The gate code of Mira Tolen is 4821." The caller frees the strings.
#pragma once

#include "bench/town.h"

struct fact {
    char name[TOWN_NAME_BYTES];
    const char *attribute;
    int value; // 0..9999, written with four digits
};

// Adds facts to facts [n] until there are `count`, each with a unique pair of name and attribute. Names share parts,
// and one fact in ten is about the person of an earlier fact, so only the whole key finds a fact.
void facts_add(struct random_source *r, struct fact *facts, int n, int count);

char *fact_sentence(struct random_source *r, const struct fact *fact);
char *fact_question(struct random_source *r, const struct fact *fact);
