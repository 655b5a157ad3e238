/* The command line: options, help, version. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct option_info {
    const char *name, *value, *text;
    int has_arg, code;
    unsigned bit; /* 0: every command takes it */
} option_info;

enum {
    CODE_JSON = 256,
    CODE_ARCH,
    CODE_JOBS,
    CODE_SEEDS,
    CODE_DYNAMIC,
    CODE_YES,
    CODE_REMOVE,
    CODE_DEVICE,
    CODE_CACHE_DIR,
    CODE_NO_CACHE,
    CODE_EMULATE,
    CODE_VERSION,
};

static const option_info options[] = {
    {"arch", "ARCH", "compile for this architecture, e.g. sm_90a, without a device; repeatable",
     required_argument, CODE_ARCH, CLI_OPT_ARCH},
    {"seeds", "N", "run with this many seeds (3)", required_argument, CODE_SEEDS, CLI_OPT_SEEDS},
    {"dynamic", "[=NAME,...]", "do not bake the dimensions (all, or those named)",
     optional_argument, CODE_DYNAMIC, CLI_OPT_DYNAMIC},
    {"jobs", "N", "entries at once (by cores and memory)", required_argument, CODE_JOBS,
     CLI_OPT_JOBS},
    {"yes", NULL, "cache clear: do not ask", no_argument, CODE_YES, CLI_OPT_YES},
    {"remove", NULL, "cache verify: delete damaged entries", no_argument, CODE_REMOVE,
     CLI_OPT_REMOVE},
    {"device", "N", "the device's number (0)", required_argument, CODE_DEVICE, CLI_OPT_DEVICE},
    {"cache-dir", "DIR", "the writable cache directory", required_argument, CODE_CACHE_DIR,
     CLI_OPT_CACHE},
    {"no-cache", NULL, "neither read nor write a cache directory", no_argument, CODE_NO_CACHE,
     CLI_OPT_CACHE},
    {"emulate", NULL, "run on the CPU, with the emulator as driver and compiler", no_argument,
     CODE_EMULATE, CLI_OPT_EMULATE},
    {"verbose", NULL, "log to stderr; -vv logs more", no_argument, 'v', CLI_OPT_LOG},
    {"json", NULL, "print JSON", no_argument, CODE_JSON, 0},
    {"help", NULL, "print this text", no_argument, 'h', 0},
    {"version", NULL, "print the version", no_argument, CODE_VERSION, 0},
};
#define OPTION_COUNT (sizeof options / sizeof options[0])

/* NULL after printing what was probably meant. */
static const cli_command *command_named(const char *name)
{
    cli_nearest nearest = {.word = name};
    char hint[64];

    for (const cli_command *k = cli_commands; k->name; k++) {
        if (strcmp(k->name, name) == 0)
            return k;
        cli_nearest_try(&nearest, k->name);
    }
    cli_error("there is no command '%s'%s", name, cli_nearest_hint(&nearest, hint));
    return NULL;
}

static void print_options(unsigned mask)
{
    printf("\nOptions:\n");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const option_info *o = &options[i];
        char left[64];
        if (o->bit && !(o->bit & mask))
            continue;
        snprintf(left, sizeof left, "%s--%s%s%s",
                 o->code == 'v'   ? "-v, "
                 : o->code == 'h' ? "-h, "
                                  : "    ",
                 o->name, o->value && o->has_arg == required_argument ? " " : "",
                 o->value ? o->value : "");
        printf("  %-26s %s\n", left, o->text);
    }
}

static void print_help(const cli_command *command)
{
    if (command) {
        printf("Usage: fajit %s %s%s[options]\n\n%s\n", command->name, command->usage,
               command->usage[0] ? " " : "", command->text);
        if (command->help)
            printf("\n%s", command->help);
        print_options(command->options);
        return;
    }
    printf(
        "Usage: fajit COMMAND [options]\n\n"
        "CUDA kernels specialized at run time: compile, check, measure, and look after caches.\n"
        "\nCommands:\n");
    for (const cli_command *k = cli_commands; k->name; k++)
        printf("  %-8s %-28s %s\n", k->name, k->usage, k->text);
    printf(
        "\n`fajit COMMAND --help` describes a command. Exit codes: 0 success, 1 failure or a\n"
        "result over its gate, 2 wrong usage, 3 no CUDA device.\n");
}

int cli_help(const cli *c)
{
    if (c->operand_count > 1) {
        cli_error("help takes one command, or none");
        return CLI_USAGE;
    }
    if (c->operand_count == 0) {
        print_help(NULL);
        return CLI_OK;
    }
    const cli_command *command = command_named(c->operands[0]);
    if (command)
        print_help(command);
    return command ? CLI_OK : CLI_USAGE;
}

static int usage(const cli *c)
{
    fprintf(stderr, "fajit: see `fajit %s%s--help`\n", c->command ? c->command->name : "",
            c->command ? " " : "");
    return CLI_USAGE;
}

