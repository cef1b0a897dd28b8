/* DESIGN: kiln-ws, which `kiln ws` starts: a WebSocket client for the command line, an echo server to try
 * clients on, and a load generator. It is an ordinary program of libkilnws (plugin-sdk/include/kiln_ws.h) and
 * uses nothing else of the project. Here: the command line; ws/talk.c, ws/echo.c and ws/bench.c do the work.
 *
 * Messages go to standard output and everything else to standard error, so that pipes carry messages alone. */
#include "ws/ws_tool.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "kiln ws: talk to a WebSocket from the command line\n"
    "\n"
    "Usage\n"
    "  kiln ws [OPTIONS] URL              each line you type is a text message; what comes is printed\n"
    "  kiln ws --echo-server=PORT         a server that sends everything back\n"
    "  kiln ws --bench [OPTIONS] URL      messages to and fro as fast as they go, against an echo server\n"
    "\n"
    "Examples\n"
    "  kiln ws ws://localhost:8080/chat/room\n"
    "  echo '{\"op\":\"time\"}' | kiln ws -1 wss://example.com/api      one question, one answer\n"
    "  kiln ws -x hello -x world -w 0.5 ws://localhost:8080/room    send two messages, listen for a moment\n"
    "  kiln ws -b ws://localhost:9000/ < file > answer              bytes to and fro\n"
    "  kiln ws -H 'Authorization: Bearer abc' -s chat.v2 wss://example.com/\n"
    "  kiln ws --proxy=socks5://user:secret@proxy:1080 --timing -x hi wss://example.com/\n"
    "  kiln ws --echo-server=9000 --cert=cert.pem --key=key.pem     and then: kiln ws --ca=cert.pem "
    "wss://localhost:9000/\n"
    "  kiln ws --bench --connections=200 --size=20 ws://localhost:9000/\n"
    "\n"
    "Sending\n"
    "  -b, --binary             standard input is bytes, sent as binary messages as they are read\n"
    "  -x, --execute=TEXT       send this first; may be given more than once\n"
    "  -w, --wait=SECONDS       after the end of the input: close after this long without a message (default 1;\n"
    "                           0 closes at once, -1 waits for the server to close)\n"
    "  -P, --ping=SECONDS       send a ping this often and tell how long the answer took\n"
    "      --slash              lines /ping [TEXT], /close [CODE [REASON]] and /quit are commands (in a terminal\n"
    "                           they always are)\n"
    "Receiving\n"
    "  -1, --one                end after the first message\n"
    "      --echo               send every message back\n"
    "      --max-message=BYTES  close with 1009 when a message is longer (default 64 MiB)\n"
    "Connecting\n"
    "  -H, --header='N: V'      a header of the handshake; may be given more than once\n"
    "  -s, --subprotocol=NAME   offer a subprotocol; may be given more than once\n"
    "  -o, --origin=ORIGIN      Origin header\n"
    "  -d, --deflate            offer compression (permessage-deflate)\n"
    "  -p, --proxy=URL          http://[user:password@]host:port or socks5://[user:password@]host:port\n"
    "      --ca=FILE            trust the authorities in this PEM file or directory, instead of the system's\n"
    "      --cert=FILE          client certificate (of --echo-server: its own), PEM\n"
    "      --key=FILE           its key\n"
    "      --server-name=NAME   the name that the server's certificate must have\n"
    "      --insecure           accept any certificate\n"
    "      --connect-timeout=SECONDS\n"
    "      --reconnect[=TIMES]  when the connection breaks, connect again (default: for ever)\n"
    "Telling\n"
    "  -v, --verbose            status, subprotocol, TLS and peer\n"
    "  -t, --timing             how long name, TCP, proxy, TLS and handshake took\n"
    "  -q, --quiet              messages alone\n"
    "Bench\n"
    "      --connections=N      (default 50)    --messages=N  in all (default 100000)    --size=BYTES  (default 20)\n"
    "      --timeout=SECONDS    end with an error when nothing has come back for this long (default 30; 0: never)\n"
    "Echo server\n"
    "      --address=ADDRESS    where to listen (default: all)\n"
    "\n"
    "Exit codes\n"
    "  0 closed in order, 1 no connection, 2 the command line was wrong, 3 the connection broke or was closed\n"
    "  with an error; 130 closed because of Ctrl-C\n";

