// SPDX-License-Identifier: Apache-2.0
// The task is to repeat the lines of a named block exactly:
//   def gate_7():
//    turn(41)
//    rest(5)
//    light(13)
// Names of other blocks have the same word or the same number.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/draft.h"
#include "lib/base/mem.h"

enum { BLOCKS_MIN = 2, BLOCKS_MAX = 4, LINES_MIN = 3, LINES_MAX = 6, NAME_BYTES = 16, LINE_BYTES = 24 };
enum { OTHER_FACTS = 16 }; // first item of facts; block i is item i

struct block {
    char name[NAME_BYTES];             // "gate_7"
    char body[LINES_MAX * LINE_BYTES]; // "\n turn(41)\n rest(5)"
};

static void make_name(struct random_source *r, const struct block *first, struct block *block)
{
    static const char *const words[] = {"gate", "bridge", "tide", "boathouse", "bakery", "pier", "windmill", "chapel"};
    const char *word = words[random_below(r, 8)];
    int number = 1 + random_below(r, 9), same = first ? random_below(r, 3) : 0;
    if (same == 1)
        snprintf(block->name, sizeof block->name, "%.*s_%d", (int)strcspn(first->name, "_"), first->name, number);
    else if (same == 2)
        snprintf(block->name, sizeof block->name, "%s%s", word, strchr(first->name, '_'));
    else
        snprintf(block->name, sizeof block->name, "%s_%d", word, number);
}

static void make_body(struct random_source *r, struct block *block)
{
    static const char *const verbs[] = {"turn", "light", "rest", "answer", "fish", "fence", "picture", "end"};
    int n = LINES_MIN + random_below(r, LINES_MAX - LINES_MIN + 1), size = 0;
    for (int i = 0; i < n; i++) {
        const char *verb = verbs[random_below(r, 8)];
        int number = random_below(r, 100);
        size += snprintf(block->body + size, sizeof block->body - (size_t)size, "\n %s(%d)", verb, number);
    }
}

static void make_blocks(struct random_source *r, struct block *blocks, int n)
{
    for (int made = 0; made < n;) {
        bool taken = false;
        make_name(r, made ? &blocks[0] : NULL, &blocks[made]);
        for (int i = 0; i < made; i++)
            taken |= strcmp(blocks[i].name, blocks[made].name) == 0;
        if (!taken) make_body(r, &blocks[made++]);
    }
}

static char *block_text(const struct block *block)
{
    return mem_format("def %s():%s", block->name, block->body);
}

static void copy_ask(struct draft *d, const struct block *block, int item)
{
    char *question = random_below(&d->random, 2) ? mem_format("Write the block %s.", block->name)
                                                 : mem_format("What are the lines of %s?", block->name);
    draft_ask(d, question, mem_string(block->body), DRAFT_ITEM(item));
}

void task_copy(struct draft *d)
{
    struct block blocks[BLOCKS_MAX];
    int n = BLOCKS_MIN + random_below(&d->random, BLOCKS_MAX - BLOCKS_MIN + 1), planted = 1;
    make_blocks(&d->random, blocks, n);
    copy_ask(d, &blocks[0], 0);
    draft_need(d, 0, block_text(&blocks[0]));
    while (planted < n && draft_plant(d, planted, block_text(&blocks[planted])))
        planted++;
    draft_plant_other_facts(d, OTHER_FACTS);
    draft_fill(d);
    for (int i = 1; i < planted && draft_wants_questions(d); i++)
        copy_ask(d, &blocks[i], i);
}
