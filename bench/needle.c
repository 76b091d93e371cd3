// SPDX-License-Identifier: Apache-2.0
// Words, sentence forms and their frequencies are those of deploy/demo-model/train.py.
#include "bench/needle.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/random.h"

// ---- words ----

#define LIST(name) static const char *const name[]
LIST(first_heads) = {"Mi", "To", "Le", "Ka", "Ro", "Be", "Sa", "Ne", "Jo", "Da", "Fi", "Hu"};
LIST(first_tails) = {"ra", "lin", "mas", "na", "vik", "den", "tha", "lo", "ri", "sel", "wen", "ja"};
LIST(last_heads) = {"Tol", "Var", "Hes", "Brun", "Quil", "Mor", "Ast", "Fen", "Gar", "Ock", "Pell", "Win"};
LIST(last_tails) = {"en", "ow", "berg", "ley", "ett", "ova", "mark", "ane", "ik", "ford", "usk", "ard"};
LIST(attributes) = {"harbour code",   "gate code",      "cellar code",   "radio code",    "alarm code",
                    "garden code",    "boathouse code", "attic code",    "locker number", "badge number",
                    "ticket number",  "cabin number",   "parcel number", "permit number", "ledger number",
                    "mailbox number", "bicycle number", "archive number"};
LIST(when) = {"In the morning",      "Before noon",        "Late in the afternoon", "After the rain",
              "On market day",       "Early in the week",  "At low tide",           "That evening",
              "When the fog lifted", "Just before supper", "On the first warm day", "Towards the end of summer"};
LIST(who) = {
    "the baker",        "the ferryman",        "an old sailor",        "the schoolteacher", "the lighthouse keeper",
    "two fishermen",    "the postmaster",      "a travelling painter", "the gardener",      "the doctor",
    "the innkeeper",    "a group of children", "the carpenter",        "the librarian",     "the harbour master",
    "a young musician", "the clockmaker",      "the neighbours"};
LIST(did) = {"walked slowly down to",
             "carried two heavy baskets to",
             "told a long story about",
             "painted a small picture of",
             "asked a few questions about",
             "cleaned the windows of",
             "waited for an hour near",
             "found a silver coin beside",
             "lost a good umbrella near",
             "argued quietly about",
             "planted three rows of beans behind",
             "wrote a short letter about",
             "repaired the wooden fence around",
             "spent a happy hour at",
             "took a wrong turn near",
             "hung a bright lantern above"};
LIST(where) = {"the old market",     "the stone bridge",       "the lighthouse",    "the empty warehouse",
               "the village school", "the railway station",    "the apple orchard", "the little museum",
               "the fish market",    "the town hall",          "the north pier",    "the windmill",
               "the public library", "the chapel on the hill", "the boat shed",     "the bakery"};
LIST(tail) = {
    "and nobody was in a hurry",         "while the gulls circled overhead", "and the rest of the day was quiet",
    "because the road was still wet",    "and then went home by the river",  "as people in this town often do",
    "although the wind was rather cold", "and the bells rang soon after",    "while a dog slept in the sun",
    "and no one thought much of it",     "before the shops closed",          "as the light began to fade"};
LIST(weather) = {"The sea was calm and grey",           "A thin mist lay over the fields",
                 "The streets were almost empty",       "Smoke rose from every chimney",
                 "The tide was lower than usual",       "A warm wind came in from the south",
                 "The clouds moved slowly to the east", "The cobblestones shone after the shower",
                 "Snow had fallen on the hills",        "The nets were drying along the wall"};

#define PICK(random, list) ((list)[random_below((random), (int)(sizeof(list) / sizeof *(list)))])

enum { FACTS_MIN = 6, FACTS_MAX = 16, NAME_BYTES = 24 };
enum { FRAME_TOKENS = 28 }; // BOS, the question and a margin

struct fact {
    char name[NAME_BYTES];
    const char *attribute;
    int value;
};

// Each random number is taken in a statement of its own, since C leaves the evaluation order of arguments open.

static void needle_random_name(struct random_source *r, char *name, size_t size)
{
    const char *first = PICK(r, first_heads), *first_end = PICK(r, first_tails);
    const char *last = PICK(r, last_heads), *last_end = PICK(r, last_tails);
    snprintf(name, size, "%s%s %s%s", first, first_end, last, last_end);
}

static char *needle_filler_sentence(struct random_source *r)
{
    double kind = random_unit(r);
    const char *time = PICK(r, when), *person = PICK(r, who), *deed = PICK(r, did), *place = PICK(r, where);
    const char *sky = PICK(r, weather), *end = PICK(r, tail);
    char name[NAME_BYTES];
    needle_random_name(r, name, sizeof name);
    if (kind < 0.45) return mem_format("%s %s %s %s, %s.", time, person, deed, place, end);
    if (kind < 0.70) {
        char *text = mem_format("%s %s %s.", person, deed, place);
        *text = (char)toupper((unsigned char)*text);
        return text;
    }
    if (kind < 0.88) return mem_format("%s, %s.", sky, end);
    return mem_format("%s %s %s %s.", time, name, deed, place);
}

