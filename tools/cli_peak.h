/* What a device computes in a second at most. */
#ifndef FAJIT_TOOLS_CLI_PEAK_H
#define FAJIT_TOOLS_CLI_PEAK_H

/* Floating-point operations a second of a device of compute capability `cc` (90 is 9.0).
 * `tensor_time`: as in oracle_case. */
double cli_peak_flops_per_s(int cc, int multiprocessors, double clock_hz, double tensor_time);

#endif
