/* What the parameter tables and the labels of operations are made of. */
#ifndef FA_PARAMS_H
#define FA_PARAMS_H

#include "op.h"

/* Entries of a parameter table. MEMBER(name), defined by the operation's file, is the offset of a
 * member of its spec in fa_spec. */
#define CHOICE(name, values, text)                                                                 \
    {                                                                                              \
#name, NULL, FA_PARAM_ENUM, MEMBER(name), false, 0, 0, values, text                        \
    }
#define YES(name, text)                                                                            \
    {                                                                                              \
#name, NULL, FA_PARAM_BOOL, MEMBER(name), false, 0, 0, NULL, text                          \
    }
#define NUMBER(name, alias, dynamic, low, high, text)                                              \
    {                                                                                              \
#name, alias, FA_PARAM_INT, MEMBER(name), dynamic, low, high, NULL, text                   \
    }

/* In the order of their enums, NULL behind the last. */
extern const char *const fa__rotation_names[]; /* fa_kv_rotation */
extern const char *const fa__mask_names[];     /* fa_attention_mask */
extern const char *const fa__norm_names[];     /* fa_rope_norm */
extern const char *const fa__cache_names[];    /* fa_kv_cache */
extern const char *const fa__kv_layout_names[];

/* " D64 B4": the numbers of a label that are not 0. */
typedef struct fa__label_number {
    const char *name;
    int32_t value;
} fa__label_number;
void fa__label_numbers(fa__buf *label, const fa__label_number *numbers, size_t count);

#endif
