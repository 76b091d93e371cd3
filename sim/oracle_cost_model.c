// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_cost_model.h"

#include <math.h>
#include <string.h>

#include "router/sched/cost.h"

enum { STEPS = 24 };
#define TEN_MINUTES_US INT64_C(600000000)

struct pass {
    int64_t rows, pairs, us, at_us;
    int size;     // see size_of()
    double scale; // the time is compared relative to this scale
    double error; // squared error of the prediction; negative: none was made
};

struct history {
    struct pass passes[STEPS];
    int n;
    int n_learned; // passes learned since everything was forgotten
    int64_t now_us, done_rows, done_us;
    struct cost_model model;
};

static int size_of(int64_t rows)
{
    int size = (int)floor(log2((double)rows));
    return size < COST_SIZES - 1 ? size : COST_SIZES - 1;
}

// Returns the first remembered pass of a size at the given time, or n if none is. The passes of a size are forgotten if
// none came for ten minutes.
static int first_remembered(const struct history *h, int size, int n, int64_t at_us)
{
    int first = n;
    for (int i = n - 1; i >= 0; i--) {
        if (h->passes[i].size != size) continue;
        if (at_us - h->passes[i].at_us >= TEN_MINUTES_US) break;
        at_us = h->passes[i].at_us;
        first = i;
    }
    return first;
}

// Returns the number of passes since all sizes were forgotten together.
static int count_learned(const struct history *h)
{
    int n = 0;
    for (int i = 0; i < h->n; i++, n++) {
        bool left = false;
        for (int size = 0; size < COST_SIZES && !left; size++)
            left = first_remembered(h, size, i, h->passes[i].at_us) < i;
        if (!left) n = 0;
    }
    return n;
}

// Sums over the remembered passes: products of (1, rows, pairs) with each other, and with the time.
struct sums {
    double g[3][3], s[3];
};

static struct sums sum_up(const struct history *h)
{
    struct sums sums;
    memset(&sums, 0, sizeof sums);
    for (int size = 0; size < COST_SIZES; size++) {
        // The model forgets only when it learns, so the time of the last pass of any size counts.
        int first = first_remembered(h, size, h->n, h->n ? h->passes[h->n - 1].at_us : 0);
        double weight = 1;
        for (int i = h->n - 1; i >= first; i--) {
            const struct pass *p = &h->passes[i];
            if (p->size != size) continue;
            double term[3] = {1 / p->scale, (double)p->rows / p->scale, (double)p->pairs / p->scale};
            for (int a = 0; a < 3; a++) {
                for (int b = 0; b < 3; b++)
                    sums.g[a][b] += weight * term[a] * term[b];
                sums.s[a] += weight * term[a] * (double)p->us / p->scale;
            }
            weight *= 0.9;
        }
    }
    return sums;
}

// Returns true if the fit is the best one: a least-squares fit without negative terms is the best if no change of one
// term improves it.
static bool is_best_fit(const struct history *h)
{
    static const double pull[3] = {1e-3, 1e-7, 1e-4};
    const double fit[3] = {h->model.fixed_us, h->model.row_us, h->model.pair_us};
    struct sums sums = sum_up(h);
    for (int i = 0; i < 3; i++) {
        double unit = sqrt(sums.g[i][i]), slope = pull[i] * fit[i] * unit - sums.s[i] / unit, size = sums.s[i] / unit;
        for (int j = 0; j < 3; j++)
            slope += sums.g[i][j] / unit * fit[j];
        double most = 1e-5 * size;
        if (fit[i] < 0 || slope < -most || (fit[i] > 0 && slope > most)) return false;
    }
    return true;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b));
}

static bool is_noise_right(const struct history *h)
{
    double errors = 0, n = 0, weight = 1;
    for (int i = h->n - 1; i >= 0; i--) {
        if (h->passes[i].error < 0) continue;
        errors += weight * h->passes[i].error;
        n += weight;
        weight *= 0.995;
    }
    return is_near(cost_noise(&h->model), n > 0 ? sqrt(errors / n) : 0);
}

// Returns the most rows whose cost the model may know: it learned four passes, and a recent pass or prompt had at least
// a quarter of the rows.
static int64_t most_known(const struct history *h)
{
    int64_t most = h->done_us && h->now_us - h->done_us < TEN_MINUTES_US ? 4 * h->done_rows : 0;
    for (int size = 0; size < COST_SIZES; size++) {
        int last = h->n - 1;
        while (last >= 0 && h->passes[last].size != size)
            last--;
        if (last < 0 || h->now_us - h->passes[last].at_us >= TEN_MINUTES_US) continue;
        for (int i = first_remembered(h, size, h->n, h->passes[last].at_us); i <= last; i++)
            if (h->passes[i].size == size && 4 * h->passes[i].rows > most) most = 4 * h->passes[i].rows;
    }
    return h->n_learned >= 4 ? most : 0;
}

