/* Config files: what they mean, what is wrong with them, and that they print and read back. */
#include "base/epoch.h"
#include "base/file.h"
#include "config/config.h"
#include "observe/log.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct config_errors errors;

static int teardown(void **state)
{
    (void)state;
    config_errors_free(&errors);
    return 0;
}

static struct config *parse(const char *text)
{
    config_errors_free(&errors);
    return config_parse(str_of(text), "kiln.json", NULL, &errors);
}

static struct config *parse_with(const char *text, const char *name, const char *value)
{
    struct config_overrides overrides = {.name = {name}, .value = {value}, .count = 1};
    config_errors_free(&errors);
    return config_parse(str_of(text), "kiln.json", &overrides, &errors);
}

static void assert_text(struct str actual, const char *expected)
{
    char *copy = strndup(actual.ptr != NULL ? actual.ptr : "", actual.len);
    assert_string_equal(copy, expected);
    free(copy);
}

/* The file is refused, and with exactly this. */
static void assert_refused(const char *text, const char *message)
{
    struct config *config = parse(text);
    assert_text(buffer_str(&errors.text), message);
    assert_null(config);
}

static void assert_warned(const char *text, const char *message)
{
    struct config *config = parse(text);
    assert_text(buffer_str(&errors.text), "");
    assert_text(buffer_str(&errors.warnings), message);
    assert_non_null(config);
    config_unref(config);
}

/* ---- values ---------------------------------------------------------------------------------- */

static void defaults_are_those_of_the_table(void **state)
{
    (void)state;
    struct config *config = parse("{}");
    assert_non_null(config);
    assert_false(config->logging);
    assert_int_equal(config->http_ports.count, 1);
    assert_int_equal(config->http_ports.items[0], 8080);
    assert_int_equal(config->max_concurrent_connections, 0);
    assert_int_equal(config->max_request_body_size, 8000000000);
    assert_true(config->bytes_per_second == 240);
    assert_int_equal(config->log_level, LOG_NOTICE);
    assert_int_equal(config->compression_level, COMPRESSION_OPTIMAL);
    assert_int_equal(config->session_store, SESSION_STORE_LMDB);
    assert_int_equal(config->index_priority.count, 7);
    assert_text(config->index_priority.items[1], "index._c");
    assert_int_equal(config->default_headers.count, 1);
    assert_text(config->default_headers.items[0].name, "Server");
    assert_text(config->default_headers.items[0].lower, "server");
    assert_text(config->session_cookie_name, "SSID");
    assert_int_equal(config->layout, SITE_PER_HOST);
    config_unref(config);
}

static void values_of_every_type(void **state)
{
    (void)state;
    struct config *config =
        parse("{\n"
              "\"Logging\": true, // one comment\n"
              "\"HttpPorts\": [80, 0, 0, 65535], /* another\n of two lines */\n"
              "\"Threads\": 8, \"FileCacheSize\": \"64M\", \"CompressMaxSize\": \"3k\",\n"
              "\"gracePeriod\": 2.5, \"SessionCookieName\": \"id\", \"LogLevel\": \"Debug\",\n"
              "\"CompressionLevel\": 3, \"MaxConcurrentConnections\": null,\n"
              "\"DownloadIfExtension\": [\".ZIP\", \"tar\"],\n"
              "\"DomainAlias\": {\"WWW.Example.com\": \"Example.com\"},\n"
              "\"UrlAlias\": {\"Example.com/Old\": \"/New\"},\n"
              "\"DefaultHeaders\": {\"X-A\": \" a \", \"X-B\": \"\"},\n"
              "\"ExtTypes\": {\"HTML, .htm\": [\"Content-Type:text/html\", \"X-C: c:d\"], \"b\": \"X: y\"}\n"
              "}");
    assert_text(buffer_str(&errors.text), "");
    assert_non_null(config);
    assert_true(config->logging);
    assert_int_equal(config->http_ports.count, 4);
    assert_int_equal(config->http_ports.items[3], 65535);
    assert_int_equal(config->threads, 8);
    assert_int_equal(config->file_cache_size, 64 << 20);
    assert_int_equal(config->compress_max_size, 3 << 10);
    assert_true(config->grace_period == 2.5);
    assert_text(config->session_cookie_name, "id");
    assert_int_equal(config->log_level, LOG_DEBUG);
    assert_int_equal(config->compression_level, COMPRESSION_SMALLEST);
    assert_non_null(map_get(&config->download_extensions, STR("zip")));
    assert_null(map_get(&config->download_extensions, STR("exe")));
    assert_text(*(struct str *)map_get(&config->domain_alias, STR("www.example.com")), "example.com");
    assert_text(*(struct str *)map_get(&config->url_alias, STR("example.com/Old")), "/New");
    assert_int_equal(config->default_headers.count, 2);
    assert_text(config->default_headers.items[0].value, "a");
    struct config_headers *headers = map_get(&config->ext_types, STR("htm"));
    assert_ptr_equal(headers, map_get(&config->ext_types, STR("html")));
    assert_int_equal(headers->count, 2);
    assert_text(headers->items[0].name, "Content-Type");
    assert_text(headers->items[0].value, "text/html");
    assert_text(headers->items[1].value, "c:d");
    config_unref(config);
}

