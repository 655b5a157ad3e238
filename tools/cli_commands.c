/* The table of commands: parsing, help and dispatch read it. */
#include "cli.h"

#define COMPILING (CLI_OPT_DEVICE | CLI_OPT_CACHE | CLI_OPT_LOG | CLI_OPT_EMULATE)

static const char spec_help[] =
    "OP and its parameters are those of `fajit ops`. What is given is baked into the kernel; a\n"
    "dimension that is not given stays a launch argument. The operation `template` compiles a "
    "file\n"
    "of your own: `fajit ops template` lists its keys.\n";

static const char run_help[] =
    "The values are baked into the kernel and are also the sizes of the run. Dimensions that are\n"
    "not given have default sizes, printed with the result, and stay dynamic in the kernel.\n";

const cli_command cli_commands[] = {
    {"info", "", "library, NVRTC, driver, devices, cache layers", COMPILING, NULL, cli_info},
    {"ops", "[OP]", "operations, their parameters and legal values", 0, NULL, cli_ops},
    {"compile", "OP key=value...", "compile a kernel, or find it in the cache",
     COMPILING | CLI_OPT_ARCH, spec_help, cli_compile},
    {"verify", "OP key=value...", "run on the device against the double-precision reference",
     COMPILING | CLI_OPT_SEEDS | CLI_OPT_DYNAMIC, run_help, cli_verify},
    {"bench", "OP key=value...", "measure time, physical floor and their ratio",
     COMPILING | CLI_OPT_DYNAMIC, run_help, cli_bench},
    {"source", "OP key=value...", "print the instantiated source", COMPILING | CLI_OPT_ARCH,
     spec_help, cli_source},
    {"ptx", "OP key=value...", "print the kernel as PTX", COMPILING | CLI_OPT_ARCH, spec_help,
     cli_ptx},
    {"sass", "OP key=value...", "print the kernel disassembled", COMPILING | CLI_OPT_ARCH,
     "Runs nvdisasm or cuobjdump of the CUDA toolkit, found in PATH, $CUDA_HOME/bin,\n"
     "$CUDA_PATH/bin or /usr/local/cuda/bin.\n",
     cli_sass},
    {"warm", "MANIFEST", "compile every kernel of a manifest into the cache",
     COMPILING | CLI_OPT_ARCH | CLI_OPT_JOBS, NULL, cli_warm},
    {"cache", "list|verify|size|clear|path", "look after the cache directories",
     CLI_OPT_CACHE | CLI_OPT_LOG | CLI_OPT_YES | CLI_OPT_REMOVE,
     "list    every entry: key, name, architecture, size, last use\n"
     "verify  reads and checks every entry; --remove deletes damaged ones\n"
     "size    entries and bytes in the writable directory\n"
     "clear   removes every entry of the writable directory\n"
     "path    the directories in use, in the order they are looked in\n",
     cli_cache},
    {"help", "[COMMAND]", "describe the tool or a command", 0, NULL, cli_help},
    {0},
};
