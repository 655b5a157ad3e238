/* A cubin as assembly, by the toolkit's own disassembler. */
#ifndef FAJIT_TOOLS_CLI_DISASM_H
#define FAJIT_TOOLS_CLI_DISASM_H

#include <stddef.h>

/* malloc'ed text; NULL after printing why. */
char *cli_disassemble(const void *cubin, size_t bytes);

#endif
