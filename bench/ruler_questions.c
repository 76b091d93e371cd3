// SPDX-License-Identifier: Apache-2.0
// RULER's questions about passages: the passages that the answer needs stand among others. Passages are written here,
// or come from the user's file (ruler_passages.h).
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ruler_draft.h"
#include "bench/ruler_passages.h"
#include "bench/town.h"
#include "lib/base/mem.h"

// ---- written passages -----------------------------------------------------------------------------------------------

// One person with a workshop. Each index has other names.
struct written {
    char person[2 * RULER_KEY_BYTES], town[RULER_KEY_BYTES], made[RULER_KEY_BYTES], club[2 * RULER_KEY_BYTES];
    int year;
};

static void capitalise(char *text)
{
    if (*text >= 'a' && *text <= 'z') *text = (char)(*text - 'a' + 'A');
}

// The town, the work and the club of each person have names of their own.
static void written_make(struct ruler_draft *d, uint64_t shuffle, int index, struct written *w)
{
    char first[TOWN_NAME_BYTES], key[RULER_KEY_BYTES];
    town_name(&d->random, first);
    ruler_key(shuffle ^ 0x0f0f, index, key);
    *strchr(key, '-') = ' ';
    snprintf(w->person, sizeof w->person, "%s of the %s", first, key);
    ruler_key(shuffle, index, key);
    char *dash = strchr(key, '-');
    *dash = ' ';
    capitalise(key);
    capitalise(dash + 1);
    snprintf(w->club, sizeof w->club, "%s Club", key);
    ruler_key(shuffle ^ 0x5555, index, key);
    *strchr(key, '-') = ' ';
    snprintf(w->made, sizeof w->made, "%s", key);
    ruler_key(shuffle ^ 0x3333, index, key);
    dash = strchr(key, '-');
    snprintf(w->town, sizeof w->town, "%.*s%s", (int)(dash - key), key, dash + 1);
    capitalise(w->town);
    w->year = 1650 + random_below(&d->random, 300);
}

static void write_person(struct ruler_draft *d, const struct written *w)
{
    char *hay = town_sentence(&d->random), *more = town_sentence(&d->random);
    fprintf(d->out, "%s\n%s was born in %s in %d and became known for the %s. %s %s\n", w->person, w->person, w->town,
            w->year, w->made, hay, more);
    free(hay);
    free(more);
}

static void write_club(struct ruler_draft *d, const struct written *w)
{
    char *hay = town_sentence(&d->random), *more = town_sentence(&d->random);
    fprintf(d->out, "%s\nThe %s met every week. It was founded by %s, together with two friends. %s %s\n", w->club,
            w->club, w->person, hay, more);
    free(hay);
    free(more);
}

// Passage p is about person p, or with clubs about person p / 2.
static void write_written(struct ruler_draft *d, bool clubs)
{
    const uint64_t shuffle = random_next(&d->random);
    const int n = clubs ? d->units / 2 * 2 : d->units, people = clubs ? n / 2 : n;
    struct written *w = mem_alloc_array((size_t)people, sizeof *w);
    for (int i = 0; i < people; i++)
        written_make(d, shuffle, i, &w[i]);
    const bool asks_town = random_below(&d->random, 2);
    int *order = ruler_order(&d->random, n);
    for (int i = 0; i < n; i++) {
        fprintf(d->out, "Document %d:\n", i + 1);
        if (clubs && order[i] % 2)
            write_club(d, &w[order[i] / 2]);
        else
            write_person(d, &w[clubs ? order[i] / 2 : order[i]]);
        fputc('\n', d->out);
    }
    char *who = clubs ? mem_format("the founder of the %s", w[0].club) : mem_string(w[0].person);
    fprintf(d->out, asks_town ? "Question: In which town was %s born?\n" : "Question: For what did %s become known?\n",
            who);
    ruler_add_answer(d, asks_town ? w[0].town : w[0].made);
    free(who);
    free(order);
    free(w);
}

// ---- passages of a file ---------------------------------------------------------------------------------------------

int ruler_units_max(const struct ruler_request *request)
{
    const bool asks = request->task == RULER_QA_1 || request->task == RULER_QA_2;
    return asks && request->passages ? request->passages->n_passages : INT_MAX;
}

static bool needs(const struct ruler_question *question, int passage)
{
    for (int i = 0; i < question->n_needed; i++)
        if (question->needed[i] == passage) return true;
    return false;
}

// Returns the passages of a prompt in random order: those that the question needs and random others. *n_p is `units`,
// or more if the question needs more.
static int *choose_passages(struct ruler_draft *d, const struct ruler_passages *file,
                            const struct ruler_question *question, int *n_p)
{
    int n = 0, *all = ruler_order(&d->random, file->n_passages);
    int *chosen = mem_alloc_array((size_t)(file->n_passages + question->n_needed), sizeof *chosen);
    for (int i = 0; i < question->n_needed; i++)
        chosen[n++] = question->needed[i];
    for (int i = 0; i < file->n_passages && n < d->units; i++)
        if (!needs(question, all[i])) chosen[n++] = all[i];
    free(all);
    for (int i = n - 1; i > 0; i--) {
        int j = random_below(&d->random, i + 1), swap = chosen[i];
        chosen[i] = chosen[j];
        chosen[j] = swap;
    }
    *n_p = n;
    return chosen;
}

static void write_from_file(struct ruler_draft *d, const struct ruler_passages *file)
{
    const struct ruler_question *question = &file->questions[random_below(&d->random, file->n_questions)];
    int n, *chosen = choose_passages(d, file, question, &n);
    for (int i = 0; i < n; i++)
        fprintf(d->out, "Document %d:\n%s\n\n", i + 1, file->passages[chosen[i]]);
    fprintf(d->out, "Question: %s\n", question->text);
    for (int i = 0; i < question->n_answers; i++)
        ruler_add_answer(d, question->answers[i]);
    free(chosen);
}

void ruler_write_questions(struct ruler_draft *d)
{
    fputs("Answer the question from the documents below. Give only the answer, without other words.\n\n", d->out);
    if (d->request->passages)
        write_from_file(d, d->request->passages);
    else
        write_written(d, d->request->task == RULER_QA_2);
    ruler_write_prefix(d, "Answer:");
}
