// SPDX-License-Identifier: Apache-2.0
// Reasons for which a GPU lowers its clocks, as ranks report them and metrics name them. NVML (nvml.h) defines the
// reasons. Hardware reasons at least halve the clocks; the driver's own reasons lower them little.
#pragma once

enum gpu_throttle {
    GPU_THROTTLE_HW_SLOWDOWN,    // any hardware reason; set together with a more exact reason if the GPU knows it
    GPU_THROTTLE_HW_THERMAL,     // too hot
    GPU_THROTTLE_HW_POWER_BRAKE, // the power supply asked for it
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
