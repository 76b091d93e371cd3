// SPDX-License-Identifier: Apache-2.0
// What the module exports besides backend_open_cuda.
#include "kernels/module.h"

const int forepack_cuda_layout = CUDA_MODULE_LAYOUT;