static void learn(struct history *h, struct random_source *random)
{
    int most = random_below(random, 8) ? random_below(random, 12) : random_below(random, 22);
    int64_t rows = 1 + random_below(random, 1 << most), entries = random_below(random, 2000);
    struct pass p = {.rows = rows, .pairs = rows * entries + rows * (rows + 1) / 2, .at_us = h->now_us, .error = -1};
    double us = 300 + 5 * (double)rows + 0.002 * (double)p.pairs;
    p.us = (int64_t)(us * (0.7 + 0.6 * random_unit(random)) * (random_below(random, 8) ? 1 : 4));
    p.scale = (double)p.us;
    p.size = size_of(rows);
    h->passes[h->n++] = p;
    h->n_learned = count_learned(h);
    if (h->n_learned > 4) {
        double predicted_us = cost_pass_us(&h->model, 1, (double)p.rows, (double)p.pairs);
        double error = fmin(1, (double)p.us / predicted_us - 1);
        p.error = error * error;
        p.scale = fmax(predicted_us, (double)p.us / 2);
        h->passes[h->n - 1] = p;
    }
    cost_learn(&h->model, p.rows, p.pairs, p.us, h->now_us);
}

// Completes a prompt of random length. The longest prompt counts, until it is too old.
static void complete_prompt(struct history *h, struct random_source *random)
{
    int64_t rows = 1 + random_below(random, 20000);
    cost_prompt_done(&h->model, rows, h->now_us);
    if (h->done_us && rows < h->done_rows && h->now_us - h->done_us < TEN_MINUTES_US) return;
    h->done_rows = rows;
    h->done_us = h->now_us;
}

// Feeds reports that cannot be true, next to the limits of possible ones.
static bool refuses_lies(struct history *h)
{
    const struct cost_model *after = &h->model, before = *after;
    cost_learn(&h->model, 0, 10, 100, h->now_us);
    cost_learn(&h->model, 10, 9, 100, h->now_us);
    cost_learn(&h->model, 10, 10, 0, h->now_us);
    return after->passes == before.passes && after->predicted == before.predicted &&
           after->fixed_us == before.fixed_us && after->row_us == before.row_us && after->pair_us == before.pair_us;
}

static bool is_knowledge_right(const struct history *h)
{
    int64_t most = most_known(h);
    for (int64_t rows = 1; rows < 1 << 23; rows = 2 * rows + 1)
        if (cost_knows(&h->model, rows, h->now_us) != (rows <= most)) return false;
    for (int i = 0; i < h->n; i++)
        for (int64_t rows = 4 * h->passes[i].rows; rows <= 4 * h->passes[i].rows + 1; rows++)
            if (cost_knows(&h->model, rows, h->now_us) != (rows <= most)) return false;
    return true;
}

static const char *share_check(struct random_source *random)
{
    struct cost_share share = {0, 0};
    double prompt = 0, all = 0;
    if (cost_share_of(&share) < 1) return "an unknown share of prompts is not 1";
    for (int i = 0; i < 8; i++) {
        double us = 100 + random_below(random, 1000), of_prompts = us * (2 * random_unit(random) - 0.5);
        cost_share_learn(&share, of_prompts, us);
        prompt = 0.95 * prompt + fmin(us, fmax(of_prompts, 0));
        all = 0.95 * all + us;
        if (!is_near(cost_share_of(&share), fmax(0.02, prompt / all))) return "a share of prompts is wrong";
    }
    return NULL;
}

static void pause_a_while(struct history *h, struct random_source *random)
{
    int64_t pause_us = 1 + random_below(random, 1000000);
    if (random_below(random, 6) == 0) pause_us = TEN_MINUTES_US + random_below(random, 3) - 1;
    if (random_below(random, 6) == 0) pause_us = TEN_MINUTES_US / 2;
    h->now_us += pause_us;
}

const char *oracle_cost_model(struct random_source *random)
{
    struct history h = {.now_us = 1000};
    while (h.n < STEPS) {
        pause_a_while(&h, random);
        if (random_below(random, 4) == 0) complete_prompt(&h, random);
        learn(&h, random);
        if (h.model.passes != h.n_learned)
            return "a cost model's count of passes differs from the passes that it learned";
        if (!is_best_fit(&h)) return "the costs of passes are not the best fit to them";
        if (!is_noise_right(&h)) return "the noise of passes differs from the errors of the predictions";
        if (!refuses_lies(&h)) return "a cost model learned from a report that cannot be true";
        int64_t now_us = h.now_us;
        for (int k = 0; k < (h.n % 4 ? 0 : 3); k++, h.now_us = now_us + TEN_MINUTES_US - 2 + k)
            if (!is_knowledge_right(&h))
                return "a cost model knows a size that it should not know, or does not know one that it should";
        h.now_us = now_us;
    }
    return share_check(random);
}
