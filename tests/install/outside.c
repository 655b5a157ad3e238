/* A program of somebody else, built against the installed library through pkg-config. */
#include <fajit.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    char header[32];
    snprintf(header, sizeof header, "%d.%d.%d", FA_VERSION_MAJOR, FA_VERSION_MINOR,
             FA_VERSION_PATCH);
    if (strcmp(header, fa_version()) != 0) {
        fprintf(stderr, "header %s, library %s\n", header, fa_version());
        return 1;
    }

    /* The source of an instance needs neither NVRTC nor a GPU. */
    fa_context_options options = FA_CONTEXT_OPTIONS_INIT;
    options.offline = true;
    options.arch = "sm_90a";
    options.no_disk_cache = true;
    fa_spec spec = FA_SPEC_INIT(FA_OP_ROPE);
    spec.rope = (fa_rope_spec){.dtype = FA_F32, .head_dim = 64, .style = FA_ROPE_HALF};
    fa_context *ctx = NULL;
    fa_status status = fa_context_create(&options, &ctx);
    if (status != FA_OK) {
        fprintf(stderr, "fa_context_create: %s: %s\n", fa_status_name(status), fa_last_error());
        return 1;
    }

    /* A refusal, to see that errors cross the boundary. */
    spec.rope.rotary_dim = 63;
    fa_kernel *kernel = NULL;
    status = fa_compile(ctx, &spec, &kernel);
    if (status != FA_ERR_ROTARY_DIM || kernel != NULL || fa_last_error()[0] == '\0') {
        fprintf(stderr, "rotary_dim 63 gave %s\n", fa_status_name(status));
        return 1;
    }
    fa_context_destroy(ctx);
    printf("outside program: fajit %s\n", fa_version());
    return 0;
}
