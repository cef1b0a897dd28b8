#include "config/command_line.h"

#include "config/options.h"
#include "supervisor/commands.h"

struct parser {
    struct command_line *line;
    struct buffer *error;
    bool config_mode; /* `kiln config ...` */
    const char *site_option; /* which of --BackendDir, --WWWdir and --SiteDir was given */
};

static bool fail(struct parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(struct parser *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    buffer_append_z(p->error, "kiln: ");
    buffer_vprintf(p->error, format, args);
    buffer_append_char(p->error, '\n');
    va_end(args);
    return false;
}

/* Names before the '=' that are no options of the file. */
static const char *const serve_flags[] = {"help", "version", "config", NULL};
static const char *const config_flags[] = {"help", "defaults", "check", "print", "man", "config", NULL};

static bool unknown_flag(struct parser *p, struct str name)
{
    const char *nearest = word_nearest(name, p->config_mode ? config_flags : serve_flags);
    nearest = nearest != NULL ? nearest : option_nearest(name);
    if (nearest == NULL) {
        return fail(p, "--%.*s: unknown option; kiln --help lists them all", STR_ARG(name));
    }
    return fail(p, "--%.*s: unknown option; did you mean --%s?", STR_ARG(name), nearest);
}

/* Two different ones would leave one of them without effect, and nobody knows which was meant. */
static bool take_site(struct parser *p, const char *key)
{
    if (strcmp(key, "WWWdir") != 0 && strcmp(key, "SiteDir") != 0 && strcmp(key, "BackendDir") != 0) {
        return true;
    }
    if (p->site_option != NULL && p->site_option != key) {
        return fail(p, "--%s: the site is named twice; --%s came first, use one of them", key, p->site_option);
    }
    p->site_option = key;
    return true;
}

/* A later setting of the same option stands in the place of the first. */
static bool add_override(struct parser *p, const struct option *option, const char *value)
{
    struct config_overrides *overrides = &p->line->overrides;
    unsigned i = 0;
    while (i < overrides->count && overrides->name[i] != option->key) {
        i++;
    }
    if (i == CONFIG_OVERRIDES) {
        return fail(p, "--%s: too many options", option->key);
    }
    overrides->name[i] = option->key;
    overrides->value[i] = value;
    overrides->count += i == overrides->count;
    return take_site(p, option->key);
}

/* --help, --version and their like. *known says whether it was one. */
static bool take_command(struct parser *p, struct str name, const char *value, bool *known)
{
    static const struct {
        const char *name;
        bool in_config;
        bool in_serve;
        enum command command;
    } commands[] = {
        {"help", true, true, COMMAND_HELP},
        {"version", false, true, COMMAND_VERSION},
        {"defaults", true, false, COMMAND_CONFIG_DEFAULTS},
        {"check", true, false, COMMAND_CONFIG_CHECK},
        {"print", true, false, COMMAND_CONFIG_PRINT},
        {"man", true, false, COMMAND_CONFIG_MAN},
    };
    *known = false;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        bool here = p->config_mode ? commands[i].in_config : commands[i].in_serve;
        if (!here || !str_eq(name, str_of(commands[i].name))) {
            continue;
        }
        *known = true;
        if (value != NULL) {
            return fail(p, "--%s takes no value", commands[i].name);
        }
        if (p->line->command != COMMAND_HELP) {
            p->line->command = commands[i].command;
        }
        return true;
    }
    return true;
}

static bool take_flag(struct parser *p, const char *text)
{
    const char *equals = strchr(text, '=');
    struct str name = equals != NULL ? (struct str){text, (size_t)(equals - text)} : str_of(text);
    const char *value = equals != NULL ? equals + 1 : NULL;
    bool known;
    if (!take_command(p, name, value, &known) || known) {
        return known && (value == NULL);
    }
    if (str_eq(name, STR("config"))) {
        if (value == NULL || *value == '\0') {
            return fail(p, "--config: the file is missing; write --config=FILE");
        }
        p->line->config_file = value;
        return true;
    }
    const struct option *option = option_find_nocase(name);
    if (option == NULL) {
        return unknown_flag(p, name);
    }
    if (value == NULL && option->type != OPTION_bool) {
        return fail(p, "--%s: the value is missing; write --%s=VALUE", text, text);
    }
    return add_override(p, option, value != NULL ? value : "true");
}

static bool take_word(struct parser *p, const char *text)
{
    if (p->line->command == COMMAND_OF_SERVER) {
        if (strcmp(p->line->server_command, "listcerts") != 0) {
            return fail(p, "%s: kiln %s takes options only", text, p->line->server_command);
        }
        if (p->line->cert_dir != NULL) {
            return fail(p, "%s: one directory at a time, please; %s was named first", text, p->line->cert_dir);
        }
        p->line->cert_dir = text;
        return true;
    }
    if (p->config_mode) {
        if (p->line->config_file != NULL) {
            return fail(p, "%s: one file at a time, please; %s was named first", text, p->line->config_file);
        }
        p->line->config_file = text;
        return true;
    }
    if (*text == '\0') {
        return fail(p, "the directory to serve is an empty text");
    }
    if (p->line->overrides.directory != NULL) {
        return fail(p, "%s: one directory at a time, please; %s was named first", text, p->line->overrides.directory);
    }
    p->line->overrides.directory = text;
    return true;
}