static void strings_in_comments_and_comments_in_strings(void **state)
{
    (void)state;
    struct config *config = parse(
        "\xEF\xBB\xBF// \"Logging\": 1\n{ /* \" * / */ \"User\": \"a // b /* c */ \\\" \\u00e4\\ud83d\\ude00\", // \"\n"
        "\"Group\": \"\\\\\" /**/ }// end");
    assert_text(buffer_str(&errors.text), "");
    assert_text(config->user, "a // b /* c */ \" \xC3\xA4\xF0\x9F\x98\x80");
    assert_text(config->group, "\\");
    config_unref(config);
}

static void seeds_file_loads(void **state)
{
    (void)state;
    struct buffer text = BUFFER_EMPTY;
    assert_true(file_read("tests/support/JonCsWebConfig.json", 1 << 20, &text));
    struct config *config = config_parse(buffer_str(&text), "JonCsWebConfig.json", NULL, &errors);
    buffer_free(&text);
    assert_text(buffer_str(&errors.text), "");
    assert_non_null(config);
    assert_int_equal(config->http_ports.items[0], 80);
    assert_int_equal(config->http_ports.items[1], 8080);
    assert_int_equal(config->https_ports.items[1], 8443);
    assert_true(config->bytes_per_second == 1);
    assert_text(config->index_priority.items[0], "index.so");
    assert_text(config->index_priority.items[1], "index._c");
    assert_text(config->index_priority.items[6], "index.html");
    assert_int_equal(config->download_if_extension.count, 11);
    assert_int_equal(config->ext_types.count, 34);
    struct config_headers *html = map_get(&config->ext_types, STR("xhtml"));
    assert_text(html->items[1].value, "max-age=86400");
    assert_int_equal(config->default_headers.count, 5);
    assert_text(*(struct str *)map_get(&config->domain_alias, STR("127.0.0.1")), "localhost");
    assert_text(*(struct str *)map_get(&config->forward_ext, STR("php")), "fcgi://127.0.0.1:9000");
    assert_int_equal(config->url_alias.count, 0);
    assert_int_equal(config->layout, SITE_PER_HOST);
    assert_non_null(
        strstr(errors.warnings.data, "JonCsWebConfig.json:6: \"EnableHtaccess\": accepted, but not active"));
    config_unref(config);
}

/* ---- mistakes -------------------------------------------------------------------------------- */

static void unknown_keys_name_the_nearest(void **state)
{
    (void)state;
    assert_refused("{\n\n  \"MaxDirDepht\": 4\n}",
                   "kiln.json:3: \"MaxDirDepht\": unknown key; did you mean \"MaxDirDepth\"?\n");
    assert_refused("{\"maxdirdepth\": 4}",
                   "kiln.json:1: \"maxdirdepth\": unknown key; did you mean \"MaxDirDepth\"?\n");
    assert_refused("{\"httpPort\": 4}", "kiln.json:1: \"httpPort\": unknown key; did you mean \"HttpPorts\"?\n");
    assert_refused("{\"qwertyuiop\": 4}", "kiln.json:1: \"qwertyuiop\": unknown key; kiln --help lists the keys\n");
}

