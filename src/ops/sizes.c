#include "ops/sizes.h"

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
