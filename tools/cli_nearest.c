/* The name that a misspelt one was probably meant to be. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

enum { LONGEST = 32 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters to insert, remove, replace or swap with their neighbour. Both are at most LONGEST long. */
static size_t distance(const char *a, const char *b)
{
    size_t row[3][LONGEST + 1], m = strlen(a), n = strlen(b);

    for (size_t j = 0; j <= n; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t *now = row[i % 3], *above = row[(i - 1) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= n; j++) {
            now[j] = least(least(above[j], now[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], before[j - 2] + 1);
        }
    }
    return row[m % 3][n];
}

void cli_nearest_try(cli_nearest *n, const char *name)
{
    size_t length = strlen(n->word);

    if (length > LONGEST || strlen(name) > LONGEST)
        return;
    size_t d = distance(n->word, name), limit = length < 6 ? 1 : length / 3;
    if (strncmp(n->word, name, length) == 0)
        d = 1; /* cut short */
    if (d > limit || d >= length || (n->name && d >= n->distance))
        return;
    n->name = name;
    n->distance = d;
}

const char *cli_nearest_hint(const cli_nearest *n, char out[64])
{
    out[0] = '\0';
    if (n->name)
        snprintf(out, 64, "; did you mean '%s'?", n->name);
    return out;
}
