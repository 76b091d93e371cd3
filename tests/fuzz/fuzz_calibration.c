// SPDX-License-Identifier: Apache-2.0
// calibration.json of a speculator. An accepted calibration can be used, and is written as it was read. Its chosen
// rates do not fall if the quality rises.
#include <math.h>

#include "speculator/calibration.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

// Returns evidence inside the ranges of the calibration, at `share` of each range.
static struct evidence evidence_within(const struct calibration *c, double share, bool has_margins)
{
    double v[EVIDENCE_VALUES];
    for (int i = 0; i < EVIDENCE_VALUES; i++)
        v[i] = c->low[i] + share * (c->high[i] - c->low[i]);
    struct evidence evidence = {.tokens = v[0] >= 1 ? (int)v[0] : 1,
                                .entropy = v[2],
                                .agreement = v[3],
                                .ended = v[4],
                                .has_margins = has_margins,
                                .margin = v[5],
                                .margin_least = v[6]};
    for (int r = 0; r < QUALITY_RATES - 1; r++)
        evidence.floor[r] = v[1];
    return evidence;
}

static void check_choices(const struct calibration *c, const struct evidence *evidence)
{
    double before = 0;
    for (int t = 0; t < QUALITY_TARGETS; t++) {
        struct rate_choice choice = calibration_choose(c, evidence, quality_targets[t]);
        FUZZ_CHECK(choice.rate >= quality_rates[0] && choice.rate <= 1 && choice.rate >= before);
        before = choice.rate;
    }
    FUZZ_CHECK(calibration_choose(c, evidence, 1).rate >= 1);
}

static void check_written(const struct calibration *c)
{
    struct calibration again;
    json_t *object = calibration_to_json(c);
    FUZZ_CHECK(calibration_from_json("again", object, &again) == STATUS_OK);
    FUZZ_CHECK(calibration_fingerprint(c) && calibration_fingerprint(&again) == calibration_fingerprint(c));
    json_decref(object);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct calibration calibration;
    fuzz_folder_put(CALIBRATION_FILE, data, size);
    if (calibration_read(fuzz_folder(), &calibration) != STATUS_OK) {
        FUZZ_CHECK(*status_message());
        return 0;
    }
    check_written(&calibration);
    for (int i = 0; i < 6; i++) {
        struct evidence evidence = evidence_within(&calibration, i / 2 / 2.0, i % 2);
        check_choices(&calibration, &evidence);
    }
    return 0;
}
