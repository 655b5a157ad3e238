/* Device memory, streams, events and graphs for the tool, the tests, the benchmarks and the
 * examples: a thin layer over the CUDA driver, opened at run time (FAJIT_CUDA_LIBRARY, else
 * libcuda.so.1), so that all of them start on a machine without a driver. Not part of the library.
 *
 * Functions that cannot fail for a good reason end the program with a message when they do. */
#ifndef FAJIT_TOOLS_GPU_H
#define FAJIT_TOOLS_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUctx_st *gpu_context;
typedef struct CUstream_st *gpu_stream; /* the same type as fa_stream */
typedef struct CUevent_st *gpu_event;
typedef struct CUgraphExec_st *gpu_graph;

/* Opens the driver and makes the primary context of `device` current. false when there is no driver
 * or no such device; *why (static or thread-local text) then says which. Call once. */
bool gpu_open(int device, const char **why);
int gpu_device_count(void); /* 0 without a driver */
/* Gives the message of a failure that ends the program to `tell` instead of stderr. */
void gpu_tell_failures(void (*tell)(const char *message));

void *gpu_alloc(size_t bytes);
void gpu_free(void *memory);
void gpu_upload(void *device, const void *host, size_t bytes);   /* synchronous */
void gpu_download(void *host, const void *device, size_t bytes); /* synchronous */
void gpu_fill(void *device, unsigned char value, size_t bytes);  /* synchronous */
void gpu_copy(void *to, const void *from, size_t bytes, gpu_stream stream);

gpu_stream gpu_stream_create(void); /* non-blocking */
void gpu_stream_destroy(gpu_stream stream);
/* Waits; false (with *why) when a kernel failed. why may be NULL: then a failure ends the program.
 */
bool gpu_synchronize(gpu_stream stream, const char **why);

gpu_event gpu_event_create(void);
void gpu_event_destroy(gpu_event event);
void gpu_event_record(gpu_event event, gpu_stream stream);
float gpu_event_elapsed_ms(gpu_event begin, gpu_event end); /* waits for end */

void gpu_capture_begin(gpu_stream stream);
/* NULL when the capture had become invalid. */
gpu_graph gpu_capture_end(gpu_stream stream);
void gpu_graph_launch(gpu_graph graph, gpu_stream stream);
void gpu_graph_destroy(gpu_graph graph);

/* A function of the driver by its exported name, for the rare call that is not above. */
void *gpu_symbol(const char *name);

#ifdef __cplusplus
}
#endif
#endif
