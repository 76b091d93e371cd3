// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrations.h"

#include <math.h>

#include "sim/router.h"

enum { PROMPT_MOST = 1500, TAIL_TOKENS = 128 };

// Importance in the simulator is random, so the evidence of prompts differs little but for their lengths and ends.
static struct calibration calibration_make(uint64_t main, double first_threshold)
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
                            .high = {PROMPT_MOST, 0, 1, 1, 1, 10, 10}};
    for (int m = 0; m < 2; m++) {
        struct calibration_fit *fit = &c.fits[m];
        *fit = (struct calibration_fit){.weights = {3, 1, -0.5, -20, 10, 0.5, 0.1 * m, 0}};
        for (int t = 0; t < QUALITY_TARGETS; t++)
            fit->thresholds[t] = first_threshold + t * 0.6;
    }
    c.fits[0].thresholds[QUALITY_TARGETS - 1] = INFINITY;
    return c;
}

const struct calibration *sim_calibration(int64_t number)
{
    static struct calibration calibrations[SIM_CALIBRATIONS + 1];
    if (!calibrations[1].look_ahead) {
        calibrations[1] = calibration_make(SIM_MAIN_FINGERPRINT, -8.5);
        calibrations[2] = calibration_make(SIM_MAIN_FINGERPRINT, -10);
        calibrations[3] = calibration_make(SIM_MAIN_FINGERPRINT + 1, -8.5);
    }
    return number ? &calibrations[number] : NULL;
}
