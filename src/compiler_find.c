#include "compiler_find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"
#include "status.h"

/* Newest major version first; the file names are the libraries' own. */
static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
#define NAMES (sizeof names / sizeof names[0])

/* The build id stands in the first page of every NVRTC so far. */
#define HEAD_BYTES 4096

static void read_id(fa__nvrtc_file *found)
{
    unsigned char *head = NULL;
    size_t len = 0;
    if (fa__file_read_prefix(found->path, false, HEAD_BYTES, &head, &len) == 0)
        fa__dynlib_file_id(head, len, found->id, sizeof found->id);
    free(head);
}

static bool look_at(fa__nvrtc_file *found, const char *dir, size_t dir_len, const char *below)
{
    fa__file_info info;
    for (size_t i = 0; i < NAMES; i++) {
        int n = snprintf(found->path, sizeof found->path, "%.*s%s/%s", (int)dir_len, dir, below,
                         names[i]);
        if (n > 0 && (size_t)n < sizeof found->path &&
            fa__file_stat(found->path, true, &info) == 0 && info.regular)
            return true;
    }
    found->path[0] = '\0';
    return false;
}

static bool look_below(fa__nvrtc_file *found, const char *root)
{
    return root && root[0] &&
           (look_at(found, root, strlen(root), "/lib64") ||
            look_at(found, root, strlen(root), "/lib"));
}

static bool look_in_list(fa__nvrtc_file *found, const char *list)
{
    while (list && *list) {
        size_t len = strcspn(list, ":");
        if (len && look_at(found, list, len, ""))
            return true;
        list += len + (list[len] == ':');
    }
    return false;
}

void fa__nvrtc_find(fa__nvrtc_file *found)
{
    const char *override = secure_getenv("FAJIT_NVRTC_LIBRARY");
    *found = (fa__nvrtc_file){0};
    if (override && override[0]) {
        snprintf(found->path, sizeof found->path, "%s", override);
        if (!strchr(override, '/'))
            return; /* a name for the loader to search for: it cannot be looked into here */
    } else if (!look_below(found, secure_getenv("CUDA_HOME")) &&
               !look_below(found, secure_getenv("CUDA_PATH")) &&
               !look_in_list(found, secure_getenv("LD_LIBRARY_PATH")) &&
               !look_below(found, "/usr/local/cuda") &&
               !look_in_list(found,
                             "/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib64:"
                             "/usr/lib")) {
        return;
    }
    read_id(found);
}

fa_status fa__nvrtc_load(const fa__nvrtc_file *found, fa__dynlib *lib)
{
    const char *candidates[NAMES + 2] = {0};
    size_t n = 0;
    if (found->path[0])
        candidates[n++] = found->path;
    else
        for (size_t i = 0; i < NAMES; i++)
            candidates[n++] = names[i];
    if (fa__dynlib_open(lib, NULL, candidates))
        return FA_OK;
    fa__fail(FA_ERR_NVRTC_MISSING,
             "cannot open the NVRTC library; " FA__NVRTC_REMEDY
             ". Looked in FAJIT_NVRTC_LIBRARY, CUDA_HOME, CUDA_PATH, LD_LIBRARY_PATH, "
             "/usr/local/cuda and the system's folders; tried:%s",
             lib->tried.data ? lib->tried.data : "");
    fa__buf_free(&lib->tried);
    return FA_ERR_NVRTC_MISSING;
}
