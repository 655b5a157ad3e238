/* fajit: the command-line tool of the library. */
#include <stdio.h>

#include "cli.h"

int main(int argc, char **argv)
{
    cli c = {0};
    cli_failure_begin();
    int code = cli_args_read(argc, argv, &c);

    if (code < 0 && c.emulate) {
        int refused = cli_emulate(&c);
        code = refused ? refused : code;
    }
    if (code < 0)
        code = c.command->run(&c);
    cli_args_free(&c);
    cli_failure_end(code);
    if (fflush(stdout) || ferror(stdout)) {
        cli_error("the output could not be written");
        return CLI_FAILED;
    }
    return code;
}
