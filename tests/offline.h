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

#endif