static bool read_number(const char *option, const char *text, long min, long max, long *out)
{
    char *end = NULL;

    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < min || value > max) {
        cli_error("--%s takes a number from %ld to %ld, not '%s'", option, min, max, text);
        return false;
    }
    *out = value;
    return true;
}

/* Applies one option; false after printing what is wrong. */
static bool apply(cli *c, const option_info *o, const char *value)
{
    long number = 0;

    switch (o->code) {
    case CODE_ARCH:
        for (size_t i = 0; i < c->arch_count; i++)
            if (strcmp(c->arch[i], value) == 0)
                return true;
        c->arch[c->arch_count++] = value;
        return true;
    case CODE_JOBS:
        if (!read_number(o->name, value, 1, 1024, &number))
            return false;
        c->jobs = (unsigned)number;
        return true;
    case CODE_SEEDS:
        if (!read_number(o->name, value, 1, 1000000, &number))
            return false;
        c->seeds = (unsigned)number;
        return true;
    case CODE_DEVICE:
        if (!read_number(o->name, value, 0, INT_MAX, &number))
            return false;
        c->device = (int)number;
        return true;
    case CODE_DYNAMIC:
        c->dynamic = true;
        c->dynamic_list = value;
        return true;
    case CODE_CACHE_DIR:
        c->cache_dir = value;
        return true;
    case CODE_NO_CACHE:
        return c->no_cache = true;
    case CODE_EMULATE:
        return c->emulate = true;
    case CODE_YES:
        return c->yes = true;
    case CODE_REMOVE:
        return c->remove = true;
    case CODE_JSON:
        return c->json = true;
    case 'v':
        c->verbose++;
        return true;
    default:
        return true;
    }
}

static bool find_command(cli *c, int argc, char **argv)
{
    if (optind >= argc)
        return true;
    c->command = command_named(argv[optind]);
    if (!c->command)
        return false;
    c->operands = (const char *const *)argv + optind + 1;
    c->operand_count = (size_t)(argc - optind - 1);
    return true;
}

static void refuse_long_option(const char *given)
{
    char word[64], hint[64] = "";
    cli_nearest nearest = {.word = word};

    given += strspn(given, "-");
    snprintf(word, sizeof word, "%.*s", (int)strcspn(given, "="), given);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (strcmp(word, options[i].name) == 0) {
            cli_error("option '--%s' takes no value", word);
            return;
        }
        cli_nearest_try(&nearest, options[i].name);
    }
    if (nearest.name)
        snprintf(hint, sizeof hint, "; did you mean '--%s'?", nearest.name);
    cli_error("there is no option '--%s'%s", given, hint);
}

/* What getopt says of an option that is not in the table or lacks its value. */
static int refuse_option(const cli *c, char **argv, int code)
{
    const char *given = argv[optind - 1];

    if (code == ':')
        cli_error("option '%s' needs a value", given);
    else if (strncmp(given, "--", 2) != 0 && optopt > 0 && optopt < 256)
        cli_error("there is no option '-%c'", optopt);
    else
        refuse_long_option(given);
    return usage(c);
}

int cli_args_read(int argc, char **argv, cli *c)
{
    struct option table[OPTION_COUNT + 1] = {{0}};
    const option_info *first_of_bit[32] = {0};
    bool help = false, version = false;
    unsigned used = 0;
    int code = 0;

    *c = (cli){.device = -1, .seeds = 3};
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            cli_failure_json(true); /* also when an option before it is wrong */
    c->arch = cli_alloc(((size_t)argc + 1) * sizeof *c->arch);
    for (size_t i = 0; i < OPTION_COUNT; i++)
        table[i] = (struct option){options[i].name, options[i].has_arg, NULL, options[i].code};
    opterr = 0;
    while ((code = getopt_long(argc, argv, ":hv", table, NULL)) != -1) {
        const option_info *o = NULL;
        for (size_t i = 0; i < OPTION_COUNT; i++)
            o = options[i].code == code ? &options[i] : o;
        if (!o)
            return refuse_option(c, argv, code);
        help = help || code == 'h';
        version = version || code == CODE_VERSION;
        for (unsigned b = 0; b < 32; b++)
            if (o->bit == 1u << b)
                first_of_bit[b] = o;
        used |= o->bit;
        if (!apply(c, o, optarg))
            return usage(c);
    }
    cli_failure_json(c->json);
    if (version) {
        printf("fajit %s\n", fa_version());
        return CLI_OK;
    }
    if (!find_command(c, argc, argv))
        return usage(c);
    if (help) {
        print_help(c->command);
        return CLI_OK;
    }
    if (!c->command) {
        cli_error("no command is given");
        return usage(c);
    }
    for (unsigned b = 0; b < 32; b++) {
        if (used & ~c->command->options & 1u << b) {
            cli_error("%s has no option --%s", c->command->name, first_of_bit[b]->name);
            return usage(c);
        }
    }
    return -1;
}

void cli_args_free(cli *c)
{
    free(c->arch);
    c->arch = NULL;
}
