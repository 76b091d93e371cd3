// SPDX-License-Identifier: Apache-2.0
// RULER's needles in a haystack: sentences that give a key a value, among repeated lines, prose or other needles.
#include <stdlib.h>
#include <string.h>

#include "bench/ruler_draft.h"
#include "bench/town.h"
#include "lib/base/mem.h"

enum { NEEDLES = 4, VALUE_BYTES = RULER_UUID_BYTES };
enum haystack { LINES, PROSE, ONLY_NEEDLES };

struct needle_rules {
    enum haystack haystack;
    int keys, values; // keys in the text, without those of a haystack of needles; values of each key
    int asked;        // keys that the question names
    bool uuid_keys, uuid_values;
};

static const struct needle_rules needle_rules[] = {
    [RULER_SINGLE_1] = {LINES, 1, 1, 1, false, false},
    [RULER_SINGLE_2] = {PROSE, 1, 1, 1, false, false},
    [RULER_SINGLE_3] = {PROSE, 1, 1, 1, false, true},
    [RULER_MULTIKEY_1] = {PROSE, NEEDLES, 1, 1, false, false},
    [RULER_MULTIKEY_2] = {ONLY_NEEDLES, 1, 1, 1, false, false},
    [RULER_MULTIKEY_3] = {ONLY_NEEDLES, 1, 1, 1, true, true},
    [RULER_MULTIVALUE] = {PROSE, 1, NEEDLES, 1, false, false},
    [RULER_MULTIQUERY] = {PROSE, NEEDLES, 1, NEEDLES, false, false},
};

struct needle {
    char key[RULER_KEY_BYTES], value[VALUE_BYTES];
};

static const char *kind_of(const struct needle_rules *rule)
{
    return rule->uuid_values ? "codes" : "numbers";
}

static void make_value(struct ruler_draft *d, const struct needle_rules *rule, char value[VALUE_BYTES])
{
    if (rule->uuid_values)
        ruler_uuid(&d->random, value);
    else
        snprintf(value, VALUE_BYTES, "%d", 1000000 + random_below(&d->random, 9000000));
}

static void make_key(struct ruler_draft *d, const struct needle_rules *rule, uint64_t shuffle, int index,
                     char key[RULER_KEY_BYTES])
{
    if (rule->uuid_keys)
        ruler_uuid(&d->random, key);
    else
        ruler_key(shuffle, index, key);
}

static void write_needle(struct ruler_draft *d, const struct needle_rules *rule, const struct needle *needle)
{
    fprintf(d->out, "One of the hidden %s for %s is: %s.", kind_of(rule), needle->key, needle->value);
}

static void write_hay(struct ruler_draft *d, const struct needle_rules *rule, uint64_t shuffle, int index)
{
    if (rule->haystack == LINES) {
        fputs("The wind is low. The road is long. A boat comes in, and a boat goes out. It is evening again.", d->out);
    } else if (rule->haystack == PROSE) {
        char *sentence = town_sentence(&d->random);
        fputs(sentence, d->out);
        free(sentence);
    } else {
        struct needle other = {0};
        make_key(d, rule, shuffle, index, other.key);
        make_value(d, rule, other.value);
        write_needle(d, rule, &other);
    }
}

// Writes the keys of the question: "a", "a and b", "a, b and c".
static char *asked_keys(const struct needle *needles, const struct needle_rules *rule)
{
    char *text = mem_string("");
    for (int k = 0; k < rule->asked; k++) {
        const char *before = !k ? "" : k == rule->asked - 1 ? " and " : ", ";
        char *longer = mem_format("%s%s%s", text, before, needles[k * rule->values].key);
        free(text);
        text = longer;
    }
    return text;
}

// Writes the units of hay with the needles at random places between them.
static void write_text(struct ruler_draft *d, const struct needle_rules *rule, uint64_t shuffle,
                       const struct needle *needles, int n)
{
    int *before = mem_alloc_array((size_t)n, sizeof *before); // unit before which each needle stands
    for (int i = 0; i < n; i++)
        before[i] = random_below(&d->random, d->units + 1);
    for (int unit = 0; unit <= d->units; unit++) {
        const char *gap = rule->haystack == PROSE && unit % 8 ? " " : "\n";
        for (int i = 0; i < n; i++) {
            if (before[i] != unit) continue;
            write_needle(d, rule, &needles[i]);
            fputs(gap, d->out);
        }
        if (unit == d->units) break;
        write_hay(d, rule, shuffle, n + unit);
        fputs(gap, d->out);
    }
    free(before);
}

void ruler_write_needles(struct ruler_draft *d)
{
    const struct needle_rules *rule = &needle_rules[d->request->task];
    struct needle needles[NEEDLES];
    const uint64_t shuffle = random_next(&d->random);
    const int n = rule->keys * rule->values;
    for (int i = 0; i < n; i++) {
        if (i % rule->values)
            memcpy(needles[i].key, needles[i - 1].key, RULER_KEY_BYTES);
        else
            make_key(d, rule, shuffle, i, needles[i].key);
        make_value(d, rule, needles[i].value);
        if (i < rule->asked * rule->values) ruler_add_answer(d, needles[i].value);
    }
    char *keys = asked_keys(needles, rule);
    fprintf(d->out, "The text below mentions some hidden %s. Remember them: a question about them follows.\n\n",
            kind_of(rule));
    write_text(d, rule, shuffle, needles, n);
    fprintf(d->out, "\n\nWhich hidden %s for %s does the text mention? Name all of them.\n", kind_of(rule), keys);
    char *prefix = mem_format("The hidden %s for %s that the text mentions are", kind_of(rule), keys);
    ruler_write_prefix(d, prefix);
    free(prefix);
    free(keys);
}
