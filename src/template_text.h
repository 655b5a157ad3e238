/* Which strings may become part of a template's source or options. Pure. Each returns NULL when the
 * text is fine, else what is wrong with it, to follow the text in a message. */
#ifndef FA_TEMPLATE_TEXT_H
#define FA_TEMPLATE_TEXT_H

#include <stdbool.h>

const char *fa__template_bad_name(const char *name);             /* of a constant */
const char *fa__template_bad_identifier(const char *identifier); /* "a::b" */
const char *fa__template_bad_option(const char *option);

/* An option that changes what NVRTC says but not what it makes: no part of the key. */
bool fa__template_option_only_logs(const char *option);

/* Whether an #include names an absolute path, which would read a file that no key knows of. */
bool fa__template_includes_path(const char *text);

bool fa__template_plain_text(const char *text); /* no control characters */
bool fa__template_good_entry(
    const char *entry); /* a function's name, maybe with template arguments */

#endif
