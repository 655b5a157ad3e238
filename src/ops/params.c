#include "ops/params.h"

const char *const fa__rotation_names[] = {"none", "half", "interleaved", NULL};
const char *const fa__mask_names[] = {"full", "causal", "causal_top_left", NULL};
const char *const fa__norm_names[] = {"none", "rms", "rms_f32", NULL};
const char *const fa__cache_names[] = {"dense", "slots", "block_table", NULL};
const char *const fa__kv_layout_names[] = {"tokens_first", "heads_first", NULL};

void fa__label_numbers(fa__buf *label, const fa__label_number *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (numbers[i].value)
            fa__buf_format(label, " %s%d", numbers[i].name, numbers[i].value);
}
