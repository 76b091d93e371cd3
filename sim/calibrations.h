// SPDX-License-Identifier: Apache-2.0
// The calibrations that the speculators of a scenario may have, by number. They are invented and spread the keep rates
// of the simulated prompts over all rates that can be chosen.
#pragma once

#include "speculator/calibration.h"

enum { SIM_MAIN_FINGERPRINT = 1, SIM_SPECULATOR_FINGERPRINT = 2 }; // fingerprints of the nodes' models

// Calibrations 1 and 2 are for the main model of the scenario, 3 is for another model. The three are for the default
// options and the router's default tail window.
enum { SIM_CALIBRATIONS = 3 };

const struct calibration *sim_calibration(int64_t number); // returns NULL for number 0