static bool needle_fact_exists(const struct fact *facts, int n, const struct fact *fact)
{
    for (int i = 0; i < n; i++)
        if (facts[i].attribute == fact->attribute && strcmp(facts[i].name, fact->name) == 0) return true;
    return false;
}

// Names share parts, and one fact in ten is about the person of an earlier fact, so only the whole key finds a fact.
static void needle_make_facts(struct random_source *r, struct fact *facts, int count)
{
    for (int n = 0; n < count;) {
        struct fact fact;
        if (n && random_unit(r) < 0.1)
            memcpy(fact.name, facts[random_below(r, n)].name, sizeof fact.name);
        else
            needle_random_name(r, fact.name, sizeof fact.name);
        fact.attribute = PICK(r, attributes);
        if (needle_fact_exists(facts, n, &fact)) continue;
        fact.value = random_below(r, 10000);
        facts[n++] = fact;
    }
}

static char *needle_fact_sentence(struct random_source *r, const struct fact *f)
{
    switch (random_below(r, 3)) {
    case 0: return mem_format("The %s of %s is %04d.", f->attribute, f->name, f->value);
    case 1: return mem_format("%s's %s is %04d.", f->name, f->attribute, f->value);
    default: return mem_format("%s has the %s %04d.", f->name, f->attribute, f->value);
    }
}

static char *needle_question(struct random_source *r, const struct fact *f)
{
    switch (random_below(r, 3)) {
    case 0: return mem_format("What is the %s of %s?", f->attribute, f->name);
    case 1: return mem_format("What is %s's %s?", f->name, f->attribute);
    default: return mem_format("Which %s does %s have?", f->attribute, f->name);
    }
}

// ---- the document ----

struct document {
    const struct tokenizer *tokenizer;
    char **lines;
    int n, capacity;
    int tokens, tokens_max;
};

// Adds the sentence and owns it if there is room for it, else frees it. *added_p is whether it was added.
static enum status document_add_line(struct document *d, char *text, bool *added_p)
{
    char *spaced = mem_format(" %s", text);
    int32_t *ids;
    int n;
    enum status status = tokenizer_encode(d->tokenizer, spaced, strlen(spaced), 0, &ids, &n);
    free(spaced);
    *added_p = status == STATUS_OK && d->tokens + n <= d->tokens_max;
    if (status == STATUS_OK) free(ids);
    if (!*added_p) {
        free(text);
        return status;
    }
    MEM_GROW(d->lines, d->n, d->capacity);
    d->lines[d->n++] = text;
    d->tokens += n;
    return STATUS_OK;
}

// The fact that the question asks for is added first, so that the shortest document contains it.
static enum status document_fill(struct document *d, struct random_source *r, const struct fact *facts, int n_facts)
{
    enum status status = STATUS_OK;
    bool added = true;
    for (int i = 0; i < n_facts && added && status == STATUS_OK; i++)
        status = document_add_line(d, needle_fact_sentence(r, &facts[i]), &added);
    if (status == STATUS_OK && !d->n)
        status = status_fail(STATUS_INVALID, "a document of %d tokens has no room for a fact", d->tokens_max);
    for (added = true; added && status == STATUS_OK;)
        status = document_add_line(d, needle_filler_sentence(r), &added);
    for (int i = d->n - 1; i > 0; i--) {
        int j = random_below(r, i + 1);
        char *line = d->lines[i];
        d->lines[i] = d->lines[j];
        d->lines[j] = line;
    }
    return status;
}

static char *document_text(const struct document *d, struct random_source *r, const char *question)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    bool start = true;
    for (int i = 0; i < d->n; i++) {
        bool paragraph_ends = i == d->n - 1 || random_unit(r) < 0.12;
        fprintf(out, "%s%s%s", start ? "" : " ", d->lines[i], paragraph_ends ? "\n\n" : "");
        start = paragraph_ends;
    }
    fprintf(out, "Question: %s\nAnswer:", question);
    fclose(out);
    return text;
}

enum status needle_make(const struct tokenizer *tokenizer, uint64_t seed, uint64_t number, int tokens,
                        struct needle *needle_p)
{
    if (tokens < NEEDLE_TOKENS_MIN)
        return status_fail(STATUS_INVALID, "a document of %d tokens: must be %d or more", tokens, NEEDLE_TOKENS_MIN);
    struct random_source r = random_stream(seed, number);
    struct fact facts[FACTS_MAX];
    int n_facts = FACTS_MIN + random_below(&r, FACTS_MAX - FACTS_MIN + 1);
    needle_make_facts(&r, facts, n_facts);
    struct document d = {.tokenizer = tokenizer, .tokens_max = tokens - FRAME_TOKENS};
    enum status status = document_fill(&d, &r, facts, n_facts);
    if (status == STATUS_OK) {
        char *question = needle_question(&r, &facts[0]);
        needle_p->prompt = document_text(&d, &r, question);
        needle_p->answer = mem_format(" %04d", facts[0].value);
        free(question);
    }
    for (int i = 0; i < d.n; i++)
        free(d.lines[i]);
    free(d.lines);
    return status;
}

void needle_free(struct needle *n)
{
    free(n->prompt);
    free(n->answer);
    *n = (struct needle){0};
}