static void wrong_values_say_what_was_expected(void **state)
{
    (void)state;
    struct config *config = parse("{\"MaxDirDepth\": 1000, \"Threads\": 0}");
    assert_non_null(config);
    config_unref(config);
    assert_refused("{\"MaxDirDepth\": 1001}",
                   "kiln.json:1: \"MaxDirDepth\": expected a whole number from 1 to 1000; found 1001\n");
    assert_refused("{\"MaxDirDepth\": 0}",
                   "kiln.json:1: \"MaxDirDepth\": expected a whole number from 1 to 1000; found 0\n");
    assert_refused("{\"MaxDirDepth\": 1.5}",
                   "kiln.json:1: \"MaxDirDepth\": expected a whole number from 1 to 1000; found 1.5\n");
    assert_refused("{\"MaxDirDepth\": null}",
                   "kiln.json:1: \"MaxDirDepth\": expected a whole number from 1 to 1000; found null\n");
    assert_refused("{\"MaxDirDepth\": \"4\"}",
                   "kiln.json:1: \"MaxDirDepth\": expected a whole number from 1 to 1000; found \"4\"\n");
    assert_refused("{\"Logging\":\n 1}", "kiln.json:1: \"Logging\": expected true or false; found 1\n");
    assert_refused("{\"CompressMinSize\": \"1T\"}", "kiln.json:1: \"CompressMinSize\": expected a number of bytes, as "
                                                    "65536 or \"64K\", from 0 to 1G; found \"1T\"\n");
    assert_refused("{\"LogLevel\": \"loud\"}", "kiln.json:1: \"LogLevel\": expected one of \"debug\", \"info\", "
                                               "\"notice\", \"warning\" or \"error\"; found \"loud\"\n");
    assert_refused("{\"SessionSync\": 2}",
                   "kiln.json:1: \"SessionSync\": expected one of \"grouped\" or \"strict\"; found 2\n");
    assert_refused("{\"HttpPorts\": [\n80,\n80]}", "kiln.json:3: \"HttpPorts\": expected each port once; found 80\n");
    assert_refused("{\"HttpPorts\": []}", "HttpPorts and HttpsPorts are empty: nothing to listen on\n");
    assert_refused("{\"Rand_Alphabet\": \"aaaaaaaaaaaaaaaaaaaaaaaa\"}",
                   "kiln.json:1: \"Rand_Alphabet\": expected 16 or more different characters that a cookie may hold "
                   "(letters, digits, '-', '_', '.'); found \"aaaaaaaaaaaaaaaaaaaaaaaa\"\n");
    assert_refused("{\"CompressMinSize\": 100, \"CompressMaxSize\": 99}",
                   "CompressMinSize (100) is above CompressMaxSize (99)\n");
}

static void headers_cannot_break_a_response(void **state)
{
    (void)state;
    assert_refused("{\"ExtTypes\": {\n\"a\": [\n\"X: y\\r\\nZ: 1\"]}}",
                   "kiln.json:3: \"ExtTypes\": expected a header value without line ends and control characters; found "
                   "\"X: y\\r\\nZ: 1\"\n");
    assert_refused(
        "{\"DefaultHeaders\": {\"A\\n\": \"b\"}}",
        "kiln.json:1: \"DefaultHeaders\": expected a header name of letters, digits and '-'; found \"A\n\": \"b\"\n");
    assert_refused("{\"DefaultHeaders\": {\"content-length\": \"5\"}}",
                   "kiln.json:1: \"DefaultHeaders\": expected another header; the server makes this one itself; found "
                   "\"content-length\": \"5\"\n");
    assert_refused("{\"ExtTypes\": {\"a\": [\"no colon\"]}}", "kiln.json:1: \"ExtTypes\": expected a header line, as "
                                                              "\"Content-Type: text/html\"; found \"no colon\"\n");
    assert_refused("{\"DefaultHeaders\": {\"Vary\": \"a\",\n\"vary\": \"b\"}}",
                   "kiln.json:2: \"DefaultHeaders\": expected each header once (capital letters do not count); found "
                   "\"vary\": \"b\"\n");
}