enum long_option {
    OPT_CA = 256,
    OPT_CERT,
    OPT_KEY,
    OPT_SERVER_NAME,
    OPT_INSECURE,
    OPT_CONNECT_TIMEOUT,
    OPT_RECONNECT,
    OPT_MAX_MESSAGE,
    OPT_SLASH,
    OPT_BACK,
    OPT_ECHO,
    OPT_ADDRESS,
    OPT_BENCH,
    OPT_CONNECTIONS,
    OPT_MESSAGES,
    OPT_SIZE,
    OPT_TIMEOUT,
};

static const struct option long_options[] = {
    {"help", no_argument, NULL, 'h'},
    {"binary", no_argument, NULL, 'b'},
    {"execute", required_argument, NULL, 'x'},
    {"wait", required_argument, NULL, 'w'},
    {"ping", required_argument, NULL, 'P'},
    {"one", no_argument, NULL, '1'},
    {"header", required_argument, NULL, 'H'},
    {"subprotocol", required_argument, NULL, 's'},
    {"origin", required_argument, NULL, 'o'},
    {"deflate", no_argument, NULL, 'd'},
    {"proxy", required_argument, NULL, 'p'},
    {"verbose", no_argument, NULL, 'v'},
    {"timing", no_argument, NULL, 't'},
    {"quiet", no_argument, NULL, 'q'},
    {"ca", required_argument, NULL, OPT_CA},
    {"cert", required_argument, NULL, OPT_CERT},
    {"key", required_argument, NULL, OPT_KEY},
    {"server-name", required_argument, NULL, OPT_SERVER_NAME},
    {"insecure", no_argument, NULL, OPT_INSECURE},
    {"connect-timeout", required_argument, NULL, OPT_CONNECT_TIMEOUT},
    {"reconnect", optional_argument, NULL, OPT_RECONNECT},
    {"max-message", required_argument, NULL, OPT_MAX_MESSAGE},
    {"slash", no_argument, NULL, OPT_SLASH},
    {"echo", no_argument, NULL, OPT_BACK},
    {"echo-server", required_argument, NULL, OPT_ECHO},
    {"address", required_argument, NULL, OPT_ADDRESS},
    {"bench", no_argument, NULL, OPT_BENCH},
    {"connections", required_argument, NULL, OPT_CONNECTIONS},
    {"messages", required_argument, NULL, OPT_MESSAGES},
    {"size", required_argument, NULL, OPT_SIZE},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {NULL, 0, NULL, 0},
};

/* A number from `least` to `most`, or the end of the program. */
static double number(const char *name, const char *text, double least, double most)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= least && value <= most)) {
        fprintf(stderr, "kiln ws: --%s: %s is no number from %.0f to %.0f\n", name, text, least, most);
        exit(EXIT_USAGE);
    }
    return value;
}

static void add(const char *name, const char **list, size_t *count, const char *text)
{
    if (*count == LIST_MAX) {
        fprintf(stderr, "kiln ws: --%s: at most %d of them\n", name, LIST_MAX);
        exit(EXIT_USAGE);
    }
    list[(*count)++] = text;
}

