// SPDX-License-Identifier: Apache-2.0
// Has all kernels of one instruction set level in one translation unit, so that its compiler flags affect no other
// code. CPU_ISA_SYMBOL and CPU_ISA_NAME come from the build (kernels/CMakeLists.txt).
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec.h"

#include "kernels/cpu/kernel_gemm.h"

#ifdef CPU_TILES
#include "kernels/cpu/kernel_tiles.h"
#endif

#include "kernels/cpu/kernel_rows.h"

#include "kernels/cpu/kernel_attention.h"

#ifdef CPU_TILES
#include "kernels/cpu/kernel_attention_tiles.h"
#endif

extern const struct cpu_isa CPU_ISA_SYMBOL;
const struct cpu_isa CPU_ISA_SYMBOL = {
    .name = CPU_ISA_NAME,
    .vector_floats = VEC,
#ifdef CPU_TILES
    .tiled = true,
    .step_words = TILE_WORDS,
    .panel_gemm = panel_gemm_amx,
    .attend = attend_tiles,
#else
    .step_words = 1,
    .panel_gemm = panel_gemm,
    .attend = attend,
#endif
    .quantise = quantise,
    .panel_finish = panel_finish,
    .rmsnorm_row = rmsnorm_row,
    .sum_squares = sum_squares,
    .scale_row = scale_row,
    .add_norm_row = add_norm_row,
    .activate_row = activate_row,
    .rope_head = rope_head,
    .hadamard_head = hadamard_head,
    .kv_append = kv_append,
    .attend_merge = attend_merge,
    .importance = importance,
};
