/* How a test steers the look-alikes of libcuda and libnvrtc: shared libraries with the real C ABIs
 * of the functions that fajit uses, which keep books and can be told to fail. The library under
 * test opens them through FAJIT_CUDA_LIBRARY and FAJIT_NVRTC_LIBRARY; the test opens the same file
 * and asks it for fake_control_get.
 *
 * Environment, read by every process that opens them:
 *   FAKE_COUNT_FILE   one line "FUNCTION PID" is appended for each nvrtcCompileProgram
 *   FAKE_LATENCY_MS   how long each nvrtcCompileProgram takes
 *   FAKE_DEVICES      compute capabilities of the devices, "90,80"; the default is one 9.0
 *
 * A call that the real libraries do not survive ends the process: FAKE_EXIT_FORKED for the driver
 * used in a child of the process that initialized it, FAKE_EXIT_GONE for the driver used after exit
 * handlers ran. */
#ifndef FAKE_H
#define FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_EXIT_FORKED 97
#define FAKE_EXIT_GONE 98

#define FAKE_MAX_PARAMS 64

/* One cuLaunchKernel or cuLaunchKernelEx as it arrived. */
typedef struct fake_launch {
    char function[256];
    uint32_t grid[3], block[3], smem_bytes;
    uint32_t cluster[3];
    bool cooperative, programmatic, captured;
    void *stream, *context;
    size_t param_count;
    unsigned char param[FAKE_MAX_PARAMS][64]; /* the first bytes of each, as the size is known */
} fake_launch;

typedef struct fake_control {
    /* Forgets calls, failures, latencies and violations; keeps what is alive. */
    void (*reset)(void);
    /* The nth call of `function` from now (1: the next; 0: every one) returns `code`. One armed
     * failure at a time; function NULL disarms. A failing release still releases. */
    void (*fail)(const char *function, int nth, int code);
    int (*calls)(const char *function);
    int (*peak)(const char *function); /* most callers inside at once */
    void (*set_latency_ms)(const char *function, int ms);
    void (*set_version)(int version); /* 13000 */
    int (*live)(const char *kind);    /* "module", "primary" (retains), "program", "pushed" */
    const char *(*violation)(void);   /* the first misuse of the ABI seen; "" when none */
    const char *(*function)(int i);   /* names of all functions; NULL past the last */

    /* libcuda only. Devices are set before cuInit. */
    void (*set_devices)(int count, const int *compute_capability); /* 90, 80 */
    void (*set_smem_optin)(int bytes);
    void *(*context_create)(int device);
    void (*context_destroy)(void *context);
    void *(*context_current)(void);
    void (*context_set_current)(void *context); /* NULL: none */
    void *(*stream_create)(void *context);      /* NULL: device 0's primary context */
    void (*stream_destroy)(void *stream);
    void (*capture_begin)(void *stream); /* in the global mode */
    bool (*capture_end)(void *stream);   /* whether the capture was still valid */
    size_t (*launches)(void);
    bool (*launch_last)(fake_launch *out);
    uint64_t (*module_bytes)(void); /* of live modules, as device memory */

    /* libnvrtc only: the latest program that was compiled. Valid until the next compile. */
    const char *(*last_source)(void);
    const char *(*last_options)(void); /* one a line */
    const char *(*last_headers)(void); /* names, one a line */
} fake_control;

typedef const fake_control *(*fake_control_get_fn)(void);

#endif
