/* Named tensors in files of the safetensors format (https://github.com/huggingface/safetensors), in
 * which most published models come:
 *
 *     8 bytes    N, little-endian
 *     N bytes    JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...},
 *                and perhaps "__metadata__": {"KEY": "TEXT", ...}; spaces fill it up
 *     the rest   the data, row-major and little-endian; offsets begin here
 *
 * A file is not trusted: what does not fit together is an error.
 * SPDX-License-Identifier: MIT */
#ifndef EXAMPLES_SAFETENSORS_H
#define EXAMPLES_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>

#define SAFETENSORS_MAX_RANK 8

typedef struct safetensor {
    const char *name;
    const char *dtype; /* "F32", "F16", "BF16", ...: the file's word */
    size_t shape[SAFETENSORS_MAX_RANK], rank;
    const void *data; /* aligned as far as its offset in the file is */
    size_t bytes;     /* not looked at by safetensors_write */
} safetensor;

typedef struct safetensors {
    safetensor *tensors; /* in the order of their names */
    size_t count;
    char problem[160];   /* why it could not be read */
    char *header, *data; /* what names and tensors point to */
} safetensors;

/* Reads a whole file. false: file->problem tells why. To be closed in both cases. */
bool safetensors_read(safetensors *file, const char *path);
void safetensors_close(safetensors *file);
const safetensor *safetensors_find(const safetensors *file, const char *name); /* NULL: absent */

/* Data lie in the file in the order of `tensors`: with several types, wide ones first keep all of
 * them aligned. false: errno tells why, EINVAL for a type or a name that cannot be written. */
bool safetensors_write(const char *path, const safetensor *tensors, size_t count);

#endif