static bool take_argument(struct parser *p, const char *text)
{
    if (strcmp(text, "-h") == 0 || strcmp(text, "-V") == 0) {
        return take_flag(p, text[1] == 'h' ? "help" : "version");
    }
    if (text[0] == '-' && text[1] == '-') {
        return take_flag(p, text + 2);
    }
    if (text[0] == '-' && text[1] != '\0') {
        return fail(p, "%s: unknown option; long options have two dashes, as --help", text);
    }
    return take_word(p, text);
}

bool command_line_parse(int argc, char **argv, struct command_line *out, struct buffer *error)
{
    *out = (struct command_line){.command = COMMAND_SERVE};
    struct parser p = {.line = out, .error = error};
    int i = 1;
    if (argc > 1 && strcmp(argv[1], "config") == 0) {
        p.config_mode = true;
        i = 2;
    } else if (argc > 1 && command_exists(argv[1])) {
        out->command = COMMAND_OF_SERVER;
        out->server_command = argv[1];
        i = 2;
    }
    bool ok = true;
    bool only_words = false;
    for (; i < argc; i++) {
        if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = true;
            continue;
        }
        ok = (only_words ? take_word(&p, argv[i]) : take_argument(&p, argv[i])) && ok;
    }
    if (ok && p.config_mode && out->command == COMMAND_SERVE) {
        ok = fail(&p, "config: what about it? kiln config --defaults, --check [FILE] or --print [FILE]");
    }
    if (ok && p.site_option != NULL && out->overrides.directory != NULL) {
        ok = fail(&p, "%s: the site is named twice; use either a directory or --backend, --webPath, --SiteDir",
                  out->overrides.directory);
    }
    if (!ok) {
        buffer_append_z(error, "kiln --help tells more.\n");
    }
    return ok;
}

void command_line_print_help(struct buffer *out, bool colour)
{
    const char *heading = colour ? "\033[1m" : "";
    const char *plain = colour ? "\033[0m" : "";
    buffer_printf(
        out,
        "kiln " KILN_VERSION ": a directory of files becomes a running site\n"
        "\n"
        "%sUsage%s\n"
        "  kiln [OPTIONS] DIR               serve DIR as one site, whatever the host name\n"
        "  kiln [OPTIONS] --backend=DIR     serve DIR/<host>/ for each host name\n"
        "  kiln [OPTIONS] --webPath=DIR     serve DIR, static files only\n"
        "  kiln [OPTIONS]                   serve what kiln.json in this directory says\n"
        "  kiln config --defaults           print a config file with every option explained\n"
        "  kiln config --check [FILE]       find every mistake in a config file\n"
        "  kiln config --print [FILE]       print the settings as they come out\n"
        "  kiln ws [OPTIONS] URL            talk to a WebSocket from the command line; kiln ws --help\n"
        "  kiln --help | --version\n"
        "\n"
        "%sTo the running server%s (found by the config's PidFile; --config=FILE or --PidFile=FILE may follow)\n",
        heading, plain, heading, plain);
    commands_print_help(out, "kiln ", 27);
    buffer_append_z(
        out, "  kiln listcerts DIR               the same of a directory; without DIR and a running server: CertDir\n");
    buffer_printf(out,
                  "\n"
                  "%sExamples%s\n"
                  "  kiln .                                   http://localhost:8080/ shows this directory\n"
                  "  kiln --httpPort=80,8080 --threads=4 /srv/site\n"
                  "  kiln --httpPort=80 --httpsPort=443 --certPath=/etc/letsencrypt/live /srv/site\n"
                  "  kiln --config=/etc/kiln/kiln.json\n"
                  "  kiln config --defaults > kiln.json       then change what you like\n"
                  "\n"
                  "  A first endpoint: save this as DIR/hello._c and open http://localhost:8080/hello\n"
                  "      #include <kiln.h>\n"
                  "      int kiln_run(kiln_context *ctx, const char *path)\n"
                  "      {\n"
                  "          kiln_printf(ctx, \"Hello from %%s\\n\", path);\n"
                  "          return 0;\n"
                  "      }\n",
                  heading, plain);
    buffer_printf(out,
                  "\n"
                  "%sOptions%s\n"
                  "  --config=FILE\n"
                  "      Config file, JSON with comments. Default: kiln.json in this directory, when there is one.\n"
                  "  The options below stand in the file as \"Key\": value; on the command line, in any case, they\n"
                  "  stand above the file. --httpPort, --httpsPort, --backend, --webPath and --certPath are short for\n"
                  "  HttpPorts, HttpsPorts, BackendDir, WWWdir and CertDir. Sizes may be written as 64M. true and\n"
                  "  false may be left out: --Logging is --Logging=true.\n",
                  heading, plain);
    config_print_help(out, colour);
    buffer_printf(out,
                  "\n"
                  "%sExit codes%s\n"
                  "  0 all went well, 1 it did not (a message says why), 2 the command line was wrong\n",
                  heading, plain);
}
