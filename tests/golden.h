/* Outputs of PyTorch in float64: tests/golden/NAME.f64; golden/cases.json says what of. */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static inline void golden_read(const char *name, double *values, size_t count)
{
    char path[4200];
    const char *root = getenv("FAJIT_TEST_ROOT");
    snprintf(path, sizeof path, "%s/tests/golden/%s.f64", root ? root : ".", name);
    FILE *file = fopen(path, "rb");
    cr_assert(file, "cannot read %s", path);
    cr_assert_eq(fread(values, sizeof *values, count, file), count, "%s is short", path);
    cr_assert_eq(fgetc(file), EOF, "%s is long", path);
    fclose(file);
}

#endif
