// SPDX-License-Identifier: Apache-2.0
// Words and sentence forms of the documents. The demo pair (deploy/demo-model) knows only these and the forms of the
// tasks (facts.c, task_*.c).
#include "bench/town.h"

#include <ctype.h>
#include <stdio.h>

#include "lib/base/mem.h"

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

// Random numbers are drawn in declarations and statements, not in arguments: C leaves the order of arguments open.

void town_name(struct random_source *r, char name[TOWN_NAME_BYTES])
{
    const char *first = PICK(r, first_heads), *first_end = PICK(r, first_tails);
    const char *last = PICK(r, last_heads), *last_end = PICK(r, last_tails);
    snprintf(name, TOWN_NAME_BYTES, "%s%s %s%s", first, first_end, last, last_end);
}

const char *town_attribute(struct random_source *r)
{
    return PICK(r, attributes);
}

const char *town_time(struct random_source *r)
{
    return PICK(r, when);
}

const char *town_place(struct random_source *r)
{
    return PICK(r, where);
}

static char *capitalised(char *text)
{
    *text = (char)toupper((unsigned char)*text);
    return text;
}

char *town_person(struct random_source *r)
{
    return capitalised(mem_string(PICK(r, who)));
}

char *town_sentence(struct random_source *r)
{
    double kind = random_unit(r);
    const char *time = PICK(r, when), *person = PICK(r, who), *deed = PICK(r, did), *place = PICK(r, where);
    const char *sky = PICK(r, weather), *end = PICK(r, tail);
    char name[TOWN_NAME_BYTES];
    town_name(r, name);
    if (kind < 0.45) return mem_format("%s %s %s %s, %s.", time, person, deed, place, end);
    if (kind < 0.70) return capitalised(mem_format("%s %s %s.", person, deed, place));
    if (kind < 0.88) return mem_format("%s, %s.", sky, end);
    return mem_format("%s %s %s %s.", time, name, deed, place);
}
