// SPDX-License-Identifier: Apache-2.0
// Reasons why a GPU lowers its clocks, defined by NVML (nvml.h). Ranks report them, and metrics use their names.
// Hardware reasons (HW) at least halve the clocks. The driver's own reasons (SW) lower the clocks slightly.
#pragma once

enum gpu_throttle {
    GPU_THROTTLE_HW_SLOWDOWN,    // any hardware reason; a more exact reason may also be set
    GPU_THROTTLE_HW_THERMAL,     // too hot
    GPU_THROTTLE_HW_POWER_BRAKE, // the power supply requested lower clocks
    GPU_THROTTLE_SW_THERMAL,     // the driver holds the temperature at its limit
    GPU_THROTTLE_SW_POWER_CAP,   // the driver holds the power at its limit, as usual under full load
    GPU_THROTTLES
};

static inline const char *gpu_throttle_name(enum gpu_throttle reason)
{
    static const char *const names[GPU_THROTTLES] = {"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal",
                                                     "sw_power_cap"};
    return names[reason];
}