/* False: it is not one of these. */
static bool take_sending(struct ws_tool *t, int option)
{
    switch (option) {
    case 'b': t->binary = true; return true;
    case 'x': add("execute", t->execute, &t->execute_count, optarg); return true;
    case 'w': t->wait_s = number("wait", optarg, -1, 1e6); return true;
    case 'P': t->ping_s = number("ping", optarg, 0.001, 1e6); return true;
    case '1': t->one = true; return true;
    case 'v': t->verbose = true; return true;
    case 't': t->timing = true; return true;
    case 'q': t->quiet = true; return true;
    case OPT_SLASH: t->slash = true; return true;
    case OPT_BACK: t->echo = true; return true;
    case OPT_MAX_MESSAGE: t->options.max_message = (int64_t)number("max-message", optarg, 1, 1e15); return true;
    case OPT_ECHO: t->echo_port = (int)number("echo-server", optarg, 0, 65535); return true;
    case OPT_ADDRESS: t->address = optarg; return true;
    case OPT_BENCH: t->bench = true; return true;
    case OPT_CONNECTIONS: t->connections = (int)number("connections", optarg, 1, 100000); return true;
    case OPT_MESSAGES: t->messages = (int64_t)number("messages", optarg, 1, 1e12); return true;
    case OPT_SIZE: t->size = (size_t)number("size", optarg, 0, 1 << 30); return true;
    case OPT_TIMEOUT: t->patience_s = number("timeout", optarg, 0, 1e6); return true;
    default: return false;
    }
}

static bool take_connecting(struct ws_tool *t, int option)
{
    switch (option) {
    case 'H': add("header", t->headers, &t->header_count, optarg); return true;
    case 's': add("subprotocol", t->protocols, &t->protocol_count, optarg); return true;
    case 'o': t->options.origin = optarg; return true;
    case 'd': t->options.deflate = KILN_WS_DEFLATE; return true;
    case 'p': t->options.proxy = optarg; return true;
    case OPT_CA: t->options.ca_file = optarg; return true;
    case OPT_CERT: t->options.cert_file = optarg; return true;
    case OPT_KEY: t->options.key_file = optarg; return true;
    case OPT_SERVER_NAME: t->options.server_name = optarg; return true;
    case OPT_INSECURE: t->options.insecure = 1; return true;
    case OPT_CONNECT_TIMEOUT:
        t->options.connect_timeout = (int)(1000 * number("connect-timeout", optarg, 0.001, 1e6));
        return true;
    case OPT_RECONNECT:
        t->options.reconnect = optarg != NULL ? (int)number("reconnect", optarg, 0, 1e9) : -1;
        return true;
    default: return false;
    }
}

static void wrong(const char *why)
{
    fprintf(stderr, "kiln ws: %s\nkiln ws --help tells more.\n", why);
    exit(EXIT_USAGE);
}

static void read_arguments(struct ws_tool *t, int argc, char **argv)
{
    int option;
    while ((option = getopt_long(argc, argv, "hbx:w:P:1H:s:o:dp:vtq", long_options, NULL)) != -1) {
        if (option == 'h') {
            fputs(help, stdout);
            exit(EXIT_ALL_WELL);
        }
        if (!take_sending(t, option) && !take_connecting(t, option)) {
            wrong("the option is not understood");
        }
    }
    if (optind < argc) {
        t->url = argv[optind++];
    }
    if (optind < argc) {
        wrong("one URL at a time, please");
    }
    if (t->echo_port < 0 && t->url == NULL) {
        wrong("which URL? kiln ws ws://localhost:8080/ for example");
    }
    if (t->echo_port >= 0 && (t->url != NULL || t->bench)) {
        wrong("--echo-server is a server: it connects to no URL");
    }
}

/* Where one of the first three is closed, the next to be opened would have its number: messages would be printed
 * into the socket, or read from it as what somebody types. */
static void keep_first_descriptors(void)
{
    const int how[] = {O_RDONLY, O_RDONLY, O_WRONLY}; /* writing to a closed output is to fail still */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", how[fd]) != fd) {
            exit(EXIT_USAGE);
        }
    }
}

int main(int argc, char **argv)
{
    keep_first_descriptors();
    static char program[] = "kiln ws";
    struct ws_tool tool = {
        .wait_s = 1, .echo_port = -1, .connections = 50, .messages = 100000, .size = 20, .patience_s = 30};
    argv[0] = program; /* what getopt calls it */
    read_arguments(&tool, argc, argv);
    tool.options.headers = tool.headers;
    tool.options.protocols = tool.protocols;
    if (tool.echo_port >= 0) {
        return ws_echo(&tool);
    }
    return tool.bench ? ws_bench(&tool) : ws_talk(&tool);
}
