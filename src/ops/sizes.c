#include "ops/sizes.h"

#include <inttypes.h>

#include "status.h"

fa_status fa__size_refuse(const char *op, const char *name, int32_t baked, int32_t given)
{
    if (given < 0)
        return fa__fail(FA_ERR_SIZE, "%s: %s = %d is negative (fa_%s_args.%s)", op, name, given, op,
                        name);
    return fa__fail(FA_ERR_BAKED,
                    "%s: %s = %d at launch, but %d is baked into the kernel; give %d or 0 "
                    "(fa_%s_args.%s)",
                    op, name, given, baked, baked, op, name);
}

fa_status fa__cache_size_check(const char *op, const char *name, int64_t value)
{
    if (value > 0)
        return FA_OK;
    return fa__fail(FA_ERR_SIZE, "%s: %s = %" PRId64 "; a cache needs at least 1 (fa_%s_args.%s)",
                    op, name, value, op, name);
}

fa_status fa__slot_count_resolve(const char *op, int64_t given, int64_t tokens, int64_t *count)
{
    *count = given ? given : tokens;
    if (given < 0 || given > tokens)
        return fa__fail(FA_ERR_SIZE,
                        "%s: slot_count = %" PRId64 "; 1 to %" PRId64
                        " tokens can have a slot, 0 stands for all (fa_%s_args.slot_count)",
                        op, given, tokens, op);
    return FA_OK;
}

fa_status fa__workspace_check(const char *op, const fa_args *args, size_t bytes)
{
    if (!bytes)
        return FA_OK;
    if (!args->workspace || args->workspace_bytes < bytes)
        return fa__fail(FA_ERR_WORKSPACE,
                        "%s: workspace = 0x%" PRIxPTR
                        " of %zu bytes; %zu are needed (fa_args.workspace, workspace_bytes; "
                        "fa_workspace_size)",
                        op, (uintptr_t)args->workspace, args->workspace_bytes, bytes);
    if ((uintptr_t)args->workspace % 256)
        return fa__fail(FA_ERR_MISALIGNED,
                        "%s: workspace = 0x%" PRIxPTR
                        " is not a multiple of 256 bytes (fa_args.workspace)",
                        op, (uintptr_t)args->workspace);
    return FA_OK;
}
