#include "arch.h"

#include <stdio.h>
#include <string.h>

#include "status.h"

void fa__arch_name(int32_t major, int32_t minor, char out[16])
{
    snprintf(out, 16, "sm_%d%d%s", (int)major, (int)minor, major >= 9 ? "a" : "");
}

/* Shared memory that one block can opt into, static plus dynamic: CUDA C++ Programming Guide,
 * "Technical Specifications per Compute Capability". */
static uint32_t smem_optin(int cc)
{
    switch (cc) {
    case 70:
    case 72:
        return 96 * 1024;
    case 75:
        return 64 * 1024;
    case 80:
    case 87:
        return 163 * 1024;
    case 90:
    case 100:
    case 101:
    case 103:
    case 110:
        return 227 * 1024;
    default: /* 8.6, 8.9, 12.x; and a safe figure for what is not known yet */
        return 99 * 1024;
    }
}

/* Reads the digits of "sm_90a" up to *suffix; 0 when the name does not begin so. */
static int parse_number(const char *arch, const char **suffix)
{
    int cc = 0;
    const char *at = arch + 3;
    if (strncmp(arch, "sm_", 3) != 0 || *at == '0')
        return 0;
    for (; *at >= '0' && *at <= '9' && cc < 1000; at++)
        cc = cc * 10 + (*at - '0');
    *suffix = at;
    return cc < 1000 ? cc : 0;
}

fa_status fa__arch_parse(const char *arch, fa__target *target)
{
    const char *suffix = "";
    int cc = parse_number(arch, &suffix);
    bool known_suffix = !*suffix || strcmp(suffix, "a") == 0 || strcmp(suffix, "f") == 0;
    if (cc < 10 || !known_suffix)
        return fa__fail(FA_ERR_ARCH,
                        "architecture '%.40s' is not of the form sm_80, sm_90a, sm_100a, sm_120a",
                        arch);
    if (cc < 70)
        return fa__fail(FA_ERR_ARCH, "architecture %s is too old; sm_70 and later are supported",
                        arch);
    *target = (fa__target){.cc = cc, .smem_optin = smem_optin(cc)};
    snprintf(target->arch, sizeof target->arch, "%s", arch);
    return FA_OK;
}
