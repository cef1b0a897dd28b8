/* The way in: reads the command line, does what can be done at once, and hands over to
 * the supervisor for serving. */
#include "base/file.h"
#include "config/command_line.h"
#include "connection/cert_dir.h"
#include "isolate/host.h"
#include "supervisor/commands.h"
#include "supervisor/program.h"
#include "supervisor/supervisor.h"
#include "supervisor/worker.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 2 };

/* Prints and frees the text; the exit code. */
static int print(struct buffer *text)
{
    bool ok = !text->failed && fd_write_all(STDOUT_FILENO, text->data, text->len);
    buffer_free(text);
    if (!ok) {
        perror("kiln: standard output");
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}

static bool stdout_has_colour(void)
{
    const char *term = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && (no_color == NULL || *no_color == '\0') && term != NULL &&
           strcmp(term, "dumb") != 0;
}

/* Each line with `prefix`, on standard error. */
static void complain(const char *prefix, struct str lines)
{
    struct str line;
    while (lines.len > 0) {
        size_t end = str_find(lines, '\n');
        line = str_first(lines, end);
        fprintf(stderr, "kiln: %s%.*s\n", prefix, STR_ARG(line));
        lines = end == SIZE_MAX ? (struct str){lines.ptr, 0} : str_from(lines, end + 1);
    }
}

/* NULL after telling what is wrong. */
static struct config *load(const struct command_line *line)
{
    struct config_errors errors = {0};
    struct config *config = config_load(line->config_file, false, &line->overrides, &errors);
    complain("warning: ", buffer_str(&errors.warnings));
    complain("", buffer_str(&errors.text));
    if (config == NULL) {
        fprintf(stderr, "kiln: %u problem%s in the settings\n", errors.count, errors.count == 1 ? "" : "s");
    }
    config_errors_free(&errors);
    return config;
}

static int check_config(const struct command_line *line)
{
    struct command_line with_file = *line;
    if (with_file.config_file == NULL) {
        with_file.config_file = "kiln.json"; /* to check a file, it must be there */
    }
    struct config *config = load(&with_file);
    if (config == NULL) {
        return EXIT_FAILURE;
    }
    config_unref(config);
    struct buffer text = BUFFER_EMPTY;
    buffer_printf(&text, "%s: no mistakes found\n", with_file.config_file);
    return print(&text);
}

static int print_config(const struct command_line *line)
{
    struct config *config = load(line);
    if (config == NULL) {
        return EXIT_FAILURE;
    }
    struct buffer text = BUFFER_EMPTY;
    config_print(config, &text);
    config_unref(config);
    return print(&text);
}

/* What lies in a directory, whether or not a server runs. */
static int list_certs(const char *path)
{
    struct buffer text = BUFFER_EMPTY;
    struct cert_dir dir;
    cert_dir_init(&dir);
    dir.quiet = true;
    cert_dir_scan(&dir, path);
    cert_dir_print(&dir, path, time(NULL), &text);
    cert_dir_free(&dir);
    return print(&text);
}

static int ask_server(const struct command_line *line)
{
    if (line->cert_dir != NULL) {
        return list_certs(line->cert_dir);
    }
    struct command_line without_site = *line;
    without_site.overrides.directory = "."; /* nothing is served: it must not be asked for */
    struct config *config = load(&without_site);
    if (config == NULL) {
        return EXIT_FAILURE;
    }
    struct buffer text = BUFFER_EMPTY;
    enum command_result result = command_ask(config, line->server_command, &text);
    int code = EXIT_FAILURE;
    if (result == COMMAND_NO_SERVER && strcmp(line->server_command, "listcerts") == 0) {
        buffer_free(&text);
        code = list_certs(config->cert_dir.ptr);
    } else if (result == COMMAND_DONE || result == COMMAND_REFUSED) {
        code = print(&text);
        code = result == COMMAND_DONE ? code : EXIT_FAILURE;
    } else {
        fprintf(stderr, "kiln: %.*s", STR_ARG(buffer_str(&text)));
        buffer_free(&text);
    }
    config_unref(config);
    return code;
}

/* `kiln ws ...`: the program kiln-ws beside this one, or in libexec/kiln of its prefix. */
static int run_ws(char **argv)
{
    static const char *const names[] = {"kiln-ws", "../libexec/kiln/kiln-ws", "../lib/kiln/kiln-ws"};
    const char *path = program_path();
    const char *slash = path != NULL ? strrchr(path, '/') : NULL;
    for (size_t i = 0; slash != NULL && i < sizeof names / sizeof names[0]; i++) {
        char at[PATH_MAX];
        if (snprintf(at, sizeof at, "%.*s/%s", (int)(slash - path), path, names[i]) < (int)sizeof at) {
            execv(at, argv);
        }
    }
    fprintf(stderr, "kiln ws: the program kiln-ws is neither beside kiln nor in libexec/kiln of its prefix\n");
    return EXIT_FAILURE;
}

static int serve(const struct command_line *line)
{
    struct config *config = load(line);
    if (config == NULL) {
        return EXIT_FAILURE;
    }
    int code = supervisor_run(config, &line->overrides, line->config_file);
    config_unref(config);
    return code;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--worker") == 0) {
        return worker_run(); /* the supervisor started us */
    }
    if (argc == 2 && strcmp(argv[1], "--host") == 0) {
        return host_run(); /* likewise, for an isolated endpoint */
    }
    program_remember(argv);
    if (argc >= 2 && strcmp(argv[1], "ws") == 0) {
        return run_ws(argv + 1);
    }
    struct command_line line;
    struct buffer text = BUFFER_EMPTY;
    if (!command_line_parse(argc, argv, &line, &text)) {
        fprintf(stderr, "%.*s", STR_ARG(buffer_str(&text)));
        buffer_free(&text);
        return EXIT_USAGE;
    }
    switch (line.command) {
    case COMMAND_SERVE: return serve(&line);
    case COMMAND_HELP: command_line_print_help(&text, stdout_has_colour()); break;
    case COMMAND_VERSION: buffer_append_z(&text, "kiln " KILN_VERSION "\n"); break;
    case COMMAND_CONFIG_DEFAULTS: config_print_defaults(&text); break;
    case COMMAND_CONFIG_CHECK: return check_config(&line);
    case COMMAND_CONFIG_PRINT: return print_config(&line);
    case COMMAND_CONFIG_MAN: config_print_man(&text); break;
    case COMMAND_OF_SERVER: return ask_server(&line);
    }
    return print(&text);
}