static void names_cannot_leave_their_place(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"DomainAlias\": {\"a\": \"../b\"}}", "{\"DomainAlias\": {\"a\": \".\"}}",
        "{\"UrlAlias\": {\"a/b\": \"c\"}}",     "{\"UrlAlias\": {\"b\": \"/c\"}}",
        "{\"DomainFilterTo\": \"/\"}",          "{\"indexPriority\": [\"a/b\"]}",
        "{\"indexPriority\": [\".htaccess\"]}", "{\"BindAddress\": \"localhost\"}",
        "{\"SessionCookieName\": \"a;b\"}",     "{\"SessionCookieName\": \"\"}",
        "{\"CompressTypes\": [\"text\"]}",      "{\"ForwardExt\": {\"x\": \"ftp://a\"}}",
        "{\"DownloadIfExtension\": [\"\"]}",    "{\"ErrorLog\": \"a\\nb\"}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct config *config = parse(bad[i]);
        if (config != NULL) {
            fail_msg("was accepted: %s", bad[i]);
        }
        assert_int_equal(errors.count, 1);
    }
}

static void all_mistakes_at_once(void **state)
{
    (void)state;
    assert_refused("{\n\"Logging\": 1,\n\"Threads\": -1,\n\"Logging\": true,\n\"x\": {\"y\": 1, \"y\": 2}\n}",
                   "kiln.json:4: \"Logging\": stands here again, first in line 2\n"
                   "kiln.json:5: \"y\": stands here again, first in line 5\n"
                   "kiln.json:2: \"Logging\": expected true or false; found 1\n"
                   "kiln.json:3: \"Threads\": expected a whole number from 0 to 64; found -1\n"
                   "kiln.json:5: \"x\": unknown key; kiln --help lists the keys\n");
    assert_int_equal(errors.count, 5);
}

static void broken_syntax_has_its_line(void **state)
{
    (void)state;
    assert_refused("", "kiln.json:1: expected '{' at the start of the file, found the end of the file\n");
    assert_refused("{\n\"Logging\": true\n\n\"Threads\": 1}", "kiln.json:2: a comma is missing after this value\n");
    assert_refused("{\n\"Logging: true,\n}", "kiln.json:2: this string has no closing \"\n");
    assert_refused("{\n\n/* ", "kiln.json:3: this comment has no end; expected \"*/\"\n");
    assert_refused("{\"a\": True}", "kiln.json:1: expected a value (true, false, null, a number, or a text in double "
                                    "quotes), found True\n");
    assert_refused("{\"a\": 'b'}", "kiln.json:1: expected double quotes around a text, found 'b'\n");
    assert_refused("{\n\"a\": 012}", "kiln.json:2: expected a number, as 8, -1, 0.5 or 1e6, found 012\n");
    assert_refused("{\"a\": \"\\x\"}", "kiln.json:1: expected one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u (write \\\\ "
                                       "for a backslash), found \\\\x\\\"\n");
    assert_refused("{\"a\": \"\\ud800\"}",
                   "kiln.json:1: expected the second half of a \\u surrogate pair, found \\\"\n");
    assert_refused("{\"a\": \"\xff\"}", "kiln.json:1: this text is not UTF-8 (byte 0xFF)\n");
    assert_refused("{} x", "kiln.json:1: expected nothing after the last '}', found x\n");
    assert_refused("{a: 1}", "kiln.json:1: expected a key in double quotes, found a:\n");
    assert_refused("[1]", "kiln.json:1: expected '{' at the start of the file, found [\n");
    char deep[200] = "{\"a\": ";
    memset(deep + 6, '[', 100);
    assert_null(parse(deep));
    assert_text(buffer_str(&errors.text), "kiln.json:1: expected at most 32 levels of { and [, found [\n");
}

