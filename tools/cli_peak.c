/* What a device computes in a second at most: the floor of what is limited by arithmetic. */
#include "cli_run.h"

/* Floating-point operations of a multiprocessor in a clock, of float32 lanes and of tensor cores with
 * 16-bit factors, dense. NVIDIA's white papers and data sheets; where float32 sums have a lower rate
 * on some products of an architecture, the higher one. */
typedef struct peak {
    int cc, lanes, tensor_cores;
} peak;

static const peak *peak_of(int cc)
{
    static const peak peaks[] = {{75, 128, 1024},  {80, 128, 2048}, {86, 256, 1024},
                                 {87, 256, 2048},  {89, 256, 1024}, {90, 256, 4096},
                                 {100, 256, 8192}, {120, 256, 1024}};
    const peak *found = &peaks[0];
    for (size_t i = 0; i < sizeof peaks / sizeof peaks[0]; i++)
        if (peaks[i].cc <= cc)
            found = &peaks[i];
    return found;
}

double cli_peak_flops(int cc, int multiprocessors, double clock_hz, double passes)
{
    const peak *of = peak_of(cc);
    return multiprocessors * clock_hz * (passes > 0 ? of->tensor_cores / passes : of->lanes);
}
