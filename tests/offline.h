/* Compiling for a named architecture with the real NVRTC. */
#ifndef OFFLINE_H
#define OFFLINE_H

#include <criterion/criterion.h>
#include <string.h>

#include "fajit.h"

/* The first releases that know sm_100a and sm_120a, and fp8 operands of mma. */
#define NVRTC_OF_BLACKWELL 12080
#define NVRTC_OF_FP8_MMA 12040

/* Skips the test without NVRTC and where it is too old for `arch`, which is no failure. *nvrtc, where
 * not NULL, is its version. */
static inline fa_context *open_offline(const char *arch, int *nvrtc)
{
    fa_context *ctx = NULL;
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    fa_context_info_t info = {.size = sizeof info};
    options.offline = true;
    options.no_disk_cache = true;
    options.arch = arch;
    cr_assert_eq(fa_context_create(&options, &ctx), FA_OK, "%s", fa_last_error());
    cr_assert_eq(fa_context_info(ctx, &info), FA_OK, "%s", fa_last_error());
    if (info.nvrtc_version == 0) {
        fa_context_destroy(ctx);
        cr_skip_test("no NVRTC: %s", info.nvrtc_error);
    }
    if (strlen(arch) > strlen("sm_90a") && info.nvrtc_version < NVRTC_OF_BLACKWELL) {
        fa_context_destroy(ctx);
        cr_skip_test("%s needs NVRTC 12.8", arch);
    }
    if (nvrtc)
        *nvrtc = info.nvrtc_version;
    return ctx;
}

/* Whether a kernel keeps anything in local memory: what it spills, and arrays that no register holds. */
static inline bool has_stack_frame(const char *log)
{
    for (const char *at = log; (at = strstr(at, " bytes stack frame")) != NULL; at++)
        if (at - log < 2 || at[-1] != '0' || (at[-2] >= '0' && at[-2] <= '9'))
            return true;
    return false;
}

/* It compiles without a warning, spills nothing, keeps nothing in local memory and stays within the
 * limits. */
static inline void compile_instance(fa_context *ctx, const fa_spec *spec, int most_registers,
                                    uint32_t most_smem_bytes)
{
    fa_kernel *kernel = NULL;
    fa_kernel_info_t info = {.size = sizeof info};
    cr_expect_eq(fa_compile(ctx, spec, &kernel), FA_OK, "%s", fa_last_error());
    if (!kernel)
        return;
    cr_expect_eq(fa_kernel_info(kernel, &info), FA_OK, "%s", fa_last_error());
    cr_expect_eq(info.spill_bytes, 0u, "%s on %s spills %u bytes\n%s", info.name, info.arch,
                 info.spill_bytes, info.log);
    cr_expect_not(has_stack_frame(info.log), "%s on %s has a stack frame\n%s", info.name, info.arch,
                  info.log);
    cr_expect(info.registers > 0 && info.registers <= most_registers,
              "%s on %s: %d registers, not %d", info.name, info.arch, info.registers,
              most_registers);
    cr_expect_leq(info.smem_bytes, most_smem_bytes);
    cr_expect_gt(info.cubin_bytes, 0u);
    cr_expect_null(strstr(info.log, "warning"), "%s on %s:\n%s", info.name, info.arch, info.log);
    fa_kernel_release(kernel);
}

#endif
