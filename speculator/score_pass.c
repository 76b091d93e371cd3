// SPDX-License-Identifier: Apache-2.0
// Composes the passes of the scorer: which prompts have rows in a pass, and how many. score_pace.h decides when
// look-ahead rows and prompts being read get their rows.
#include "speculator/scorer_parts.h"

static bool prompt_takes_part(const struct prompt *p, const struct pass_plan *plan)
{
    return prompt_looks_ahead(p) ? plan->looks_ahead : plan->reads;
}

// Chooses the smoothing window of the pass: the window of the prompt that has waited longest for a row. Importance rows
// of prompts with another window wait for a later pass.
static void choose_window(const struct scorer *s, struct pass_plan *plan)
{
    for (int i = 0; i < s->n_running; i++) {
        struct prompt *p = s->prompts[i];
        if (!prompt_takes_part(p, plan)) continue;
        if (!plan->longest || p->last_pass < plan->longest->last_pass) plan->longest = p;
    }
    plan->window = plan->longest->smoothing_window;
}

struct pass_plan score_pass_choose(const struct scorer *s)
{
    struct pass_plan plan = {0};
    for (int i = 0; i < s->n_running; i++)
        *(prompt_looks_ahead(s->prompts[i]) ? &plan.looks_ahead : &plan.reads) = true;
    if (plan.looks_ahead && score_pace_look_ahead_first(&s->pace)) plan.reads = false;
    choose_window(s, &plan);
    return plan;
}

// Plans the prompt's next rows, at most `rows_max`. The last prompt row and every look-ahead row are importance rows.
static void prompt_plan_rows(struct prompt *p, int rows_max, int window)
{
    int rows = prompt_looks_ahead(p) ? 1 : p->n - p->n_cached;
    if (rows > rows_max) rows = rows_max;
    p->has_importance = rows && p->n_cached + rows >= p->n;
    if (p->has_importance && p->smoothing_window != window) {
        p->has_importance = false;
        rows--;
    }
    p->rows = rows;
}

static double prompt_work_left(const struct scorer *s, const struct prompt *p)
{
    return score_pace_work(&s->pace, p->n_cached, p->n - p->n_cached);
}

// Plans all rows of the prompt and returns their work.
static double plan_rest(const struct scorer *s, struct prompt *p, int window)
{
    prompt_plan_rows(p, p->n - p->n_cached, window);
    return score_pace_work(&s->pace, p->n_cached, p->rows);
}

// Plans the rows of the prompt that fit `room` and returns their work.
static double plan_chunk(const struct scorer *s, struct prompt *p, double room, int window)
{
    prompt_plan_rows(p, score_pace_rows(&s->pace, p->n_cached, room), window);
    return score_pace_work(&s->pace, p->n_cached, p->rows);
}

// Adds whole prompts from `first` on that fit `room`, then one chunk of the shortest remaining prompt. Returns their
// work.
static double plan_shorter(struct scorer *s, int first, double room, int window)
{
    double left = room;
    struct prompt *shortest = NULL;
    for (int i = first; i < s->n_running; i++) {
        struct prompt *p = s->prompts[i];
        if (prompt_looks_ahead(p)) continue;
        if (prompt_work_left(s, p) <= left) {
            left -= plan_rest(s, p, window);
        } else if (!shortest || prompt_work_left(s, p) < prompt_work_left(s, shortest)) {
            shortest = p;
        }
    }
    if (shortest) left -= plan_chunk(s, shortest, left, window);
    return room - left;
}

// Adds prompts in order of arrival. At the first prompt that the pass cannot complete, half of the remaining room goes
// to shorter prompts after it. So the long prompt takes at most twice as long, and shorter prompts do not wait for its
// end.
static void plan_reading(struct scorer *s, int rows_left, int window)
{
    double room = rows_left;
    for (int i = 0; i < s->n_running && room >= 1; i++) {
        struct prompt *p = s->prompts[i];
        if (prompt_looks_ahead(p)) continue;
        if (prompt_work_left(s, p) > room) {
            room -= plan_shorter(s, i + 1, room / 2, window);
            if (!plan_chunk(s, p, room, window)) prompt_plan_rows(p, 1, window);
            return;
        }
        room -= plan_rest(s, p, window);
    }
}

static bool pass_has_rows(const struct scorer *s)
{
    for (int i = 0; i < s->n_running; i++)
        if (s->prompts[i]->rows) return true;
    return false;
}

// Adds look-ahead rows first, so that prompts in look-ahead finish and release their blocks.
static void plan_pass(struct scorer *s, const struct pass_plan *plan)
{
    int room = s->model.token_budget;
    for (int i = 0; i < s->n_running; i++) {
        struct prompt *p = s->prompts[i];
        p->rows = 0;
        p->has_importance = false;
        if (!prompt_looks_ahead(p) || !plan->looks_ahead) continue;
        prompt_plan_rows(p, room, plan->window);
        room -= p->rows;
    }
    if (plan->reads) plan_reading(s, room, plan->window);
    // The pass may still be empty, if every row that fits is an importance row with another window.
    if (!pass_has_rows(s)) prompt_plan_rows(plan->longest, 1, plan->window);
}

static void prompt_add_rows(struct scorer *s, struct prompt *p)
{
    struct batch_builder *b = &s->builder;
    batch_builder_add_sequence(b, p->blocks, p->n_blocks, p->n_cached);
    batch_builder_set_rope_length(b, p->n);
    for (int entry = p->n_cached; entry < p->n_cached + p->rows; entry++)
        batch_builder_add_row(b, p->steps ? p->drafted[p->n_drafted - 1] : p->tokens[entry], entry);
    if (!p->has_importance) return;
    batch_builder_want_importance(b, p->n);
    if (!p->has_next_token) return;
    const struct row_sampling greedy = batch_greedy();
    if (s->model.samples)
        batch_builder_want_token(b, b->batch.n_rows - 1, &greedy);
    else
        batch_builder_want_logits(b, b->batch.n_rows - 1);
}

const struct ragged_batch *score_pass_compose(struct scorer *s, const struct pass_plan *plan)
{
    plan_pass(s, plan);
    batch_builder_reset(&s->builder);
    s->builder.batch.smoothing_window = plan->window;
    for (int i = 0; i < s->n_running; i++) {
        struct prompt *p = s->prompts[i];
        p->has_next_token = p->has_importance && p->steps + 1 < p->look_ahead;
        if (p->rows) prompt_add_rows(s, p);
    }
    return batch_builder_finish(&s->builder);
}
