// The same from C++: no macros needed, every struct means something when zeroed.
#include <fajit.h>

#include <cstdio>

int main()
{
    fa_spec spec{};
    spec.size = sizeof spec;
    spec.op = FA_OP_ROPE;
    const fa_status good = fa_spec_set(&spec, "dtype", "bf16");
    const fa_status bad = fa_spec_set(&spec, "dtype", "f64");
    if (good != FA_OK || spec.rope.dtype != FA_BF16 || bad != FA_ERR_VALUE) {
        std::fprintf(stderr, "fa_spec_set: %s, %s\n", fa_status_name(good), fa_status_name(bad));
        return 1;
    }
    std::printf("outside C++ program: %s\n", fa_last_error());
    return 0;
}
