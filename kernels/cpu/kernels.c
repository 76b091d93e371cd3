// SPDX-License-Identifier: Apache-2.0
// All kernels of one instruction set, in one translation unit so that its compiler flags touch nothing else.
// CPU_ISA_SYMBOL and CPU_ISA_NAME come from the build (kernels/CMakeLists.txt).
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/kernel_product.h"

#include "kernels/cpu/kernel_rows.h"

#include "kernels/cpu/kernel_attention.h"

extern const struct cpu_isa CPU_ISA_SYMBOL;
const struct cpu_isa CPU_ISA_SYMBOL = {
    .name = CPU_ISA_NAME,
    .vector_floats = VEC,
    .panel_product = panel_product,
    .quantise = quantise,
    .panel_finish = panel_finish,
    .rmsnorm_row = rmsnorm_row,
    .rope_head = rope_head,
    .kv_append = kv_append,
    .attend = attend,
    .attend_merge = attend_merge,
    .probe = probe,
};
