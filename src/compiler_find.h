/* Where NVRTC is, and which build of it. Loading it takes several milliseconds, so that a process
 * which finds all its kernels in a cache does not: the build id is read from the file. */
#ifndef FA_COMPILER_FIND_H
#define FA_COMPILER_FIND_H

#include "dynlib.h"

#define FA__NVRTC_REMEDY                                                                           \
    "install the CUDA Toolkit; or the nvidia-cuda-nvrtc wheel, and set FAJIT_NVRTC_LIBRARY to "    \
    "the "                                                                                         \
    "path of its libnvrtc.so"

typedef struct fa__nvrtc_file {
    char path[4096]; /* "": only the loader's own search can find it */
    char id[96];     /* "": the file does not tell, it has to be loaded */
} fa__nvrtc_file;

/* Looks at FAJIT_NVRTC_LIBRARY and nothing else when it is set; else in CUDA_HOME, CUDA_PATH, the
 * folders of LD_LIBRARY_PATH, /usr/local/cuda and the system's library folders, in this order. */
void fa__nvrtc_find(fa__nvrtc_file *found);

/* Loads what was found, or what the loader's search finds. FA_ERR_NVRTC_MISSING names what was
 * tried. */
fa_status fa__nvrtc_load(const fa__nvrtc_file *found, fa__dynlib *lib);

#endif