static void a_nul_byte_is_no_end(void **state)
{
    (void)state;
    config_errors_free(&errors);
    struct config *config = config_parse(STR("{}\0{"), "kiln.json", NULL, &errors);
    assert_null(config);
    assert_text(buffer_str(&errors.text), "kiln.json:1: expected nothing after the last '}', found \\u0000\n");
}

static void warnings_do_not_refuse(void **state)
{
    (void)state;
    assert_warned(
        "{\n\"ServerMetrics\": true\n}",
        "kiln.json:2: \"ServerMetrics\": accepted, but not active in this version, which has no rates of requests\n");
    assert_warned("{\"HttpPorts\": [1,\n],\n}", "kiln.json:1: the comma before ']' is one too many; ignored\n"
                                                "kiln.json:2: the comma before '}' is one too many; ignored\n");
}

/* ---- the command line above the file --------------------------------------------------------- */

static void overrides_stand_above_the_file(void **state)
{
    (void)state;
    struct config *config = parse_with("{\"HttpPorts\": [80]}", "httpPort", "8080,8081");
    assert_int_equal(config->http_ports.count, 2);
    assert_int_equal(config->http_ports.items[1], 8081);
    config_unref(config);
    config = parse_with("{}", "LOGGING", NULL);
    assert_true(config->logging);
    config_unref(config);
    config = parse_with("{\"Logging\": true}", "logging", "off");
    assert_false(config->logging);
    config_unref(config);
    config = parse_with("{}", "filecachesize", "2M");
    assert_int_equal(config->file_cache_size, 2 << 20);
    config_unref(config);
    config = parse_with("{}", "DomainAlias", "{\"a\": \"b\"}");
    assert_text(*(struct str *)map_get(&config->domain_alias, STR("a")), "b");
    config_unref(config);
    config = parse_with("{}", "indexPriority", "index.html, a.html");
    assert_int_equal(config->index_priority.count, 2);
    assert_text(config->index_priority.items[1], "a.html");
    config_unref(config);
    assert_null(parse_with("{}", "threads", "many"));
    assert_text(buffer_str(&errors.text), "--Threads: expected a whole number from 0 to 64; found \"many\"\n");
    assert_null(parse_with("{}", "User", "\xff"));
    assert_null(parse_with("{}", "ExtTypes", "{\"a\": 1"));
}

static void site_of(const char *text, const char *name, const char *value, int layout, const char *root)
{
    struct config *config = parse_with(text, name, value);
    assert_non_null(config);
    assert_int_equal(config->layout, layout);
    assert_text(config->web_root, root);
    config_unref(config);
}

static void one_site_is_chosen(void **state)
{
    (void)state;
    const char *all = "{\"WWWdir\": \"/w\", \"SiteDir\": \"/s\", \"BackendDir\": \"/b\"}";
    site_of(all, "Logging", "false", SITE_STATIC_ONLY, "/w");
    site_of("{\"SiteDir\": \"/s\", \"BackendDir\": \"/b\"}", "Logging", "false", SITE_SINGLE, "/s");
    site_of("{\"WWWdir\": \"\", \"BackendDir\": \"/b\"}", "Logging", "false", SITE_PER_HOST, "/b");
    /* What the command line names wins over what the file prefers. */
    site_of(all, "backend", "/c", SITE_PER_HOST, "/c");
    site_of(all, "SiteDir", "/c", SITE_SINGLE, "/c");
    site_of(all, "webPath", "/c/./d/", SITE_STATIC_ONLY, "/c/d");
    struct config_overrides overrides = {.directory = "/dir"};
    struct config *config = config_parse(str_of(all), "kiln.json", &overrides, &errors);
    assert_int_equal(config->layout, SITE_SINGLE);
    assert_text(config->web_root, "/dir");
    config_unref(config);
    assert_refused("{\"BackendDir\": \"\"}",
                   "nothing to serve: name a directory (kiln DIR), or set WWWdir, SiteDir or BackendDir\n");
}

