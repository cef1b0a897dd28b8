/* What the arguments of kiln mean. */
#ifndef KILN_CONFIG_COMMAND_LINE_H
#define KILN_CONFIG_COMMAND_LINE_H

#include "config/config.h"

enum command {
    COMMAND_SERVE,
    COMMAND_HELP,
    COMMAND_VERSION,
    COMMAND_CONFIG_DEFAULTS,
    COMMAND_CONFIG_CHECK,
    COMMAND_CONFIG_PRINT,
    COMMAND_CONFIG_MAN,
    COMMAND_OF_SERVER, /* a row of supervisor/commands.def */
};

struct command_line {
    enum command command;
    const char *server_command; /* its name */
    const char *cert_dir; /* kiln listcerts DIR, or NULL: of the running server, or as the config says */
    const char *config_file; /* --config=FILE; NULL: kiln.json when there is one */
    struct config_overrides overrides; /* pointers into argv and the option table */
};

/* False with lines for the user in `error`. */
bool command_line_parse(int argc, char **argv, struct command_line *out, struct buffer *error);

/* The whole of --help. */
void command_line_print_help(struct buffer *out, bool colour);

#endif
