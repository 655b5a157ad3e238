#include "cli_peak.h"

#include <stddef.h>

/* Floating-point operations of a multiprocessor in a clock: of float32 lanes, and of tensor cores
 * with 16-bit factors, dense; where some boards of an architecture sum in float32 at a lower rate,
 * that of the others. NVIDIA's white papers on the architectures, from Turing to Blackwell. */
typedef struct peak {
    int cc, lanes, tensor_cores;
} peak;

/* One that is not in the table has the numbers of the one below it. */
static const peak *peak_of(int cc)
{
    static const peak ascending[] = {{75, 128, 1024},  {80, 128, 2048}, {86, 256, 1024},
                                     {87, 256, 2048},  {89, 256, 1024}, {90, 256, 4096},
                                     {100, 256, 8192}, {120, 256, 1024}};
    const peak *found = &ascending[0];
    for (size_t i = 0; i < sizeof ascending / sizeof ascending[0]; i++)
        if (ascending[i].cc <= cc)
            found = &ascending[i];
    return found;
}

double cli_peak_flops_per_s(int cc, int multiprocessors, double clock_hz, double tensor_time)
{
    const peak *of = peak_of(cc);
    return multiprocessors * clock_hz *
           (tensor_time > 0 ? of->tensor_cores / tensor_time : of->lanes);
}