static void paths_start_at_the_file_or_the_current_directory(void **state)
{
    (void)state;
    char directory[] = "/tmp/kiln-test-config-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char path[PATH_MAX + 16];
    char here[PATH_MAX];
    assert_non_null(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%s/conf.json", directory);
    const char *text = "{\"BackendDir\": \"www\", \"SessionsDir\": \"./sess/\"}";
    assert_true(file_replace(path, text, strlen(text), 0644));

    struct config_overrides overrides = {.name = {"ErrorLog"}, .value = {"logs/e"}, .count = 1};
    assert_null(config_load(path, false, &overrides, &errors));
    assert_non_null(strstr(errors.text.data, "/www: No such file or directory"));

    char www[PATH_MAX + 16];
    snprintf(www, sizeof www, "%s/www", directory);
    assert_int_equal(mkdir(www, 0755), 0);
    config_errors_free(&errors);
    struct config *config = config_load(path, false, &overrides, &errors);
    assert_text(buffer_str(&errors.text), "");
    assert_text(config->base_dir, directory);
    assert_text(config->web_root, www);
    snprintf(path, sizeof path, "%s/sess", directory);
    assert_text(config->sessions_dir, path);
    snprintf(path, sizeof path, "%s/logs/e", here);
    assert_text(config->error_log, path);
    snprintf(path, sizeof path, "%s/conf.json", directory);
    assert_text(config->private_paths.items[0], path);
    config_unref(config);

    unlink(path);
    rmdir(www);
    config_errors_free(&errors);
    assert_null(config_load(path, false, NULL, &errors));
    assert_non_null(strstr(errors.text.data, "conf.json: cannot be read: No such file or directory"));
    assert_int_equal(rmdir(directory), 0);
}

/* ---- printing -------------------------------------------------------------------------------- */

static void assert_reads_back(struct config *config)
{
    struct buffer first = BUFFER_EMPTY;
    struct buffer second = BUFFER_EMPTY;
    config_print(config, &first);
    config_errors_free(&errors);
    struct config *again = config_parse(buffer_str(&first), "kiln.json", NULL, &errors);
    assert_text(buffer_str(&errors.text), "");
    assert_non_null(again);
    config_print(again, &second);
    buffer_append_char(&first, '\0');
    buffer_append_char(&second, '\0');
    assert_string_equal(first.data, second.data);
    assert_int_equal(config->layout, again->layout);
    assert_true(str_eq(config->web_root, again->web_root));
    config_unref(again);
    buffer_free(&first);
    buffer_free(&second);
}

static void a_snapshot_prints_and_reads_back(void **state)
{
    (void)state;
    struct config *config =
        parse("{\"User\": \"\\\" \\\\ \\u00e4\", \"gracePeriod\": 0.1, \"LogLevel\": \"error\",\n"
              "\"ExtTypes\": {\"b,a\": [\"X: 1\", \"X: 2\"]}, \"MaxRequestBodySize\": 1125899906842624,\n"
              "\"DefaultHeaders\": {\"B\": \"1\", \"A\": \"2\"}, \"DomainAlias\": {\"y\": \"z\", \"x\": \"z\"},\n"
              "\"HttpPorts\": [0, 1], \"WWWdir\": \"w\"}");
    assert_non_null(config);
    assert_reads_back(config);
    config_unref(config);
    struct config_overrides overrides = {.directory = "some/where", .name = {"Threads"}, .value = {"3"}, .count = 1};
    config = config_parse(STR("{\"BackendDir\": \"x\"}"), "kiln.json", &overrides, &errors);
    assert_int_equal(config->layout, SITE_SINGLE);
    assert_reads_back(config);
    config_unref(config);
}

static void the_default_file_is_the_defaults(void **state)
{
    (void)state;
    struct buffer file = BUFFER_EMPTY;
    struct buffer from_file = BUFFER_EMPTY;
    struct buffer without = BUFFER_EMPTY;
    config_print_defaults(&file);
    struct config *one = config_parse(buffer_str(&file), "kiln.json", NULL, &errors);
    assert_text(buffer_str(&errors.text), "");
    assert_text(buffer_str(&errors.warnings), "");
    struct config *two = config_parse(STR_NONE, "kiln.json", NULL, &errors);
    config_print(one, &from_file);
    config_print(two, &without);
    assert_true(str_eq(buffer_str(&from_file), buffer_str(&without)));
    config_unref(one);
    config_unref(two);
    buffer_free(&file);
    buffer_free(&from_file);
    buffer_free(&without);
}

/* `// "Key": value`, and no text that happens to begin with a quotation mark. */
static bool is_key_line(const char *line)
{
    if (strncmp(line, "    // \"", 8) != 0) {
        return false;
    }
    size_t len = strspn(line + 8, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
    return len > 0 && strncmp(line + 8 + len, "\": ", 3) == 0;
}

static void inactive_keys_in_the_default_file_read_back_too(void **state)
{
    (void)state;
    struct buffer file = BUFFER_EMPTY;
    config_print_defaults(&file);
    buffer_append_char(&file, '\0');
    /* Each `// "Key": value` is a line of its own that may be uncommented. */
    unsigned found = 0;
    for (char *line = strtok(file.data, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (is_key_line(line)) {
            struct buffer text = BUFFER_EMPTY;
            buffer_printf(&text, "{%s}", line + 7);
            config_errors_free(&errors);
            struct config *config = config_parse(buffer_str(&text), "kiln.json", NULL, &errors);
            assert_text(buffer_str(&errors.text), "");
            assert_non_null(config);
            config_unref(config);
            buffer_free(&text);
            found++;
        }
    }
    assert_true(found > 0);
    buffer_free(&file);
}

/* ---- the current snapshot -------------------------------------------------------------------- */

static void the_old_snapshot_lives_until_readers_are_quiet(void **state)
{
    (void)state;
    epoch_register();
    struct config *first = parse("{\"Threads\": 1}");
    config_ref(first); /* ours, to look at it afterwards */
    config_set_current(first);
    assert_ptr_equal(config_current(), first);
    struct config *held = config_acquire();
    assert_ptr_equal(held, first);
    assert_int_equal(first->references, 3);
    config_unref(held);

    struct config *second = parse("{\"Threads\": 2}");
    config_set_current(second);
    assert_int_equal(config_current()->threads, 2);
    epoch_reclaim();
    assert_int_equal(first->references, 2); /* this thread may still be reading it */
    epoch_quiet();
    while (epoch_reclaim() > 0) {
        epoch_quiet();
    }
    assert_int_equal(first->references, 1);
    config_unref(first);

    config_set_current(NULL);
    epoch_quiet();
    while (epoch_reclaim() > 0) {
        epoch_quiet();
    }
    epoch_unregister();
    assert_null(config_acquire());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(defaults_are_those_of_the_table, teardown),
        cmocka_unit_test_teardown(values_of_every_type, teardown),
        cmocka_unit_test_teardown(strings_in_comments_and_comments_in_strings, teardown),
        cmocka_unit_test_teardown(seeds_file_loads, teardown),
        cmocka_unit_test_teardown(unknown_keys_name_the_nearest, teardown),
        cmocka_unit_test_teardown(wrong_values_say_what_was_expected, teardown),
        cmocka_unit_test_teardown(headers_cannot_break_a_response, teardown),
        cmocka_unit_test_teardown(names_cannot_leave_their_place, teardown),
        cmocka_unit_test_teardown(all_mistakes_at_once, teardown),
        cmocka_unit_test_teardown(broken_syntax_has_its_line, teardown),
        cmocka_unit_test_teardown(a_nul_byte_is_no_end, teardown),
        cmocka_unit_test_teardown(warnings_do_not_refuse, teardown),
        cmocka_unit_test_teardown(overrides_stand_above_the_file, teardown),
        cmocka_unit_test_teardown(one_site_is_chosen, teardown),
        cmocka_unit_test_teardown(paths_start_at_the_file_or_the_current_directory, teardown),
        cmocka_unit_test_teardown(a_snapshot_prints_and_reads_back, teardown),
        cmocka_unit_test_teardown(the_default_file_is_the_defaults, teardown),
        cmocka_unit_test_teardown(inactive_keys_in_the_default_file_read_back_too, teardown),
        cmocka_unit_test_teardown(the_old_snapshot_lives_until_readers_are_quiet, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
