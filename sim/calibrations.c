// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrations.h"

#include <math.h>

#include "sim/router.h"

enum { PROMPT_MOST = 1500, TAIL_TOKENS = 128 };

// Makes a calibration. Importance in the simulator is random, so the evidence of prompts differs only by their lengths
// and ends.
static struct calibration calibration_make(uint64_t main, double constant)
{
    struct prefill options;
    prefill_defaults(&options);
    struct calibration c = {.main = {main, SIM_TOKENIZER_FINGERPRINT},
                            .speculator = {SIM_SPECULATOR_FINGERPRINT, SIM_TOKENIZER_FINGERPRINT},
                            .look_ahead = options.look_ahead,
                            .chunk_tokens = options.chunk_tokens,
                            .pool_window = options.pool_window,
                            .tail_tokens = TAIL_TOKENS,
                            .low = {1, -20},
                            .high = {PROMPT_MOST, 0, 1, 1, 1, 10, 10},
                            .deviation = {1, 1, 1, 1, 1, 1, 1}};
    for (int m = 0; m < 2; m++) {
        struct calibration_fit *fit = &c.fits[m];
        const double slopes[QUALITY_VALUES] = {1, -0.5, -20, 10, 0.5, 0.1};
        *fit = (struct calibration_fit){.weights = {constant}};
        for (int v = 0; v < QUALITY_VALUES; v++)
            fit->weights[calibration_feature_of(v)] = slopes[v];
        for (int t = 0; t < QUALITY_TARGETS; t++)
            fit->prices[t] = 0.2 * (1 << t);
    }
    c.fits[0].prices[QUALITY_TARGETS - 1] = INFINITY;
    return c;
}

const struct calibration *sim_calibration(int64_t number)
{
    static struct calibration calibrations[SIM_CALIBRATIONS + 1];
    if (!calibrations[1].look_ahead) {
        calibrations[1] = calibration_make(SIM_MAIN_FINGERPRINT, 11);
        calibrations[2] = calibration_make(SIM_MAIN_FINGERPRINT, 12.5);
        calibrations[3] = calibration_make(SIM_MAIN_FINGERPRINT + 1, 11);
    }
    return number ? &calibrations[number] : NULL;
}
