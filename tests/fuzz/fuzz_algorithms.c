// SPDX-License-Identifier: Apache-2.0
// The file with the fastest algorithm of each matrix product: any text after its first two lines. Choices that are
// read, saved and read again stay the same.
#include "kernels/cuda/algorithms.h"
#include "lib/base/log.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

enum { FILE_MAX = 65536 };
static const char head[] = "forepack gemm 2\nfuzz, cuBLASLt 1\n";

static struct algorithms *open_again(void)
{
    return algorithms_open("fuzz", 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t file[FILE_MAX];
    const struct gemm_key first = {1, 2, 3, 0, 1, 0, 1, 0, 1, 64}, second = {.n = 9};
    cublasLtMatmulAlgo_t was = {{0}}, is = {{0}}, put = {{1, 2, 3}};
    size_t n_head = sizeof head - 1;
    if (size > FILE_MAX - n_head) return 0;
    log_setup("fuzz", LOG_ERROR);
    setenv("XDG_CACHE_HOME", fuzz_folder(), 1);
    fuzz_folder_make("forepack");
    memcpy(file, head, n_head);
    memcpy(file + n_head, data, size);
    fuzz_folder_put("forepack/gemm-fuzz--cuBLASLt-1", file, n_head + size);

    struct algorithms *a = open_again();
    bool found = algorithms_find(a, &first, &was);
    algorithms_put(a, &second, &put);
    algorithms_save(a);
    algorithms_close(a);

    a = open_again();
    FUZZ_CHECK(algorithms_find(a, &first, &is) == found && memcmp(&is, &was, sizeof is) == 0);
    FUZZ_CHECK(algorithms_find(a, &second, &is) && memcmp(&is, &put, sizeof is) == 0);
    algorithms_close(a);
    return 0;
}
