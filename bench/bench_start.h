/* The work of a fresh process, one function a mode. Each prints lines "name number". */
#ifndef FAJIT_BENCH_START_H
#define FAJIT_BENCH_START_H

#include "bench.h"

#define START_ARCH "sm_90a" /* what is compiled for when there is no device */

/* Rope instances whose cold compile is timed. */
typedef struct start_instance {
    const char *name;
    fa_rope_spec spec;
} start_instance;
extern const start_instance start_instances[];
extern const size_t start_instance_count;

/* Runs one mode: argv is MODE DIRECTORY FIRST LAST. DIRECTORY holds the cache and the cubins that
 * `fill` left there; the kernels for warm loading are numbered, and LAST is not among them.
 *
 *     cold      compiles each instance without a disk cache: "device", "start_ms", NAME
 *     fill      fills the cache and leaves every cubin in a file; some processes share the kernels
 *     rope, template, driver    first result on the host: "total_ms" and its parts
 *     rope-cold, template-cold  the same without a disk cache
 *     load      kernels 0 to LAST from the disk cache: "load_ms"
 *     modules   their cubins through the driver alone: "load_ms"
 */
int start_child(int argc, char **argv);

#endif
