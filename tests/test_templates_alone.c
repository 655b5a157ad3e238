/* Every template compiles by itself, with the constants that it has for readers and editors. */
#include <stdio.h>
#include <stdlib.h>

#include "offline.h"
#include "op.h"

static const struct {
    const fa__embedded *embedded;
    const char *entry;
} templates[] = {
    {&fa__template_rope, "fajit_rope"},
    {&fa__template_kv_update, "fajit_kv_update"},
    {&fa__template_lowrank_kv, "fajit_lowrank_kv<0>"},
    {&fa__template_attention, "fajit_attention"},
    {&fa__template_linear, "fajit_linear"},
    {&fa__template_cross_attention, "fajit_cross_attention<0>"},
};

Test(templates_alone, each_with_its_own_constants)
{
    static const char no_instance[] = "#undef FAJIT_INSTANCE\n";
    fa_context *ctx = open_offline("sm_90a", NULL);
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) {
        const char *text = templates[i].embedded->text;
        const size_t bytes = sizeof no_instance + strlen(text);
        char *source = malloc(bytes);
        cr_assert_not_null(source);
        snprintf(source, bytes, "%s%s", no_instance, text);
        fa_spec spec = FA_SPEC_INIT(FA_OP_TEMPLATE);
        spec.tmpl = (fa_template_spec){
            .name = templates[i].entry, .source = source, .entry = templates[i].entry};
        fa_kernel *kernel = NULL;
        cr_expect_eq(fa_compile(ctx, &spec, &kernel), FA_OK, "%s", fa_last_error());
        fa_kernel_release(kernel);
        free(source);
    }
    fa_context_destroy(ctx);
}
